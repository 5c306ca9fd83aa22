"""Decoders with mixers: Mamba, short convolutions."""

from __future__ import annotations

from .parity import SPECIAL, Row
from .rows_experts import LATENT
from .rows_llamas import MULTIPLIERS, TINY, causal

MAMBA = {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, **SPECIAL}
SHORT = {**TINY, "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]}
# with biases, theirs reads padding before a text: `stretches` compares each text by itself
MANY = {"num_experts": 6, "num_experts_per_tok": 3}
MAMBA2 = {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 6, "num_heads": 8, "head_dim": 8, **SPECIAL}
NEMOTRON = {
    "head_dim": 12, "mamba_num_heads": 6, "mamba_head_dim": 8, "ssm_state_size": 6, "n_groups": 2,
    "num_hidden_layers": None,
}  # fmt: skip
SCANNED = {"mamba_n_heads": 8, "mamba_d_state": 6}
# a larger eps keeps norms from magnifying the rounding of small outputs, of theirs as of ours
DELTA = {
    "rms_norm_eps": 0.01,
    **TINY, "num_hidden_layers": 5, "head_dim": 16, "full_attention_interval": 3, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6, "linear_key_head_dim": 6, "linear_value_head_dim": 5,
}  # fmt: skip
# theirs saves convolutions in thirds of one width, whatever each has
OLMO = {
    **TINY, "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 6,
    "linear_value_head_dim": 2, "rms_norm_eps": 0.01,
}  # fmt: skip
SHARING = {**MANY, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 28}
KIMI = {
    **LATENT, **MANY, "num_hidden_layers": 5, "linear_num_heads": 3, "linear_head_dim": 6, "moe_intermediate_size": 24,
    "q_lora_rank": None, "rms_norm_eps": 0.01,
}  # fmt: skip


ROWS: tuple[Row, ...] = (
    causal("mamba", "Mamba", MAMBA),
    causal("mamba", "Mamba", {
        **MAMBA, "time_step_rank": 5, "expand": 3, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3,
    }, label="mamba-biases", stretches=True),
    causal("mamba2", "Mamba2", {**MAMBA2, "n_groups": 1}),
    causal("mamba2", "Mamba2", {
        **MAMBA2, "n_groups": 4, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3,
        "time_step_limit": (0.1, 0.9),
    }, label="mamba2-groups", stretches=True),
    causal("bamba", "Bamba", {**TINY, **SCANNED, "attn_layer_indices": [1], "time_step_limit": (0.2, 0.8)}),
    causal("bamba", "Bamba", {
        **TINY, **SCANNED, "num_hidden_layers": 4, "attn_layer_indices": [0, 3], "mamba_n_groups": 2,
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    }, label="bamba-groups"),
    causal("granitemoehybrid", "GraniteMoeHybrid", {
        **TINY, **SCANNED, **MULTIPLIERS, "num_local_experts": 6, "num_experts_per_tok": 3, "logits_scaling": 3.0,
        "shared_intermediate_size": 24, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    }),
    causal("granitemoehybrid", "GraniteMoeHybrid", {
        **TINY, **SCANNED, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 24,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"], "position_embedding_type": "rope",
        "mamba_n_groups": 2,
    }, label="granitemoehybrid-dense"),
    causal("nemotron_h", "NemotronH", {
        **TINY, **NEMOTRON, "num_experts_per_tok": 3,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20,
        "routed_scaling_factor": 1.5,
    }),
    causal("nemotron_h", "NemotronH", {
        **TINY, **NEMOTRON, "layers_block_type": ["full_attention", "linear_attention", "mlp"], "mlp_bias": True,
        "norm_topk_prob": False,
    }, label="nemotron_h-dense"),
    causal("falcon_mamba", "FalconMamba", MAMBA),
    causal("lfm2", "Lfm2", {**SHORT, "block_multiple_of": 12}),
    causal("lfm2", "Lfm2", {**SHORT, "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
           label="lfm2-biases", stretches=True),
    causal("lfm2_moe", "Lfm2Moe", {**SHORT, **MANY, "moe_intermediate_size": 24, "num_dense_layers": 1}),
    causal("lfm3", "Lfm3", {
        **SHORT, "layer_types": ["conv", "sliding_attention", "full_attention", "conv"], "head_dim": 12,
        "sliding_window": 5,
    }),
    causal("lfm3", "Lfm3", {
        **SHORT, "head_dim": 12, "use_sandwich_norm": False, "use_attention_gate": False, "attention_bias": True,
        "num_hidden_layers": 5, "layer_types": None, "sliding_window": 5,
    }, label="lfm3-bare"),
    causal("jamba", "Jamba", {
        **TINY, **MANY, "num_hidden_layers": 5, "mamba_d_state": 6, "attn_layer_period": 3, "attn_layer_offset": 1,
    }),
    causal("qwen3_next", "Qwen3Next", {**DELTA, **SHARING, "mlp_only_layers": [1], "attention_bias": True}),
    causal("qwen3_next", "Qwen3Next", {
        **DELTA, **SHARING, "norm_topk_prob": False, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 3,
    }, label="qwen3_next-ungrouped"),
    Row("qwen3_5_text", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**DELTA, "attention_bias": True}),
    Row("qwen3_5_moe_text", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {**DELTA, **SHARING}),
    causal("olmo_hybrid", "OlmoHybrid", {**OLMO, "rope_parameters": {"rope_theta": None, "rope_type": "default"}}),
    causal("olmo_hybrid", "OlmoHybrid", {
        **OLMO, "linear_num_value_heads": 2, "linear_value_head_dim": 6, "linear_allow_neg_eigval": False,
        "attention_bias": True, "layer_types": ["full_attention", *["linear_attention"] * 3],
    }, label="olmo_hybrid-turned"),
    causal("kimi_linear", "KimiLinear", KIMI),
    causal("kimi_linear", "KimiLinear", {
        **KIMI, "n_group": 3, "topk_group": 2, "q_lora_rank": 20, "norm_topk_prob": False, "linear_conv_kernel_dim": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse", "dense", "sparse"],
    }, label="kimi_linear-groups"),
)  # fmt: skip
