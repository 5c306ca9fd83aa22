"""Mistral (Jiang et al. 2023), Ministral, OLMo, EXAONE and Granite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    GATED,
    NORMS,
    ByType,
    Llama,
    LocalTurns,
    head_width,
    heads_of,
    norm_rules,
    sandwich_rules,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Factor, Power, Rope, Setting, amended, first

SIZES = (
    Setting("max_position_embeddings", "max_length", 131072),
    Setting("num_key_value_heads", "layer.attention.num_kv_heads", 8),
)


@register("family", "mistral")
class Mistral(Llama):
    """Mistral: Llama with a window in all layers."""

    heads = heads_of("Mistral")
    settings = amended(Llama.settings, *SIZES, without=("attention_bias", "mlp_bias"))
    period = (SLIDING,)
    window: ClassVar[int | None] = 4096


@register("family", "ministral")
class Ministral(Mistral):
    """Ministral: Mistral whose config.json lists the windowed layers."""

    heads = heads_of("Ministral")
    listed = True


class Growing(Llama):
    """Base whose scores are scaled by the logarithm of the position, if rope_parameters say so."""

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        turned = super().position(config, name)
        parameters = config.get("rope_parameters") or cls.stretched
        beta = parameters.get("llama_4_scaling_beta")
        if not beta:
            return turned
        length = parameters["original_max_position_embeddings"]
        return [turned, {"type": "log_temperature", "beta": float(beta), "length": length}]

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        position = layers[0]["position"]
        turned, *grown = position if isinstance(position, list) else [position]
        super().write_positions(config, [{**layers[0], "position": turned}])
        for part in grown:
            config["rope_parameters"]["llama_4_scaling_beta"] = part["beta"]
            config["rope_parameters"]["original_max_position_embeddings"] = part["length"]


@register("family", "ministral3")
class Ministral3(Growing, Mistral):
    """Ministral 3: YaRN rotary positions; scores scaled by the logarithm of the position."""

    heads = heads_of("Ministral3")
    settings = amended(Mistral.settings, max_position_embeddings=262144, head_dim=128, rms_norm_eps=1e-5)
    rope = Rope(theta=1000000.0)
    window = None
    stretched = {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


SETTINGS = amended(Llama.settings, without=("mlp_bias", "head_dim"))


@register("family", "olmo")
class Olmo(Llama):
    """OLMo: norms without weights; clipped queries, keys and values."""

    base = merged(Llama.base, {"layer.norm": {"type": "layer_norm", "affine": False, "eps": 1e-5}})
    heads = heads_of("Olmo")
    settings = amended(SETTINGS, Setting("clip_qkv", "layer.attention.clip", None), without=("rms_norm_eps",))


@register("family", "olmo2")
class Olmo2(Llama):
    """OLMo 2: norms of the sublayer outputs only; query and key norms over all heads."""

    base = merged(
        Llama.base, {"layer.residual.type": "branch_norm", "layer.attention": {"qk_norm": True, "qk_norm_at": "width"}}
    )
    heads = heads_of("Olmo2")
    settings = amended(SETTINGS, rms_norm_eps=1e-5)
    rules = (
        *ENDS,
        *norm_rules(attention_norm="post_attention_layernorm", feedforward_norm="post_feedforward_layernorm"),
        *ATTENTION,
        *GATED,
    )


@register("family", "olmo3")
class Olmo3(ByType, Olmo2):
    """OLMo 3: three windowed layers for each full layer; only full layers have scaled rotary positions."""

    heads = heads_of("Olmo3")
    period, window = (SLIDING, SLIDING, SLIDING, FULL), 4096
    rope, local = Rope(theta=500000.0), Rope(theta=500000.0)


@register("family", "exaone4")
class Exaone4(LocalTurns, Olmo2):
    """EXAONE 4: norms of sublayer outputs, queries and keys; layers without a window have no positions."""

    base = merged(Olmo2.base, {"layer.attention.qk_norm_at": "heads"})
    heads = heads_of("Exaone4")
    settings = amended(
        Llama.settings, without=("attention_bias", "mlp_bias"), num_key_value_heads=32, rms_norm_eps=1e-5
    )

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        pattern = first(config.get("sliding_window_pattern"), 4)
        if isinstance(pattern, str):
            return tuple(SLIDING if letter == "L" else FULL for letter in pattern)
        return (*[SLIDING] * (pattern - 1), FULL)

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        types = super().types(config, count)
        is_pattern = isinstance(config.get("sliding_window_pattern"), str) and not config.get("layer_types")
        return [*types[:-1], FULL] if is_pattern else types  # the last layer is never windowed


MULTIPLIERS = (
    Factor("embedding_multiplier", "embedding.scale", 1.0),
    Factor("residual_multiplier", "layer.residual.branch_scale", 1.0),
    Setting("attention_multiplier", "layer.attention.scale", 1.0),
)


@register("family", "granite")
class Granite(Llama):
    """Granite: Llama with factors on embeddings, scores, sublayer outputs and logits."""

    heads = heads_of("Granite")
    settings = amended(Llama.settings, *MULTIPLIERS, without=("head_dim",))
    head_settings: ClassVar[tuple[Setting, ...]] = (Power("logits_scaling", "head.scale", 1.0, power=-1.0),)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        """Write the attention scale, which a recipe may omit if it is the default for the head width.

        Raises DataError if the head has no logit scale, since the implementation always divides the logits by a scale.
        """
        super().to_config(config, model)
        if config.get("logits_scaling", 1) is None:
            raise DataError("config.json cannot express logits without a scale")
        if config["attention_multiplier"] is None:
            config["attention_multiplier"] = head_width(model) ** -0.5


@register("family", "hyperclovax")
class HyperClovaX(Granite):
    """HyperCLOVA X: Granite with norms before and after each sublayer."""

    varying = ("layer.residual",)
    heads = heads_of("HyperCLOVAX")
    settings = amended(Llama.settings, *MULTIPLIERS, Setting("attention_multiplier", "layer.attention.scale", None))
    head_settings = (Factor("logits_scaling", "head.scale", 1.0),)
    rules = (
        *(rule for rule in Llama.rules if rule not in NORMS),
        *sandwich_rules("post_norm1", "post_attention_layernorm", "post_norm2"),
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        layout = "sandwich" if config.get("use_post_norm", True) else "pre_norm"
        override(model, {"layer.residual": {**model["layer"]["residual"], "type": layout}})  # keeps branch_scale
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["use_post_norm"] = value_of(model, "layer.residual.type") == "sandwich"
