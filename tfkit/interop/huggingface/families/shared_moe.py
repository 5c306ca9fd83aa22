"""Softmax routers with a shared expert: Hunyuan-Large (Tencent 2024), ERNIE 4.5 (Baidu 2025), Aria (Rhymes 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    CHECKPOINT,
    ENDS,
    GATED,
    NORMS,
    attention_rules,
    heads_of,
)
from tfkit.interop.huggingface.families.sparse import (
    APART,
    BASE,
    FEEDFORWARD,
    SHELL,
    STACKS,
    Sparse,
    expert_rules,
    expert_settings,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, amended
from tfkit.interop.huggingface.tensors import Rule, spellings

GATE_UP = (f"{STACKS}.gate.weight", f"{STACKS}.up.weight")
SLOTS, TWO = "slot expert inner width", {"slot": 2}
UNSTACKED = "1 expert -> expert"


@register("family", "hunyuan_v1_moe")
class HunyuanMoe(Sparse):
    """Hunyuan-Large: norms of rotated queries and keys, a shared expert."""

    model_types = ("hunyuan_v1_moe",)
    base = merged(
        BASE,
        {
            "layer": {
                "attention": {"qk_norm": True, "qk_norm_at": "rotated"},
                "feedforward": {"router": {"normalized": True}, "num_shared": 1},
            }
        },
    )
    heads = heads_of("HunYuanMoEV1")
    settings = (*SHELL, *expert_settings(active="moe_topk", d_ff="intermediate_size"))
    rules = (
        *(*ENDS, *NORMS, *attention_rules(norms=("query_layernorm", "key_layernorm"))),
        *(*expert_rules(router="gate.wg"), *shared_rules("shared_mlp")),
    )
    rope = Rope(alpha=True)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        experts = model["layer"]["feedforward"]
        for key in ("num_experts", "num_active"):
            experts[key] = _agreed(experts[key], key)
        super().to_recipe(model, config)


def _agreed(value: object, key: str) -> object:
    """Return a number that config.json may list once per layer. Raise DataError if it differs between layers."""
    if not isinstance(value, list):
        return value
    if len(set(value)) > 1:
        raise DataError(f"config.json: {key} differs between layers ({value}), which is not supported")
    return value[0]


@register("family", "ernie4_5_moe")
class Ernie45Moe(Sparse):
    """ERNIE 4.5 with experts in some layers: softmax scores with a selection bias."""

    model_types = ("ernie4_5_moe",)
    base = merged(BASE, {"layer.feedforward.router": {"selection_bias": True, "normalized": True}})
    heads = heads_of("Ernie4_5_Moe")
    settings = (
        *amended(SHELL, without=("attention_bias", "attention_dropout")),
        *expert_settings("moe_num_experts", "moe_k"),
    )
    fixed = (Fixed("use_bias", (False,)),)
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules()),
        *spellings(
            *(
                Rule(f"{CHECKPOINT}.{name}.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias", UNSTACKED)
                for name in ("mlp.moe_statics", "mlp.gate.moe_statics")
            )
        ),
    )
    rope, ties = Rope(theta=500000.0, layout="interleaved"), True
    shared_key = "moe_num_shared_experts"

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        last = config.get("moe_layer_end_index", -1)
        last = config["num_hidden_layers"] - 1 if last is None or last == -1 else last
        inside = config.get("moe_layer_start_index", 1) <= layer <= last
        return not inside or (layer + 1) % int(config.get("moe_layer_interval", 1)) != 0

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        sparse = [layer for layer, each in enumerate(dense) if not each]
        steps = {after - before for before, after in pairwise(sparse)}
        config["moe_layer_interval"] = steps.pop() if len(steps) == 1 else 1
        config["moe_layer_start_index"] = sparse[0] if sparse else len(dense)
        config["moe_layer_end_index"] = sparse[-1] if sparse else -1


@register("family", "aria_text")
class AriaText(Sparse):
    """Aria's decoder: a softmax over the selected experts, transposed expert weights."""

    model_types = ("aria_text",)
    base = merged(BASE, {"layer.feedforward.router.over": "chosen"})
    heads = heads_of("AriaText")
    settings = (
        *SHELL,
        *amended(expert_settings("moe_num_experts", "moe_topk", "intermediate_size"), without=("hidden_act",)),
        Setting("moe_num_shared_experts", "layer.feedforward.num_shared", 2),
    )
    # hidden_act would affect only the shared expert
    fixed = (Fixed("mlp_bias", (False,)), Fixed("hidden_act", ("silu", "swish")))
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *shared_rules()),
        Rule(f"{CHECKPOINT}.mlp.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
        *spellings(
            *(
                Rule(
                    f"{CHECKPOINT}.mlp.experts.{name}",
                    GATE_UP,
                    "expert width (slot inner) -> " + SLOTS,
                    APART,
                    axes=TWO,
                )
                for name in ("fc1.weight", "gate_up_proj")
            )
        ),
        *spellings(
            *(
                Rule(
                    f"{CHECKPOINT}.mlp.experts.{name}", f"{STACKS}.down.weight", "expert inner out -> expert out inner"
                )
                for name in ("fc2.weight", "down_proj")
            )
        ),
    )
