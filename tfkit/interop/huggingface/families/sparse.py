"""What the decoders with experts have in common: Llama's shell, experts in all layers or some, and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tfkit.interop.huggingface.families.llama import ATTENTION, ENDS, GATED, LAYER, NORMS, THEIRS, Llama
from tfkit.interop.huggingface.family import Tree, laid, spelled
from tfkit.interop.huggingface.layer_types import KINDS, lay_kinds, spelled_layers
from tfkit.interop.huggingface.settings import ACTIVATIONS, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule, read_only, spellings

FEEDFORWARD = f"{LAYER}.feedforward"
STACKS = f"{FEEDFORWARD}.experts"
TOGETHER = "expert (slot inner) width -> slot expert inner width"  # gate and up of an expert in one matrix
APART = "expert inner width -> 1 expert inner width"
# Llama's settings but those of its feed-forward
SHELL = amended(Llama.settings, without=("intermediate_size", "hidden_act", "mlp_bias"))
EXPERTS: Tree = {"type": "experts", "expert": {"type": "glu", "bias": False}, "router": {"type": "softmax"}}
BASE = laid(Llama.base, {"layer.feedforward": EXPERTS})
# scores by a sigmoid, chosen with a bias that does not weigh
SIGMOID: Tree = {"router": {"type": "sigmoid", "selection_bias": True}}


def expert_settings(
    num_experts: str = "num_experts",
    active: str = "num_experts_per_tok",
    d_ff: str = "moe_intermediate_size",
    activation: str = "hidden_act",
) -> tuple[Setting, ...]:
    """The settings that every family with experts has, under its names."""
    return (
        Setting(num_experts, "layer.feedforward.num_experts", also=("num_experts", "num_local_experts")),
        Setting(active, "layer.feedforward.num_active", also=("num_experts_per_tok",)),
        Setting(d_ff, "layer.feedforward.expert.d_ff"),
        Setting(activation, "layer.feedforward.expert.activation", "silu", ACTIVATIONS),
    )


def expert_rules(
    block: str = "mlp", gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj", router: str = "gate"
) -> tuple[Rule, ...]:
    """A router and its experts, each on its own or, as in memory, stacked with gate and up together."""
    each = f"{THEIRS}.{block}.experts.{{expert}}"
    both = (f"{STACKS}.gate.weight", f"{STACKS}.up.weight")
    routers = (
        Rule(f"{THEIRS}.{name}.{router}.{{kind}}", f"{FEEDFORWARD}.router.projection.{{kind}}")
        for name in dict.fromkeys((block, "mlp"))
    )
    return (
        *spellings(*routers),
        Rule(f"{each}.{gate}.weight", f"{STACKS}.gate.weight"),
        Rule(f"{each}.{up}.weight", f"{STACKS}.up.weight"),
        Rule(f"{each}.{down}.weight", f"{STACKS}.down.weight"),
        *read_only(
            Rule(f"{THEIRS}.mlp.experts.gate_up_proj", both, TOGETHER, APART, axes={"slot": 2}),
            Rule(f"{THEIRS}.mlp.experts.down_proj", f"{STACKS}.down.weight"),
        ),
    )


def shared_rules(name: str = "shared_experts") -> tuple[Rule, ...]:
    """What every token passes."""
    return tuple(
        Rule(f"{THEIRS}.mlp.{name}.{part}_proj.{{kind}}", f"{FEEDFORWARD}.shared_expert.{part}.{{kind}}")
        for part in ("gate", "up", "down")
    )


def selection_rules(*blocks: str) -> tuple[Rule, ...]:
    """The bias that only chooses; the first block is that of their files, the others are read only."""
    return spellings(
        *(Rule(f"{THEIRS}.{block}.e_score_correction_bias", f"{FEEDFORWARD}.router.selection_bias") for block in blocks)
    )


class Sparse(Llama):
    """Llama's shell with experts; a family says by `is_dense` which layers have a plain feed-forward instead."""

    base = BASE
    settings = SHELL
    rules = (*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules())
    dense_key: ClassVar[str] = "intermediate_size"  # the width of a plain feed-forward
    shared_key: ClassVar[str] = ""  # how many experts every token passes, as one that many times as wide

    @classmethod
    def to_recipe(cls, model: Tree, config: Mapping[str, Any]) -> None:
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
        lay_kinds(model, kinds, {})
        model["layers"] = {**windows, "dense": {"feedforward": plain}, "sparse": {}}

    @classmethod
    def to_config(cls, config: Tree, model: Mapping[str, Any]) -> None:
        super().to_config(config, model)
        if cls.shared_key:
            config[cls.shared_key] = spelled(model, "layer.feedforward.num_shared", 0)
        layers = spelled_layers(model)
        dense = [look(layer, "feedforward.type") != "experts" for layer in layers]
        cls.say_dense(config, dense)
        widths = [look(layer, "feedforward.d_ff") for layer, plain in zip(layers, dense, strict=True) if plain]
        if widths:
            config[cls.dense_key] = widths[0]

    @classmethod
    def is_dense(cls, config: Mapping[str, Any], layer: int) -> bool:
        """Whether that layer has a plain feed-forward."""
        return False

    @classmethod
    def say_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        """Say in `config` which layers have a plain feed-forward."""


class FirstDense(Sparse):
    """The first layers have a plain feed-forward, `first_k_dense_replace` of them, or those that a list names."""

    dense_layers: ClassVar[int] = 0  # first_k_dense_replace, where the config does not give it
    listed_dense: ClassVar[bool] = False  # whether config.json may list which layers are dense

    @classmethod
    def is_dense(cls, config: Mapping[str, Any], layer: int) -> bool:
        if cls.listed_dense and config.get("mlp_layer_types"):
            return bool(config["mlp_layer_types"][layer] == "dense")
        return layer < int(config.get("first_k_dense_replace", cls.dense_layers))

    @classmethod
    def say_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        if cls.listed_dense:
            config["mlp_layer_types"] = ["dense" if each else "sparse" for each in dense]
        # where others are dense, reading it back gives another architecture, and it is not of this family
        config["first_k_dense_replace"] = list(dense).index(False) if False in dense else len(dense)
