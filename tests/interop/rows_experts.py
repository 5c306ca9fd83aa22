"""Decoders with a mixture of experts, with latent attention, or with both."""

from __future__ import annotations

from .parity import Row

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
MANY = {**TINY, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LOCAL = {**TINY, "num_local_experts": 6, "num_experts_per_tok": 3}
FACTORS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
}
LATENT = {
    **TINY,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 7,
}
MIXTURE = {
    **LATENT,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 0.7,
    "mscale_all_dim": 1.2,
}
ROWS = (
    Row("mixtral", "MixtralConfig", "MixtralForCausalLM", {**LOCAL, "head_dim": 12, "sliding_window": 5}),
    Row(
        "qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM",
        {**MANY, "shared_expert_intermediate_size": 28, "norm_topk_prob": True, "decoder_sparse_step": 2,
         "num_hidden_layers": 4},
    ),
    Row(
        "qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        {**MANY, "head_dim": 12, "mlp_only_layers": [0], "attention_bias": True},
    ),
    Row("olmoe", "OlmoeConfig", "OlmoeForCausalLM", {**TINY, "num_experts": 6, "num_experts_per_tok": 3}),
    Row(
        "flex_olmo", "FlexOlmoConfig", "FlexOlmoForCausalLM",
        {**TINY, "num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True},
    ),
    Row(
        "minimax_m2", "MiniMaxM2Config", "MiniMaxM2ForCausalLM",
        {**LOCAL, "head_dim": 12,
         "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    Row(
        "deepseek_v2", "DeepseekV2Config", "DeepseekV2ForCausalLM",
        {**MIXTURE, "first_k_dense_replace": 1, "topk_method": "group_limited_greedy", "q_lora_rank": None,
         "n_shared_experts": 2},
    ),
    Row(
        "deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM",
        {**MIXTURE, "first_k_dense_replace": 2, "rope_parameters": YARN, "attention_bias": True},
    ),
    Row(
        "deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM",
        {**MIXTURE, "first_k_dense_replace": 0, "rope_interleave": False, "q_lora_rank": None, "norm_topk_prob": False},
        label="deepseek_v3-halves",
    ),
    Row("glm4_moe_lite", "Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM", MIXTURE),
    Row(
        "glm4_moe", "Glm4MoeConfig", "Glm4MoeForCausalLM",
        {**MIXTURE, "num_key_value_heads": 2, "head_dim": 12, "use_qk_norm": True, "attention_bias": True},
    ),
    Row("gpt_oss", "GptOssConfig", "GptOssForCausalLM", {**LOCAL, "head_dim": 12, "sliding_window": 5}),
    Row("granitemoe", "GraniteMoeConfig", "GraniteMoeForCausalLM", {**LOCAL, **FACTORS}, tolerance=1e-4),
    Row(
        "granitemoeshared", "GraniteMoeSharedConfig", "GraniteMoeSharedForCausalLM",
        {**LOCAL, **FACTORS, "shared_intermediate_size": 28}, tolerance=1e-4,
    ),
    Row(
        "dots1", "Dots1Config", "Dots1ForCausalLM",
        {**MIXTURE, "num_key_value_heads": 2, "head_dim": 12, "first_k_dense_replace": 1, "norm_topk_prob": True,
         "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 5},
    ),
    Row(
        "exaone_moe", "ExaoneMoeConfig", "ExaoneMoeForCausalLM",
        {**MANY, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 5, "num_shared_experts": 2,
         "n_group": 3, "topk_group": 2, "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse"]},
    ),
    Row(
        "afmoe", "AfmoeConfig", "AfmoeForCausalLM",
        {**MANY, "num_hidden_layers": 5, "head_dim": 12, "sliding_window": 5, "num_shared_experts": 2,
         "mup_enabled": True, "route_scale": 1.7},
    ),
    Row(
        "hunyuan_v1_moe", "HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM",
        {**TINY, "num_experts": 6, "moe_topk": 3, "head_dim": 12},
    ),
    Row(
        "ernie4_5_moe", "Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM",
        {**TINY, "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 24, "num_hidden_layers": 4,
         "moe_layer_end_index": 2},
    ),
    Row(
        "aria_text", "AriaTextConfig", "AriaTextForCausalLM",
        {**TINY, "moe_num_experts": 6, "moe_topk": 3, "moe_num_shared_experts": 2},
    ),
    Row("minicpm3", "MiniCPM3Config", "MiniCPM3ForCausalLM", {**LATENT, "dim_model_base": 8}, tolerance=1e-4),
    Row(
        "llama4", "Llama4TextConfig", "Llama4ForCausalLM",
        {**LOCAL, "head_dim": 12, "num_hidden_layers": 5, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 44,
         "attention_chunk_size": 5, "floor_scale": 4, "no_rope_layer_interval": 2},
        stretches=True,  # it counts padding too where it scales queries by their position
    ),
    Row(
        "dbrx", "DbrxConfig", "DbrxForCausalLM",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64,
         "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 10000.0},
         "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 3}},
    ),
    Row("youtu", "YoutuConfig", "YoutuForCausalLM", {**LATENT, "rope_parameters": YARN}),
)  # fmt: skip
