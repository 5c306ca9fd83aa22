"""Base of decoders with experts: Llama with experts in all or some layers, and the rules for their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.llama import ATTENTION, CHECKPOINT, ENDS, GATED, LAYER, NORMS, Llama
from tfkit.interop.huggingface.family import merged, value_of
from tfkit.interop.huggingface.layer_types import KINDS, layers_of, set_kinds
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

FEEDFORWARD = f"{LAYER}.feedforward"
STACKS = f"{FEEDFORWARD}.experts"
TOGETHER = "expert (slot inner) width -> slot expert inner width"  # an expert's gate and up in one matrix
APART = "expert inner width -> 1 expert inner width"
# Llama's settings except the feed-forward's
SHELL = amended(Llama.settings, without=("intermediate_size", "hidden_act", "mlp_bias"))
EXPERTS: Tree = {"type": "experts", "expert": {"type": "glu", "bias": False}, "router": {"type": "softmax"}}
BASE = merged(Llama.base, {"layer.feedforward": EXPERTS})
# DeepSeek-V3's router: sigmoid scores with a selection bias
SIGMOID: Tree = {"router": {"type": "sigmoid", "selection_bias": True}}


def expert_settings(
    num_experts: str = "num_experts",
    active: str = "num_experts_per_tok",
    d_ff: str = "moe_intermediate_size",
    activation: str = "hidden_act",
) -> tuple[Setting, ...]:
    """Return the settings that all families with experts share, with the family's key names."""
    return (
        Setting(num_experts, "layer.feedforward.num_experts", also=("num_experts", "num_local_experts")),
        Setting(active, "layer.feedforward.num_active", also=("num_experts_per_tok",)),
        Setting(d_ff, "layer.feedforward.expert.d_ff"),
        Setting(activation, "layer.feedforward.expert.activation", "silu", ACTIVATIONS),
    )


def expert_rules(
    block: str = "mlp", gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj", router: str = "gate"
) -> tuple[Rule, ...]:
    """Return the rules for the router and its experts: separate, or stacked with gate and up fused, as in memory."""
    each = f"{CHECKPOINT}.{block}.experts.{{expert}}"
    both = (f"{STACKS}.gate.weight", f"{STACKS}.up.weight")
    routers = (
        Rule(f"{CHECKPOINT}.{name}.{router}.{{kind}}", f"{FEEDFORWARD}.router.projection.{{kind}}")
        for name in dict.fromkeys((block, "mlp"))
    )
    return (
        *spellings(*routers),
        Rule(f"{each}.{gate}.weight", f"{STACKS}.gate.weight"),
        Rule(f"{each}.{up}.weight", f"{STACKS}.up.weight"),
        Rule(f"{each}.{down}.weight", f"{STACKS}.down.weight"),
        *read_only(
            Rule(f"{CHECKPOINT}.mlp.experts.gate_up_proj", both, TOGETHER, APART, axes={"slot": 2}),
            Rule(f"{CHECKPOINT}.mlp.experts.down_proj", f"{STACKS}.down.weight"),
        ),
    )


def shared_rules(name: str = "shared_experts") -> tuple[Rule, ...]:
    """Return the rules for the shared expert."""
    return tuple(
        Rule(f"{CHECKPOINT}.mlp.{name}.{part}_proj.{{kind}}", f"{FEEDFORWARD}.shared_expert.{part}.{{kind}}")
        for part in ("gate", "up", "down")
    )


def selection_rules(*blocks: str) -> tuple[Rule, ...]:
    """Return the rules for the selection bias. Export uses the first block; the others are only read."""
    return spellings(
        *(
            Rule(f"{CHECKPOINT}.{block}.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias")
            for block in blocks
        )
    )


class Sparse(Llama):
    """Llama with experts; `is_dense` selects the layers that have a plain feed-forward instead."""

    base = BASE
    varying: ClassVar[tuple[str, ...]] = ("layer.feedforward",)
    settings = SHELL
    rules = (*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules())
    dense_key: ClassVar[str] = "intermediate_size"  # width of a plain feed-forward
    shared_key: ClassVar[str] = ""  # key of the number of shared experts, which form one wide expert

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        count, experts = model["num_layers"], model["layer"]["feedforward"]
        if config.get(cls.shared_key):
            experts["num_shared"] = int(config[cls.shared_key])
        if "shared_expert" in experts:
            experts["shared_expert"] = {**experts["expert"], **experts["shared_expert"]}
        dense = [cls.is_dense(config, layer) for layer in range(count)]
        if not any(dense):
            return
        plain = {**experts["expert"], "d_ff": config[cls.dense_key]}
        if all(dense):
            model["layer"]["feedforward"] = plain
            return
        kinds = ["dense" if each else "sparse" for each in dense]
        windows = model.get("layers", {})
        if windows:
            types = cls.types(config, count)
            kinds = [f"{KINDS[name]}+{kind}" for name, kind in zip(types, kinds, strict=True)]
        set_kinds(model, kinds, {})
        model["layers"] = {**windows, "dense": {"feedforward": plain}, "sparse": {}}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if cls.shared_key:
            config[cls.shared_key] = value_of(model, "layer.feedforward.num_shared", 0)
        layers = layers_of(model)
        dense = [look(layer, "feedforward.type") != "experts" for layer in layers]
        cls.write_dense(config, dense)
        widths = [look(layer, "feedforward.d_ff") for layer, plain in zip(layers, dense, strict=True) if plain]
        if widths:
            config[cls.dense_key] = widths[0]

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        """True if the layer has a plain feed-forward."""
        return False

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        """Record in `config` which layers have a plain feed-forward."""


class FirstDense(Sparse):
    """Base whose first `first_k_dense_replace` layers, or those that config.json lists, have a plain feed-forward."""

    dense_layers: ClassVar[int] = 0  # default of first_k_dense_replace
    listed_dense: ClassVar[bool] = False  # True if config.json may list the dense layers

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        if cls.listed_dense and config.get("mlp_layer_types"):
            return bool(config["mlp_layer_types"][layer] == "dense")
        return layer < int(config.get("first_k_dense_replace", cls.dense_layers))

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        if cls.listed_dense:
            config["mlp_layer_types"] = ["dense" if each else "sparse" for each in dense]
        # for any other set of dense layers, the config reads back differently, so the family does not match
        config["first_k_dense_replace"] = list(dense).index(False) if False in dense else len(dense)
