"""Language models of vision-language models, without images: the places of text are equal along all axes."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.deepseek import Glm4Moe
from tfkit.interop.huggingface.families.gated import HunYuanDense
from tfkit.interop.huggingface.families.gemma import Cohere2
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    GATED,
    NORMS,
    ByType,
    Llama,
    Qwen2,
    Qwen3,
    types_of,
)
from tfkit.interop.huggingface.families.mistral import Granite
from tfkit.interop.huggingface.families.mixtral import Qwen3Moe, expert_rules_in_memory, selection_rules, shared_rules
from tfkit.interop.huggingface.families.phi import Glm4
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import (
    FULL,
    SLIDING,
    ConfigJson,
    Rope,
    Setting,
    amended,
    first,
    look,
    with_values,
)


def text_model_of(name: str) -> dict[str, ModelSection]:
    """Return the class of the language model, which has no head."""
    return {f"{name}TextModel": {"head": "none"}}


class Sectioned(Llama):
    """Base whose pairs of channels are rotated by time, height or width, which are equal in text."""

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        parameters = look(config, "rope_parameters") or look(config, "rope_scaling") or {}
        if first(parameters.get("rope_type"), parameters.get("type")) == "mrope":
            config = with_values({"rope_parameters": {**parameters, "rope_type": "default"}}, config)
        return super().position(config, name)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_positions(config, layers)
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        pairs = int(width * layers[0]["position"]["fraction"]) // 2
        config["rope_parameters"]["mrope_section"] = [pairs - pairs // 3 * 2, pairs // 3, pairs // 3]


@register("family", "qwen2_vl_text")
class Qwen2VLText(Sectioned, Qwen2):
    """Qwen2-VL's language model (2024): Qwen 2."""

    heads = text_model_of("Qwen2VL")
    settings = amended(Qwen2.settings, num_key_value_heads=8, rms_norm_eps=1e-5)
    rope, recent = Rope(theta=1000000.0), True


@register("family", "qwen2_5_vl_text")
class Qwen25VLText(Qwen2VLText):
    """Qwen2.5-VL's language model (2025): Qwen 2."""

    heads = text_model_of("Qwen2_5_VL")


@register("family", "qwen3_vl_text")
class Qwen3VLText(Sectioned):
    """Qwen3-VL's language model (2025): Qwen 3."""

    base = Qwen3.base
    heads = text_model_of("Qwen3VL")
    settings = amended(
        Llama.settings, without=("mlp_bias",), max_position_embeddings=128000, num_key_value_heads=32, head_dim=128
    )
    rope, recent = Rope(theta=500000.0), True


@register("family", "glm4v_text")
class Glm4VText(Sectioned, Glm4):
    """GLM-4.1V's language model (2025): GLM-4-0414."""

    base = merged(Glm4.base, {"layer.attention.bias": ["query", "key", "value"]})
    heads = text_model_of("Glm4v")
    settings = amended(
        Glm4.settings, without=("attention_bias", "head_dim"), max_position_embeddings=32768, rms_norm_eps=1e-5
    )
    rope, recent = Rope(layout="interleaved", partial=True), True


@register("family", "glm4v_moe_text")
class Glm4VMoeText(Sectioned, Glm4Moe):
    """GLM-4.5V's language model (2025): GLM-4.5."""

    heads = text_model_of("Glm4vMoe")
    settings = amended(Glm4Moe.settings, without=("use_qk_norm",), max_position_embeddings=65536, attention_bias=True)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules_in_memory(), *shared_rules()),
        *selection_rules("mlp.gate"),
    )
    recent = True


@register("family", "qwen3_vl_moe_text")
class Qwen3VLMoeText(Sectioned, Qwen3Moe):
    """Qwen3-VL-MoE's language model (2025): Qwen3-MoE with normalized weights."""

    base = merged(Qwen3Moe.base, {"layer.feedforward.router.normalized": True})
    heads = text_model_of("Qwen3VLMoe")
    settings = amended(Qwen3Moe.settings, without=("norm_topk_prob",), max_position_embeddings=128000)
    fixed = ()
    rules = (*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules_in_memory())
    rope, recent = Rope(theta=500000.0), True


@register("family", "hunyuan_vl_text")
class HunYuanVLText(Sectioned, HunYuanDense):
    """HunyuanOCR's language model (Tencent 2025): Hunyuan, dense."""

    heads = text_model_of("HunYuanVL")
    recent = True


@register("family", "granite_docling_text")
class GraniteDoclingText(Granite):
    """Granite Docling's language model (IBM 2026): Granite."""

    heads = text_model_of("GraniteDocling")
    settings = amended(
        Granite.settings,
        max_position_embeddings=32768,
        num_key_value_heads=4,
        rms_norm_eps=1e-5,
        embedding_multiplier=12.0,
        residual_multiplier=0.263,
        attention_multiplier=0.015625,
    )
    recent = True


@register("family", "cohere_compass_text")
class CohereCompassText(ByType, Cohere2):
    """North Micro Vision's language model (Cohere 2026): Cohere 2 with a rotation, or none, for each type of layer."""

    heads = {**text_model_of("CohereCompass"), "CohereCompassForCausalLM": {"head": {"type": "language_model"}}}
    head_settings = (Setting("logit_scale", "head.scale", None),)
    rope, local, period, recent = Rope(), Rope(), (FULL,), True

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return cls.period

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        still = look(config, f"rope_parameters.{name}", cls) is None
        return None if still else super().position(config, name)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        places = dict(zip(types_of(layers), (layer["position"] for layer in layers), strict=True))
        placed = next(part for part in places.values() if part)
        parts = {name: places.get(name, placed) for name in (FULL, SLIDING)}
        config["rope_parameters"] = {name: part and cls.rope.write(part, config) for name, part in parts.items()}
