"""The families with an implementation of theirs: a row each, of a tiny model with what makes the family special."""

from __future__ import annotations

from .parity import SPECIAL, TINY, Row
from .rows_beyond import ROWS as BEYOND
from .rows_classic import ROWS as CLASSIC
from .rows_encoders import ROWS as ENCODERS
from .rows_experts import ROWS as EXPERTS
from .rows_llamas import ROWS as LLAMAS
from .rows_mixers import ROWS as MIXERS
from .rows_sighted import ROWS as SIGHTED

ROWS = (
    Row(
        "gpt2", "GPT2Config", "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **SPECIAL},
        inert=("attn.c_attn.bias",),
    ),
    Row("llama", "LlamaConfig", "LlamaForCausalLM", {**TINY, "num_key_value_heads": 2}),
    *LLAMAS,
    *CLASSIC,
    *BEYOND,
    *EXPERTS,
    *MIXERS,
    *ENCODERS,
    *SIGHTED,
)  # fmt: skip
