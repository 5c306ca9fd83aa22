"""The decoder of Llama 4 (Meta 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import ATTENTION, CHECKPOINT, ENDS, NORMS, heads_of
from tfkit.interop.huggingface.families.sparse import (
    APART,
    BASE,
    FEEDFORWARD,
    SHELL,
    STACKS,
    Sparse,
    expert_settings,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import FULL, SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, look
from tfkit.interop.huggingface.tensors import Rule

CHUNKED = "chunked_attention"  # layer type with rotary positions and chunks
BLOCK = f"{CHECKPOINT}.feed_forward"
PARTS = ("gate", "up", "down")


@register("family", "llama4")
class Llama4(Sparse):
    """Llama 4: three chunked rotary layers for each full layer without positions; router weights scale expert input."""

    model_types = ("llama4_text",)
    varying = ("position", "layer.feedforward")
    base = merged(BASE, {"layer.feedforward": {"router": {"type": "sigmoid"}, "weigh": "input", "num_shared": 1}})
    heads = heads_of("Llama4")
    settings = (*SHELL, *expert_settings("num_local_experts", d_ff="intermediate_size"))
    fixed = (Fixed("router_jitter_noise", (0.0, 0, None)),)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        *(Rule(f"{BLOCK}.{part}_proj.weight", f"{FEEDFORWARD}.{part}.weight") for part in PARTS),
        *(
            Rule(f"{BLOCK}.shared_expert.{part}_proj.weight", f"{FEEDFORWARD}.shared_expert.{part}.weight")
            for part in PARTS
        ),
        Rule(f"{BLOCK}.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
        Rule(
            f"{BLOCK}.experts.gate_up_proj",
            (f"{STACKS}.gate.weight", f"{STACKS}.up.weight"),
            "expert width (slot inner) -> slot expert inner width",
            APART,
            axes={"slot": 2},
        ),
        Rule(f"{BLOCK}.experts.down_proj", f"{STACKS}.down.weight", "expert inner out -> expert out inner"),
    )
    rope = Rope(theta=500000.0, layout="interleaved")
    dense_key = "intermediate_size_mlp"

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        every = int(config.get("no_rope_layer_interval", 4))
        turns = config.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
        words = [CHUNKED if turn else FULL for turn in turns]
        if (config.get("layer_types") or words) != words:
            raise DataError(
                "config.json: layer_types, no_rope_layers: expected chunks exactly in the layers with rotary positions"
            )
        return [SLIDING if turn else FULL for turn in turns]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == FULL:
            return {}
        kind: Tree = {"mask": {"type": "chunk", "size": config.get("attention_chunk_size", 8192)}}
        if config.get("use_qk_norm", True):
            kind["attention"] = {"qk_norm": {"type": "rms_norm", "affine": False}, "qk_norm_at": "rotated"}
        return kind

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        if name == SLIDING:
            return super().position(config, name)
        if not config.get("attn_temperature_tuning", True):
            return None
        beta, length = float(config.get("attn_scale", 0.1)), int(config.get("floor_scale", 8192))
        return {"type": "log_temperature", "beta": beta, "length": length, "offset": 1}

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        step = int(config.get("interleave_moe_layer_step", 1))
        named = config.get("moe_layers")
        return (layer + 1) % step != 0 if named is None else layer not in named

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["moe_layers"] = [layer for layer, each in enumerate(dense) if not each]

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        sizes = {layer["mask"]["size"] for layer in layers if layer["mask"]}
        if len(sizes) > 1:
            raise DataError("config.json cannot express chunks of several sizes")
        turns = [bool(layer["mask"]) for layer in layers]
        config["layer_types"] = [CHUNKED if turn else FULL for turn in turns]
        config["no_rope_layers"] = [int(turn) for turn in turns]
        config["attention_chunk_size"] = next(iter(sizes), None)
        config["use_qk_norm"] = any(look(layer, "attention.qk_norm") for layer in layers)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        turning = [layer for layer in layers if look(layer, "position.type") == "rotary"]
        super().write_positions(config, turning)
        still = next((layer["position"] for layer in layers if layer not in turning and layer["position"]), None)
        config["attn_temperature_tuning"] = still is not None
        if still is not None:
            config |= {"attn_scale": still["beta"], "floor_scale": still["length"]}
