"""Decoders with mixers: Mamba, short convolutions."""

from __future__ import annotations

from .parity import SPECIAL, Row
from .rows_llamas import TINY, causal

MAMBA = {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, **SPECIAL}
SHORT = {**TINY, "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]}
# with biases, theirs reads padding before a text: `stretches` compares each text by itself
MANY = {"num_experts": 6, "num_experts_per_tok": 3}


ROWS: tuple[Row, ...] = (
    causal("mamba", "Mamba", MAMBA),
    causal("mamba", "Mamba", {
        **MAMBA, "time_step_rank": 5, "expand": 3, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3,
    }, label="mamba-biases", stretches=True),
    causal("falcon_mamba", "FalconMamba", MAMBA),
    causal("lfm2", "Lfm2", {**SHORT, "block_multiple_of": 12}),
    causal("lfm2", "Lfm2", {**SHORT, "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
           label="lfm2-biases", stretches=True),
    causal("lfm2_moe", "Lfm2Moe", {**SHORT, **MANY, "moe_intermediate_size": 24, "num_dense_layers": 1}),
    causal("jamba", "Jamba", {
        **TINY, **MANY, "num_hidden_layers": 5, "mamba_d_state": 6, "attn_layer_period": 3, "attn_layer_offset": 1,
    }),
)  # fmt: skip
