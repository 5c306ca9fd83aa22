"""Decoders with a mixture of experts, with latent attention, or with both."""

from __future__ import annotations

from typing import Any

from .parity import SPECIAL, Row
from .rows_llamas import BY_TYPE, ORIGINAL, TINY, causal

MANY = {**TINY, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LOCAL = {**TINY, "num_local_experts": 6, "num_experts_per_tok": 3}
TYPES = ["full_attention", *["sliding_attention"] * 3, "full_attention"]
WINDOWED: dict[str, Any] = {"num_hidden_layers": 5, "sliding_window": 5, "layer_types": TYPES}
FACTORS = {
    "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
}  # fmt: skip
LATENT = {
    **TINY, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6, "v_head_dim": 7,
}  # fmt: skip
MIXTURE = {
    **LATENT, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.2, **ORIGINAL}
ROWS = (
    causal("mixtral", "Mixtral", {**LOCAL, "head_dim": 12, "sliding_window": 5}),
    causal(
        "qwen2_moe", "Qwen2Moe",
        {**MANY, "shared_expert_intermediate_size": 28, "norm_topk_prob": True, "decoder_sparse_step": 2,
         "num_hidden_layers": 4},
    ),
    causal("qwen3_moe", "Qwen3Moe", {**MANY, "head_dim": 12, "mlp_only_layers": [0], "attention_bias": True}),
    causal("olmoe", "Olmoe", {**TINY, "num_experts": 6, "num_experts_per_tok": 3}),
    causal("flex_olmo", "FlexOlmo", {**TINY, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    causal(
        "minimax_m2", "MiniMaxM2",
        {**LOCAL, "head_dim": 12,
         "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    causal(
        "deepseek_v2", "DeepseekV2",
        {**MIXTURE, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy", "q_lora_rank": None,
         "n_shared_experts": 2},
    ),
    causal(
        "deepseek_v3", "DeepseekV3",
        {**MIXTURE, "first_k_dense_replace": 2, "rope_parameters": YARN, "attention_bias": True},
    ),
    causal(
        "deepseek_v3", "DeepseekV3",
        {**MIXTURE, "first_k_dense_replace": 0, "rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False},
        label="deepseek_v3-halves",
    ),
    causal("glm4_moe_lite", "Glm4MoeLite", MIXTURE),
    causal(
        "glm4_moe", "Glm4Moe",
        {**MIXTURE, "num_key_value_heads": 2, "head_dim": 12, "use_qk_norm": True, "attention_bias": True},
    ),
    causal("gpt_oss", "GptOss", {**LOCAL, "head_dim": 12, "sliding_window": 5}),
    causal("granitemoe", "GraniteMoe", {**LOCAL, **FACTORS}, tolerance=1e-4),
    causal(
        "granitemoeshared", "GraniteMoeShared",
        {**LOCAL, **FACTORS, "shared_intermediate_size": 28}, tolerance=1e-4,
    ),
    causal(
        "dots1", "Dots1",
        {**MIXTURE, "num_key_value_heads": 2, "head_dim": 12, "first_k_dense_replace": 1, "norm_topk_prob": True,
         "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 5},
    ),
    causal(
        "exaone_moe", "ExaoneMoe",
        {**MANY, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 5, "num_shared_experts": 2,
         "n_group": 3, "topk_group": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"]},
    ),
    causal(
        "afmoe", "Afmoe",
        {**MANY, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 5, "num_shared_experts": 2,
         "mup_enabled": True, "route_scale": 1.7},
    ),
    causal("hunyuan_v1_moe", "HunYuanMoEV1", {**TINY, "num_experts": 6, "moe_topk": 3, "head_dim": 12}),
    causal(
        "ernie4_5_moe", "Ernie4_5_Moe",
        {**TINY, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 24, "num_hidden_layers": 4,
         "moe_layer_end_index": 2},
    ),
    causal("aria_text", "AriaText", {**TINY, "moe_num_experts": 6, "moe_topk": 3, "moe_num_shared_experts": 2}),
    causal("minicpm3", "MiniCPM3", {**LATENT, "dim_model_base": 8}, tolerance=1e-4),
    Row(
        "llama4", "Llama4TextConfig", "Llama4ForCausalLM",
        {**LOCAL, "head_dim": 12, "num_hidden_layers": 5, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 44,
         "attention_chunk_size": 5, "floor_scale": 4, "no_rope_layer_interval": 2},
        stretches=True,  # it counts padding too where it scales queries by their position
    ),
    causal(
        "dbrx", "Dbrx",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64,
         **SPECIAL,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 10000.0},
         "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 3}},
    ),
    causal(
        "solar_open", "SolarOpen", {**MIXTURE, "num_key_value_heads": 2, "head_dim": 12, "attention_bias": True},
    ),
    causal("hy_v3", "HYV3", {**MANY, "head_dim": 12, "num_shared_experts": 2, "attention_bias": True}),
    causal(
        "mellum", "Mellum",
        {**MANY, **WINDOWED, "head_dim": 12, "rope_parameters": BY_TYPE, "attention_bias": True,
         "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"]},
    ),
    causal("flint", "Flint", {
        **MANY, "head_dim": 12, "shared_expert_intermediate_size": 28, "num_hidden_layers": 6, "sliding_window": 5,
    }),
    causal("laguna", "Laguna", {
        **MANY, **WINDOWED, "head_dim": 12, "shared_expert_intermediate_size": 28, "moe_routed_scaling_factor": 1.7,
        "num_attention_heads_per_layer": [4, 8, 8, 6, 4], "num_key_value_heads": 2,
    }),
    causal("granite_swa", "GraniteSWA", {
        **TINY, **FACTORS, **WINDOWED, "layer_rope_theta": [0, 10000.0, 500.0, 10000.0, 0],
    }),
    causal("granitemoe_swa", "GraniteMoeSWA", {
        **LOCAL, **FACTORS, **WINDOWED, "layer_rope_theta": [500.0, 10000.0, 0, 10000.0, 500.0],
        "shared_intermediate_size": 28,
    }),
    causal("mistral4", "Mistral4", {
        **MIXTURE, "first_k_dense_replace": 1, "attention_bias": True,
        "rope_parameters": {**YARN, "original_max_position_embeddings": 5, "llama_4_scaling_beta": 0.5},
    }),
    causal("axk1", "AXK1", {**MIXTURE, "mlp_layer_types": ["dense", "sparse", "sparse"], "rope_parameters": YARN}),
    causal("mimo_v2_flash", "MiMoV2Flash", {
        **MIXTURE, **WINDOWED, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 12, "v_head_dim": 7,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"], "attention_bias": True,
    }),
    causal("kolibri1", "Kolibri1", {
        **MANY, **WINDOWED, "head_dim": 12, "shared_expert_intermediate_size": 28, "norm_topk_prob": True,
    }),
    causal("cohere2_moe", "Cohere2Moe", {
        **MANY, **WINDOWED, "head_dim": 12, "num_shared_experts": 2, "prefix_dense_intermediate_size": 44,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"],
    }),
    causal("cohere2_moe", "Cohere2Moe", {
        **MANY, "head_dim": 12, "expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-6, "first_k_dense_replace": 2,
        "prefix_dense_intermediate_size": 44, "prefix_dense_sliding_window_pattern": 2, "num_hidden_layers": 6,
        "sliding_window": 5,
    }, label="cohere2_moe-sigmoid"),
    causal("youtu", "Youtu", {**LATENT, "rope_parameters": YARN}),
)  # fmt: skip
