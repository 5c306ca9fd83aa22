"""The families with an implementation of theirs: a row each, of a tiny model with what makes the family special."""

from __future__ import annotations

from .parity import Row
from .rows_beyond import ROWS as BEYOND
from .rows_classic import ROWS as CLASSIC
from .rows_encoders import ROWS as ENCODERS
from .rows_experts import ROWS as EXPERTS
from .rows_llamas import ROWS as LLAMAS

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
ROWS = (
    Row(
        "gpt2", "GPT2Config", "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 3},
        inert=("attn.c_attn.bias",),
    ),
    Row("llama", "LlamaConfig", "LlamaForCausalLM", {**TINY, "num_key_value_heads": 2}),
    *LLAMAS,
    *CLASSIC,
    *BEYOND,
    *EXPERTS,
    *ENCODERS,
)  # fmt: skip
