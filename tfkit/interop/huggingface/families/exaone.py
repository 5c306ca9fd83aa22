"""EXAONE 4.0 (LG AI Research 2025)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import Llama, LocalTurns, heads_of
from tfkit.interop.huggingface.families.olmo import Olmo2
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import first
from tfkit.interop.huggingface.settings import ConfigJson, amended


@register("family", "exaone4")
class Exaone4(LocalTurns, Olmo2):
    """EXAONE 4: norms of sublayer outputs, queries and keys; layers without a window have no positions."""

    model_types = ("exaone4",)
    base = merged(Olmo2.base, {"layer.attention.qk_norm_at": "heads"})
    heads = heads_of("Exaone4")
    settings = amended(
        Llama.settings,
        without=("attention_bias", "mlp_bias"),
        num_key_value_heads=32,
        rms_norm_eps=1e-5,
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
