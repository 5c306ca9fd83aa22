"""Encoders with Llama's layers and windows on both sides: UltraBERT, OpenAI's privacy filter (2026)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import read_classes, write_classes
from tfkit.interop.huggingface.families.bert import renamed
from tfkit.interop.huggingface.families.llama import ENDS, ByType, EuroBert, Llama
from tfkit.interop.huggingface.families.llama4 import GptOss
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Rope, Setting, amended, with_values
from tfkit.interop.huggingface.tensors import Rule


class TwoSided(Llama):
    """Base whose config.json counts one side of a window; tfkit counts both."""

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        kind = super().over_layer(config, name)
        return {"mask": {**kind["mask"], "size": 2 * kind["mask"]["size"]}} if kind else {}

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["sliding_window"] = (config["sliding_window"] or 0) // 2 or cls.window


@register("family", "ultrabert")
class UltraBert(TwoSided, ByType, EuroBert):
    """UltraBERT (2026): EuroBERT with windows in two of three layers and two dense layers before the output."""

    heads = {
        "UltrabertForMaskedLM": {"head": {"type": "masked_lm", "activation": "gelu_tanh", "norm": None, "bias": False}},
        "UltrabertModel": {"head": "none"},
    }
    settings = amended(EuroBert.settings, max_position_embeddings=32768, rms_norm_eps=1e-6)
    head_settings = (Setting("prediction_head_size", "head.d_inner", 768),)
    rules = tuple(rule for rule in EuroBert.rules if rule != ENDS[2])
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {
        "masked_lm": renamed({"head.linear1": "head.inner", "head.linear2": "head.dense", "cls": "head.output"})
    }
    prefix, unprefixed, tied = "ultrabert.", ("head.", "cls."), {"cls.weight": "embed_tokens.weight"}
    rope, local = Rope(theta=2560000.0), Rope()
    period, window, recent = (SLIDING, SLIDING, FULL), 128, True

    @classmethod
    def recipe(cls, config: ConfigJson) -> Tree:
        """Return the `model:` section for a config, which may list windows and thetas for each layer."""
        windows, thetas = config.get("attention_windows"), config.get("rope_theta")
        if not windows or config.get("layer_types"):
            return super().recipe(config)
        types = [SLIDING if size else FULL for size in windows]
        stated: Tree = {"layer_types": types, "sliding_window": next(filter(None, windows), cls.window)}
        if isinstance(thetas, list):
            stated["rope_parameters"] = {name: {"rope_theta": theta} for name, theta in zip(types, thetas, strict=True)}
        return super().recipe(with_values(stated, config))


TAGS = 33  # number of classes if config.json does not state it


@register("family", "openai_privacy_filter")
class OpenAIPrivacyFilter(TwoSided, GptOss):
    """OpenAI's privacy filter (2026): an encoder with GPT-OSS's layers, which tags personal data."""

    base = merged(GptOss.base, {"type": "encoder"})
    heads = {
        "OpenAIPrivacyFilterForTokenClassification": {"head": {"type": "token_classifier"}},
        "OpenAIPrivacyFilterModel": {"head": "none"},
    }
    settings = amended(
        GptOss.settings, max_position_embeddings=131072, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-5
    )
    head_settings = (Setting("classifier_dropout", "head.dropout", 0.0),)
    rules = tuple(  # gates and ups are not interleaved
        replace(rule, checkpoint_layout=rule.checkpoint_layout.replace("(inner slot)", "(slot inner)"))
        for rule in (rule.of_side("encoder") for rule in GptOss.rules if rule != ENDS[2])
    )
    head_rules: ClassVar = {"token_classifier": renamed({"score": "head.output"})}
    unprefixed = ("score.",)
    rope = Rope(theta=150000.0, layout="interleaved")
    stretched = {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    listed, period, window, recent = False, (SLIDING,), 128, True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if model["head"] is not None:
            del model["head"]["tied"]
        read_classes(model, config)
        if model["head"] is not None and not any(map(config.get, ("id2label", "num_labels"))):
            model["head"]["num_classes"] = TAGS

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        write_classes(config, model)
