"""Decoders like Llama: rotary positions, mostly gated feed-forwards and norms without a mean, no experts."""

from __future__ import annotations

from typing import Any

from . import parity
from .parity import SPECIAL, Row

TINY: dict[str, Any] = {**parity.TINY, "num_key_value_heads": 2}
WIDE = {**TINY, "head_dim": 12}  # heads * head_dim is not the width
WINDOW = {"sliding_window": 5, "num_hidden_layers": 4}
FULL = ["full_attention"] * 3
ORIGINAL: dict[str, Any] = {"original_max_position_embeddings": 8}  # shorter than the texts of the proofs
MULTIPLIERS = {"embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0}
BY_TYPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}

BIASES = {"attention_bias": True, "mlp_bias": True}
BERT = {**TINY, "num_hidden_layers": 5, "rope_parameters": BY_TYPE}
del BERT["num_key_value_heads"]
GEMMA = {**TINY, **WINDOW, **CAPS, "vocab_size": 61, "query_pre_attn_scalar": 24, "layer_types": None}


def causal(family: str, name: str, settings: dict[str, Any], **more: Any) -> Row:
    """A row of the class with a head."""
    return Row(family, f"{name}Config", f"{name}ForCausalLM", settings, **more)


def llama(rope_type: str, settings: dict[str, Any] | None = None, **rope: Any) -> Row:
    """A Llama with scaled rotary positions."""
    said = {**WIDE, **(settings or {}), "rope_parameters": {"rope_type": rope_type, "rope_theta": 500.0, **rope}}
    stretches = rope_type in ("dynamic", "longrope")
    return causal("llama", "Llama", said, label=f"llama-{rope_type}-{len(rope)}", stretches=stretches)


