"""The classic decoders, and the encoder-decoders: T5's and BART's."""

from __future__ import annotations

from typing import Any

from .parity import Row

SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
PAIR = {**SPECIAL, "decoder_start_token_id": 2}

# heads that do not divide the width, a decoder deeper than its encoder, few buckets that soon widen
T5: dict[str, Any] = {
    "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, **PAIR,
}  # fmt: skip
GATED = {**T5, "feed_forward_proj": "gated-gelu"}
OWN = {"own": ("lm_head.weight",), "std": 0.15}  # scores are not scaled down: larger weights would drown in rounding
BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "max_position_embeddings": 40, **PAIR,
}  # fmt: skip
SCALED = {**BART, "scale_embedding": True}
TABLES = ("embed_positions",)


def t5(name: str, settings: dict[str, Any], **more: Any) -> Row:
    """A row of T5's relatives."""
    return Row(
        name.lower(), f"{name}Config", f"{name}ForConditionalGeneration", settings, kind="encoder_decoder", **more
    )


def bart(family: str, name: str, settings: dict[str, Any], model: str = "", **more: Any) -> Row:
    """A row of BART's relatives."""
    model = model or f"{name}ForConditionalGeneration"
    return Row(family, f"{name}Config", model, settings, kind="encoder_decoder", **more)


GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40, **SPECIAL}
WIDE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 40, **SPECIAL,
}  # fmt: skip
SIX = {"hidden_size": 36, "num_attention_heads": 6}  # no power of two
FALCON = {**WIDE, "ffn_hidden_size": 56, "num_attention_heads": 8}
MPT: dict[str, Any] = {"d_model": 36, "n_layers": 3, "n_heads": 6, "max_seq_len": 40, **SPECIAL}
OPT = {**WIDE, "ffn_dim": 40}
LABELS = {"num_labels": 5}


def causal(family: str, name: str, settings: dict[str, Any], model: str = "", **more: Any) -> Row:
    """A row of a decoder."""
    return Row(family, f"{name}Config", model or f"{name}ForCausalLM", settings, **more)


ROWS = (
    t5("T5", T5),
    t5("T5", {**GATED, "tie_word_embeddings": False}, label="t5-1.1", **OWN),
    Row("t5", "T5Config", "T5EncoderModel", {**T5, "feed_forward_proj": "gated-silu"}, kind="encoder"),
    Row("t5", "T5Config", "T5Model", T5, kind="encoder_decoder"),
    t5("MT5", GATED, **OWN),
    t5("UMT5", GATED, **OWN),
    bart("bart", "Bart", {**SCALED, "encoder_layers": 2, "decoder_layers": 3}),
    bart("bart", "Bart", {**BART, "encoder_ffn_dim": 48, "encoder_attention_heads": 4}, "BartModel"),
    bart("plbart", "PLBart", {**SCALED, "activation_function": "relu"}),
    bart("mvp", "Mvp", BART),
    bart("mbart", "MBart", SCALED),
    bart("blenderbot", "Blenderbot", SCALED),
    bart("blenderbot_small", "BlenderbotSmall", SCALED),
    bart("pegasus", "Pegasus", {**SCALED, "activation_function": "relu"}, kept=TABLES),
    bart("marian", "Marian", {**SCALED, "activation_function": "swish"}, "MarianMTModel", kept=TABLES),
    bart("marian", "Marian", {
        **BART, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 67,
    }, "MarianMTModel", kept=TABLES, label="marian-two-vocabularies"),
    bart("m2m_100", "M2M100", SCALED),
    bart("fsmt", "FSMT", {**SCALED, "src_vocab_size": 67}, kept=TABLES, call={"use_cache": False}),
    causal("gptj", "GPTJ", {**GPT, "rotary_dim": 6, "n_inner": 40}),
    causal("codegen", "CodeGen", {**GPT, "n_embd": 40, "rotary_dim": 6}),
    causal("gpt_neox", "GPTNeoX", WIDE),
    causal("gpt_neox", "GPTNeoX", {
        **WIDE, "use_parallel_residual": False, "hidden_act": "gelu_new", "attention_bias": False,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "partial_rotary_factor": 0.5, "factor": 2.0},
    }, label="gpt_neox-one-after-the-other"),
    causal("gpt_neox_japanese", "GPTNeoXJapanese", {**WIDE, "intermediate_multiple_size": 2}),
    causal("bloom", "Bloom", {"n_layer": 3, "hidden_size": 36, "n_head": 6, **SPECIAL}),
    causal("falcon", "Falcon", FALCON, label="falcon-7b"),
    causal("falcon", "Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}, label="falcon-40b"),
    causal("falcon", "Falcon", {
        **FALCON, "new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1, "bias": True,
    }, label="falcon-11b"),
    causal("falcon", "Falcon", {
        **FALCON, **SIX, "alibi": True, "parallel_attn": False, "multi_query": False, "bias": True,
    }, label="falcon-alibi", reference="sdpa"),  # what they call eager adds the bias twice
    causal("mpt", "Mpt", {**MPT, "attn_config": {"clip_qkv": 0.7}}),
    causal("mpt", "Mpt", {**MPT, "n_heads": 4, "attn_config": {"softmax_scale": 0.6}}, label="mpt-scaled"),
    causal("opt", "OPT", OPT),
    causal("opt", "OPT", OPT, "OPTModel"),
    causal("opt", "OPT", {
        **OPT, "word_embed_proj_dim": 20, "do_layer_norm_before": False,
    }, label="opt-350m", after=True),
    causal("opt", "OPT", {
        **OPT, "enable_bias": False, "layer_norm_elementwise_affine": False, "_remove_final_layer_norm": True,
    }, label="opt-bare"),
    causal("xglm", "XGLM", {
        "d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 40, "max_position_embeddings": 40, **SPECIAL,
    }),
    causal("biogpt", "BioGpt", WIDE),
    causal("gpt2", "GPT2", {**GPT, "scale_attn_by_inverse_layer_idx": True}, "GPT2LMHeadModel", label="gpt2-by-depth"),
    causal("gpt2", "GPT2", {**GPT, "scale_attn_weights": False}, "GPT2LMHeadModel", label="gpt2-unscaled"),
    causal("openai_gpt", "OpenAIGPT", GPT, "OpenAIGPTLMHeadModel"),
    causal("ctrl", "CTRL", {**GPT, "dff": 40}, "CTRLLMHeadModel"),
    causal("gpt_neo", "GPTNeo", {
        **SPECIAL, "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 40, "num_layers": 4,
        "num_heads": 4, "attention_types": [[["global", "local"], 1], [["local"], 2]],
        "window_size": 5,
    }, std=0.2),
    causal("gpt_bigcode", "GPTBigCode", {**GPT, "n_inner": 40}),
    causal("gpt_bigcode", "GPTBigCode", {**GPT, "multi_query": False}, label="gpt_bigcode-many-heads"),
    causal("gpt_neox", "GPTNeoX", {**WIDE, **LABELS}, "GPTNeoXForSequenceClassification"),
    causal("opt", "OPT", {**OPT, **LABELS}, "OPTForSequenceClassification"),
    causal("bloom", "Bloom", {
        "n_layer": 2, "hidden_size": 32, "n_head": 4, **LABELS, **SPECIAL,
    }, "BloomForSequenceClassification"),
    causal("ctrl", "CTRL", {**GPT, **LABELS, "dff": 40}, "CTRLForSequenceClassification"),
)  # fmt: skip
