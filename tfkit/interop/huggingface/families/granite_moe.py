"""Granite 3 with experts (IBM 2024)."""

from __future__ import annotations

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.granite import MULTIPLIERS, Granite, write_scale
from tfkit.interop.huggingface.families.llama import ATTENTION, CHECKPOINT, ENDS, NORMS, heads_of
from tfkit.interop.huggingface.families.sparse import (
    APART,
    BASE,
    FEEDFORWARD,
    SHELL,
    STACKS,
    TOGETHER,
    Sparse,
    expert_settings,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import ConfigJson, amended, look
from tfkit.interop.huggingface.tensors import Rule, read_only

BLOCK = f"{CHECKPOINT}.block_sparse_moe"
BOTH = (f"{STACKS}.gate.weight", f"{STACKS}.up.weight")
SHARED = f"{FEEDFORWARD}.shared_expert"


@register("family", "granitemoe")
class GraniteMoe(Sparse):
    """Granite with experts: Granite's factors, a softmax over the selected experts."""

    model_types = ("granitemoe",)
    base = merged(BASE, {"layer.feedforward.router.over": "chosen"})
    heads = heads_of("GraniteMoe")
    settings = (
        *amended(SHELL, *MULTIPLIERS, without=("head_dim",)),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    head_settings = Granite.head_settings
    rules = (
        *(*ENDS, *NORMS, *ATTENTION),
        Rule(f"{BLOCK}.router.layer.weight", f"{FEEDFORWARD}.router.projection.weight"),
        Rule(f"{BLOCK}.input_linear.weight", BOTH, TOGETHER, APART, axes={"slot": 2}),
        Rule(f"{BLOCK}.output_linear.weight", f"{STACKS}.down.weight"),
        *read_only(
            Rule(f"{BLOCK}.router.weight", f"{FEEDFORWARD}.router.projection.weight"),
            Rule(f"{BLOCK}.experts.gate_up_proj", BOTH, TOGETHER, APART, axes={"slot": 2}),
            Rule(f"{BLOCK}.experts.down_proj", f"{STACKS}.down.weight"),
        ),
    )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        write_scale(config, model)


@register("family", "granitemoeshared")
class GraniteMoeShared(GraniteMoe):
    """Granite with routed experts and a shared expert."""

    model_types = ("granitemoeshared",)
    heads = heads_of("GraniteMoeShared")
    rules = (
        *GraniteMoe.rules,
        Rule(f"{CHECKPOINT}.shared_mlp.input_linear.weight", (f"{SHARED}.gate.weight", f"{SHARED}.up.weight")),
        Rule(f"{CHECKPOINT}.shared_mlp.output_linear.weight", f"{SHARED}.down.weight"),
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("shared_intermediate_size"):
            override(model, {"layer.feedforward.shared_expert.d_ff": config["shared_intermediate_size"]})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["shared_intermediate_size"] = look(value_of(model, "layer.feedforward.shared_expert") or {}, "d_ff", 0)