ROWS = (
    causal("llama", "Llama", WIDE, label="llama-wide"),
    Row("llama", "LlamaConfig", "LlamaModel", {**TINY, "attention_bias": True, "mlp_bias": True}),
    llama("linear", factor=3.0),
    llama("dynamic", {"max_position_embeddings": 10}, factor=3.0),
    llama("yarn", factor=4.0, **ORIGINAL),
    llama("yarn", factor=4.0, beta_fast=4.0, beta_slow=0.5, truncate=False, mscale=0.7, mscale_all_dim=0.4, **ORIGINAL),
    llama("yarn", factor=4.0, attention_factor=1.3, beta_fast=2.0, **ORIGINAL),
    llama("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL),
    llama("longrope", short_factor=[1.0, 1.1, 1.2, 1.3, 1.5, 2.0],
          long_factor=[1.5, 2.0, 3.0, 4.0, 5.0, 7.0], **ORIGINAL),
    causal("mistral", "Mistral", {**WIDE, "sliding_window": 5}),
    causal("mistral", "Mistral", {**TINY, "sliding_window": None}, label="mistral-full"),
    causal("ministral", "Ministral", {**WIDE, **WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    causal("ministral3", "Ministral3", {
        **WIDE,
        "sliding_window": 6,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "beta_fast": 8.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, **ORIGINAL,
        },
    }),
    causal("qwen2", "Qwen2", {**TINY, **WINDOW, "use_sliding_window": True, "max_window_layers": 2}),
    causal("qwen2", "Qwen2", TINY, label="qwen2-full"),
    causal("qwen3", "Qwen3", {**WIDE, **WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    causal("gemma", "Gemma", {**WIDE, "hidden_act": "gelu"}),
    causal("gemma2", "Gemma2", {**WIDE, **WINDOW, "query_pre_attn_scalar": 24, **CAPS}),
    causal("vaultgemma", "VaultGemma", {**WIDE, **WINDOW, "query_pre_attn_scalar": 24, **CAPS}),
    Row(
        "gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM",
        {**WIDE, **WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 20, "rope_parameters": BY_TYPE},
    ),
    causal("olmo", "Olmo", {**TINY, "clip_qkv": 0.8}),
    causal("olmo2", "Olmo2", TINY),
    causal("olmo3", "Olmo3", {**TINY, **WINDOW, "rope_parameters": BY_TYPE}),
    causal("granite", "Granite", {**TINY, **MULTIPLIERS, "logits_scaling": 7.0}),
    causal("hyperclovax", "HyperCLOVAX", {**TINY, **MULTIPLIERS, "logits_scaling": 0.6}),
    causal("hyperclovax", "HyperCLOVAX", {**TINY, "use_post_norm": False}, label="hyperclovax-pre"),
    causal("phi3", "Phi3", {
        **TINY, **ORIGINAL, "sliding_window": 6,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.2, 1.5], "long_factor": [1.5, 3.0, 7.0],
        },
    }, stretches=True),
    causal("phi", "Phi", {**TINY, "qk_layernorm": True}),
    causal("phi", "Phi", TINY, label="phi-plain"),
    causal("persimmon", "Persimmon", parity.TINY),
    causal("persimmon", "Persimmon", {**parity.TINY, "qk_layernorm": False}, label="persimmon-plain"),
    causal("cohere", "Cohere", {**TINY, "use_qk_norm": True}),
    causal("cohere", "Cohere", {**TINY, "tie_word_embeddings": False, "logit_scale": 0.3}, label="cohere-plain"),
    causal("cohere2", "Cohere2", {**TINY, **WINDOW, "num_hidden_layers": 5}),
    causal("glm", "Glm", WIDE),
    causal("glm", "Glm", {**WIDE, "attention_bias": False}, label="glm-no-bias"),
    causal("glm4", "Glm4", WIDE),
    causal("smollm3", "SmolLM3", {**TINY, "num_hidden_layers": 5}),
    causal("smollm3", "SmolLM3", {
        **TINY, "num_hidden_layers": 5, "use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 2,
    }, label="smollm3-window"),
    causal("exaone4", "Exaone4", {**WIDE, **WINDOW, "num_hidden_layers": 5}),
    causal("exaone4", "Exaone4", {**TINY, "sliding_window": None, "layer_types": FULL}, label="exaone4-full"),
    causal("stablelm", "StableLm", {**TINY, "hidden_size": 64, "qk_layernorm": True, "use_qkv_bias": True}),
    causal("stablelm", "StableLm", {**TINY, "hidden_size": 64, "use_parallel_residual": True}, label="stablelm-both"),
    causal("starcoder2", "Starcoder2", {**TINY, "sliding_window": 5}),
    causal("nemotron", "Nemotron", WIDE),
    causal("jais2", "Jais2", TINY),
    causal("arcee", "Arcee", TINY),
    causal("apertus", "Apertus", TINY, kept=("act_fn.beta", "act_fn.eps")),
    causal("ernie4_5", "Ernie4_5", {**WIDE, "use_bias": True}),
    causal("helium", "Helium", {**TINY, "head_dim": 8}),
    causal("seed_oss", "SeedOss", {**WIDE, "attention_out_bias": True}),
    causal("hunyuan_v1_dense", "HunYuanDenseV1", {
        **WIDE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 20.0, "factor": 1.0},
    }),
    causal("cwm", "Cwm", {**WIDE, **WINDOW, "num_hidden_layers": 5}),
    causal("bitnet", "BitNet", TINY),
    causal("nanochat", "NanoChat", TINY),
    causal("diffllama", "DiffLlama", {**TINY, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 6}),
    Row("internlm3", "InternLM3Config", "LlamaForCausalLM", WIDE),
    Row("iquestcoder", "IQuestCoderConfig", "LlamaForCausalLM", {**WIDE, **BIASES}),
    causal("modernbert_decoder", "ModernBertDecoder", {**BERT, "local_attention": 10}),
    causal(
        "modernbert_decoder", "ModernBertDecoder",
        {**BERT, "norm_bias": True, "classifier_bias": True, "decoder_bias": False, **BIASES},
        label="modernbert_decoder-biases",
    ),
    Row(
        "t5gemma", "T5GemmaConfig", "T5GemmaForConditionalGeneration",
        {"encoder": {**GEMMA, "head_dim": 12}, "decoder": {**GEMMA, "hidden_size": 24, "num_hidden_layers": 3},
         **SPECIAL},
        kind="encoder_decoder", std=0.15,  # so many norms make the rounding of a weight more than 1e-5 of the logits
    ),
)  # fmt: skip
