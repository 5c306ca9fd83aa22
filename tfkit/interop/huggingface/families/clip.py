"""The text encoders of CLIP (Radford et al. 2021), SigLIP (Zhai et al. 2023), and of models of images or sounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.bert import POOLER, PRE_NORM, Bert, BertLike, renamed
from tfkit.interop.huggingface.families.gemma import TANH
from tfkit.interop.huggingface.families.roberta import Roberta
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layers.{layer}"
NAMES = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.output",
    "layer_norm1": "attention_norm",
    "mlp.fc1": "feedforward.up",
    "mlp.fc2": "feedforward.down",
    "layer_norm2": "feedforward_norm",
}
OLD_END = 2  # wrong end token id in early CLIP files; the actual end token has the last id


@register("family", "clip_text")
class ClipText(BertLike):
    """CLIP's text encoder: causal; the end token's state is the text embedding."""

    model_types: ClassVar[tuple[str, ...]] = ("clip_text_model",)
    base: ClassVar[ModelSection] = merged(BertLike.base, {**PRE_NORM, "mask": "causal"})
    heads: ClassVar[Mapping[str, ModelSection]] = {
        "CLIPTextModel": {"head": "none", "heads": {"pooler": {"type": "pooled", "pool": "last"}}},
        "CLIPTextModelWithProjection": {"head": {"type": "pooled", "pool": "last", "bias": False}},
    }
    settings = amended(
        (row for row in BertLike.settings if "dropout" not in row.config_key),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        without=("type_vocab_size",),
        max_position_embeddings=77,
        hidden_act="quick_gelu",
        layer_norm_eps=1e-5,
    )
    fixed = ()
    rules = (
        Rule("embeddings.token_embedding.weight", "encoder.embedding.tokens.weight"),
        Rule("embeddings.position_embedding.weight", "encoder.position.0.table.weight"),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in NAMES.items()}),
        *renamed({"final_layer_norm": "encoder.final_norm"}),
    )
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {"pooled": renamed({"text_projection": "head.dense"})}
    prefix, unprefixed = "text_model.", ("text_projection.",)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        end = config.get("eos_token_id", 49407)
        head = "heads.pooler" if model["head"] is None else "head"
        override(model, {f"{head}.until": model["vocab_size"] - 1 if end == OLD_END else end})
        if model["head"] is not None:
            override(model, {"head.d_output": config.get("projection_dim", 512)})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["eos_token_id"] = look(model, "heads.pooler.until", look(model, "head.until"))
        if model["head"]:
            config["projection_dim"] = look(model, "head.d_output")


@register("family", "siglip_text")
class SiglipText(ClipText):
    """SigLIP's text encoder: bidirectional; the last position's state, even of padding, is the text embedding."""

    model_types = ("siglip_text_model",)
    base: ClassVar = merged(BertLike.base, PRE_NORM)
    heads: ClassVar = {"SiglipTextModel": {"head": "none", "heads": {"pooler": {"type": "pooled", "pool": "last"}}}}
    settings = amended(
        ClipText.settings,
        Setting("hidden_act", "layer.feedforward.activation", "gelu_pytorch_tanh", TANH),
        max_position_embeddings=64,
        layer_norm_eps=1e-6,
    )
    head_rules: ClassVar = {"none": renamed({"head": "heads.pooler.dense"})}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"heads.pooler.d_output": config.get("projection_size") or model["d_model"]})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["projection_size"] = look(model, "heads.pooler.d_output")


@register("family", "siglip2_text")
class Siglip2Text(SiglipText):
    """SigLIP 2's text encoder (Tschannen et al. 2025): SigLIP's."""

    model_types = ("siglip2_text_model",)
    heads: ClassVar = {"Siglip2TextModel": SiglipText.heads["SiglipTextModel"]}


@register("family", "metaclip_2_text")
class MetaClip2Text(ClipText):
    """MetaCLIP 2's text encoder (Chuang et al. 2025): CLIP's."""

    model_types = ("metaclip_2_text_model",)
    heads: ClassVar = {name.replace("CLIP", "MetaClip2"): over for name, over in ClipText.heads.items()}


@register("family", "clipseg_text")
class ClipSegText(ClipText):
    """CLIPSeg's text encoder (Lüddecke and Ecker 2021): CLIP's."""

    model_types = ("clipseg_text_model",)
    heads: ClassVar = {"CLIPSegTextModel": ClipText.heads["CLIPTextModel"]}


@register("family", "xclip_text")
class XClipText(ClipText):
    """X-CLIP's text encoder (Ni et al. 2022): CLIP's; the end token has the last id, whatever config.json states."""

    model_types = ("xclip_text_model",)
    heads: ClassVar = {"XCLIPTextModel": ClipText.heads["CLIPTextModel"]}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        override(model, {"heads.pooler.until": model["vocab_size"] - 1})


@register("family", "chinese_clip_text")
class ChineseClipText(Bert):
    """Chinese CLIP's text encoder (Yang et al. 2022): BERT."""

    model_types = ("chinese_clip_text_model",)
    heads: ClassVar = {"ChineseCLIPTextModel": POOLER}


@register("family", "align_text")
class AlignText(Bert):
    """ALIGN's text encoder (Jia et al. 2021): BERT."""

    model_types = ("align_text_model",)
    heads: ClassVar = {"AlignTextModel": POOLER}


@register("family", "clap_text")
class ClapText(Roberta):
    """CLAP's text encoder (Wu et al. 2022): RoBERTa."""

    model_types = ("clap_text_model",)
    heads: ClassVar = {"ClapTextModel": POOLER}
    settings = amended(Roberta.settings, max_position_embeddings=514, type_vocab_size=1)
