"""BERT's relatives: encoders with their heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .parity import TINY, Row

POOLER = {"pooler": "pooler_output"}
PAIRS = {"next_sentence": "seq_relationship_logits"}
ORDER = {"sentence_order": "sop_logits"}
LABELS = {"num_labels": 5}
SPAN = "start_logits end_logits"
XLM = {"emb_dim": 32, "n_layers": 3, "n_heads": 4}
END = 50
# every text has some of the mask token
ESM = {"mask_token_id": 7, "token_dropout": True, "emb_layer_norm_before": True}
ROTARY = {"position_embedding_type": "rotary", "emb_layer_norm_before": False}
NARROW = {"embedding_size": 12}
ALBERT = {"embedding_size": 12, "num_hidden_layers": 5}
INNER = {**ALBERT, "num_hidden_layers": 2, "inner_group_num": 3}
DISTILBERT = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}
LUKE = {"entity_vocab_size": 1, "entity_emb_size": 1, "use_entity_aware_attention": False}
ULTRA = {
    "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 6, "sliding_window": 3, "prediction_head_size": 20,
}  # fmt: skip
PRIVACY = {
    "num_key_value_heads": 2, "head_dim": 12, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 3,
}  # fmt: skip
CLIPS = {"MetaClip2": "metaclip_2_text", "CLIPSeg": "clipseg_text"}
TOWERS = {
    "chinese_clip_text": "ChineseCLIPText", "align_text": "AlignText", "clap_text": "ClapText",
}  # fmt: skip
FILTER = {"segments": False}
DECODERS = {
    "ernie": "Ernie", "megatron_bert": "MegatronBert", "roberta": "Roberta", "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert", "data2vec_text": "Data2VecText", "roberta_prelayernorm": "RobertaPreLayerNorm",
}  # fmt: skip
# two turns of the pattern of layers and one more, and a window that is smaller than the text
MODERN = {"num_hidden_layers": 7, "local_attention": 6, "cls_token_id": 2, "sep_token_id": 3, "classifier_bias": True}


def encoder(family: str, name: str, model: str, settings: Mapping[str, Any] | None = None, **more: Any) -> Row:
    """A row of an encoder; `name` begins the names of their classes, and `model` ends it."""
    more = {"segments": True, **more}
    return Row(family, f"{name}Config", f"{name}{model}", {**TINY, **(settings or {})}, kind="encoder", **more)


def decoder(family: str, name: str, model: str = "ForCausalLM", settings: Any = None, **more: Any) -> Row:
    """A row of a decoder with the layers of an encoder."""
    return replace(encoder(family, name, model, {**(settings or {}), "is_decoder": True}, **more), kind="decoder")


def clip(model: str, stated: int, name: str = "CLIP", **more: Any) -> Row:
    """A row of CLIP, whose files state that end token, or of a model with its text encoder."""
    more = {"end": END, "pooled": "both", "segments": False, **more}
    family = CLIPS.get(name, "clip_text")
    return encoder(family, f"{name}Text", model, {"eos_token_id": stated, "projection_dim": 20}, **more)


def all_heads(
    family: str, name: str, settings: Mapping[str, Any] | None = None, answers: bool = True, **more: Any
) -> tuple[Row, ...]:
    """A family with all its heads; not all of them have one that `answers` questions."""
    pooler = more.pop("heads", POOLER)
    span = (encoder(family, name, "ForQuestionAnswering", settings, logits=SPAN, **more),)
    return (
        encoder(family, name, "ForMaskedLM", settings, **more),
        encoder(family, name, "ForSequenceClassification", {**(settings or {}), **LABELS}, **more),
        encoder(family, name, "ForTokenClassification", {**(settings or {}), **LABELS}, **more),
        *(span if answers else ()),
        encoder(family, name, "Model", settings, heads=pooler, **more),
    )


ROWS = (
    *all_heads("bert", "Bert"),
    encoder("bert", "Bert", "ForPreTraining", heads=PAIRS, logits="prediction_logits"),
    encoder("ernie", "Ernie", "ForMaskedLM"),
    *all_heads("megatron_bert", "MegatronBert"),
    encoder("megatron_bert", "MegatronBert", "ForPreTraining", heads=PAIRS, logits="prediction_logits"),
    *all_heads("roberta", "Roberta", {"hidden_act": "relu"}),
    *all_heads("xlm_roberta", "XLMRoberta"),
    encoder("camembert", "Camembert", "ForMaskedLM"),
    encoder("data2vec_text", "Data2VecText", "ForMaskedLM"),
    *all_heads("roberta_prelayernorm", "RobertaPreLayerNorm"),
    *all_heads("xlm_roberta_xl", "XLMRobertaXL", {"type_vocab_size": 2}),
    *all_heads("ibert", "IBert"),
    *all_heads("luke", "Luke", LUKE),
    encoder("splinter", "Splinter", "Model"),
    *all_heads("distilbert", "DistilBert", DISTILBERT, segments=False, heads={}),
    *all_heads("albert", "Albert", ALBERT),
    encoder("albert", "Albert", "ForMaskedLM", {**ALBERT, "num_hidden_groups": 2}, label="albert-groups"),
    encoder("albert", "Albert", "ForMaskedLM", INNER, label="albert-inner"),
    encoder("albert", "Albert", "ForPreTraining", {**ALBERT, **LABELS}, heads=ORDER, logits="prediction_logits"),
    *all_heads("electra", "Electra", NARROW, heads={}),
    encoder("electra", "Electra", "ForPreTraining", NARROW),
    encoder("electra", "Electra", "ForPreTraining", {"embedding_size": 32, "hidden_act": "relu"}, label="electra-wide"),
    *all_heads("roformer", "RoFormer", NARROW, heads={}, kept=("embed_positions",)),
    *all_heads("rembert", "RemBert", {"input_embedding_size": 12, "output_embedding_size": 20}),
    *all_heads("mpnet", "MPNet", segments=False, length=40),
    *all_heads("jina_embeddings_v3", "JinaEmbeddingsV3", {"type_vocab_size": 2}),
    *all_heads("gte", "Gte", {"type_vocab_size": 2}, answers=False, heads={}),
    *all_heads("nomic_bert", "NomicBert", {"head_dim": 6}, answers=False, heads={}),
    encoder("modernbert", "ModernBert", "ForMaskedLM", MODERN, segments=False),
    encoder("modernbert", "ModernBert", "Model", {**MODERN, "norm_bias": True}, segments=False),
    encoder("eurobert", "EuroBert", "ForMaskedLM", {"num_key_value_heads": 2, "head_dim": 6}, segments=False),
    encoder("eurobert", "EuroBert", "Model", {"mlp_bias": True, "attention_bias": True}, segments=False),
    encoder("ultrabert", "Ultrabert", "ForMaskedLM", ULTRA, segments=False),
    encoder("ultrabert", "Ultrabert", "Model", {**ULTRA, "attention_bias": True, "mlp_bias": True}, segments=False),
    encoder("openai_privacy_filter", "OpenAIPrivacyFilter", "ForTokenClassification", {**PRIVACY, **LABELS}, **FILTER),
    encoder("openai_privacy_filter", "OpenAIPrivacyFilter", "Model", PRIVACY, **FILTER),
    clip("Model", END, heads=POOLER),
    clip("Model", 2, heads=POOLER, end=60, label="clip_text-old"),
    clip("ModelWithProjection", END, logits="text_embeds"),
    encoder("siglip_text", "SiglipText", "Model", {"projection_size": 20}, segments=False, heads=POOLER, pooled="left"),
    encoder("siglip2_text", "Siglip2Text", "Model", segments=False, heads=POOLER, pooled="left"),
    *(clip("Model", END, heads=POOLER, name=name) for name in CLIPS),
    encoder("xclip_text", "XCLIPText", "Model", segments=False, heads=POOLER, pooled="both", end=60),
    *(encoder(family, name, "Model", {"type_vocab_size": 2}, heads=POOLER) for family, name in TOWERS.items()),
    *all_heads("esm", "Esm", ESM, answers=False, segments=False),
    encoder("esm", "Esm", "ForMaskedLM", {**ESM, **ROTARY}, segments=False, label="esm-2", kept=("inv_freq",)),
    encoder("esmc", "Esmc", "ForMaskedLM", segments=False),
    encoder("esmc", "Esmc", "Model", {"attention_bias": True, "mlp_bias": True}, segments=False),
    encoder("bert_generation", "BertGeneration", "Encoder", segments=False),
    decoder("bert_generation", "BertGeneration", "Decoder", segments=False),
    decoder("bert", "Bert", "LMHeadModel"),
    *(decoder(family, name) for family, name in DECODERS.items()),
    decoder("xlm_roberta_xl", "XLMRobertaXL", settings={"type_vocab_size": 2}),
    decoder("electra", "Electra", settings=NARROW),
    decoder("roformer", "RoFormer", settings=NARROW, kept=("embed_positions",)),
    decoder("rembert", "RemBert", settings={"input_embedding_size": 12, "output_embedding_size": 20}),
    encoder("xlm", "XLM", "WithLMHeadModel", XLM, segments=False),
    encoder("xlm", "XLM", "Model", XLM, segments=False),
    encoder("flaubert", "Flaubert", "WithLMHeadModel", XLM, segments=False),
    encoder("flaubert", "Flaubert", "Model", {**XLM, "gelu_activation": False}, segments=False),
    *all_heads("fnet", "FNet", padding=False),
    encoder("fnet", "FNet", "ForPreTraining", heads=PAIRS, logits="prediction_logits", padding=False),
)
