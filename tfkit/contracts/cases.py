"""A part under test: its options, its topology, and the small recipe that contains it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from tfkit.contracts.expect import Broken
from tfkit.contracts.options import D_MODEL, MAX_LENGTH, PLAIN_SHAPE, VOCABULARY, alternatives, required
from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import Options, Tree
from tfkit.core.component import Component, Config, Shape
from tfkit.core.errors import RecipeError
from tfkit.core.layout import ResidualFacts
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import PositionFacts, SublayerFacts
from tfkit.core.store import Store, of_config
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.views.resolved import scalar

MODEL = (
    "attention", "mixer", "position", "feedforward", "norm", "residual", "embedding", "head", "mask", "activation",
    "init", "model"
)  # fmt: skip
SUBLAYERS = ("attention", "mixer", "feedforward")
MIXING = ("attention", "mixer")  # sublayers that mix tokens

# topologies in which the parts of a slot are tested, unless a part lacks the capabilities
TOPOLOGIES: dict[str, tuple[str, ...]] = {
    "attention": ("decoder", "encoder", "encoder_decoder"),
    "mixer": ("decoder", "encoder", "encoder_decoder"),
    "position": ("decoder", "encoder", "encoder_decoder"),
    "feedforward": ("decoder", "encoder"),
    "norm": ("decoder",),
    "residual": ("decoder", "encoder_decoder"),
    "embedding": ("decoder", "encoder", "encoder_decoder"),
    "head": ("decoder", "encoder"),
    "mask": ("decoder", "encoder"),
    "activation": ("decoder",),
    "init": ("encoder_decoder",),
}
# capabilities that a topology requires from the parts of its layers
NEEDED = {
    "decoder": ("causal",),
    "encoder": ("bidirectional",),
    "encoder_decoder": ("causal", "bidirectional", "cross_attention"),
}
IN_WORDS = {"decoder": "in a decoder", "encoder": "in an encoder", "encoder_decoder": "in an encoder-decoder"}


def declares(part: type[Component], capability: str) -> bool:
    """True if the part declares `capability`; a part that declares nothing is assumed to support everything."""
    return not part.capabilities or capability in part.capabilities


@dataclass(frozen=True)
class Case:
    """A part with its options in one topology; `place` is "layer" for a position that is set in the layer.

    `beside` are additional keys of the layer. Parts outside the model have no topology.
    """

    slot: str
    name: str
    topology: str = "decoder"
    place: str = ""
    variant: tuple[tuple[str, str], ...] = ()  # options in addition to the required ones, as JSON
    beside: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = "".join(f"-{name}={value}" for name, value in self.variant)
        return f"{self.slot}-{self.name}-{self.topology}{'-' * bool(self.place)}{self.place}{options}"

    @property
    def where(self) -> str:
        """Description of the topology and the options that differ from the defaults."""
        topology = "" if self.slot not in MODEL else IN_WORDS.get(self.topology, "")
        place = "set in the layer" if self.place == "layer" else ""
        options = " and ".join(f"{name}: {scalar(json.loads(value))}" for name, value in self.variant)
        return ", ".join(filter(None, (topology, place, options and f"with {options}")))

    @property
    def part(self) -> type[Component]:
        return REGISTRY.get(self.slot, self.name)

    @property
    def options(self) -> dict[str, object]:
        """The options that are set, including required ones."""
        return {**required(self.slot, self.name), **as_data(self.variant)}

    @property
    def config(self) -> Config:
        return Slot(self.slot).validate({"type": self.name, **self.options})

    def declares(self, capability: str) -> bool:
        return declares(self.part, capability)

    def lacking(self, capability: str) -> list[str]:
        """Return other parts of the model that do not declare what the part does."""
        return []

    def with_(self, **options: object) -> Case:
        return replace(self, variant=tuple((dict(self.variant) | _as_json(options)).items()))

    def with_layer(self, **keys: object) -> Case:
        return replace(self, beside=(*self.beside, *_as_json(keys).items()))

    @property
    def shape(self) -> Shape:
        return PLAIN_SHAPE

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of its input after batch and time."""
        return (D_MODEL,)

    def store(self, ids: Tensor, dtype: torch.dtype) -> Store:
        """Return what earlier layers have written for these ids."""
        return Store()

    @property
    def blueprint(self) -> Blueprint:
        return blueprint(self)

    @property
    def pair(self) -> bool:
        """True for an encoder-decoder."""
        return len(list(self.blueprint.stacks())) == 2

    @property
    def causal(self) -> bool:
        """True if the last stack is causal."""
        return self.blueprint.last.causal

    @property
    def opens(self) -> bool:
        """True if the part is a mask rule that reveals tokens hidden by limits."""
        return any(rule.part.opens for plan in self.blueprint.last.layers for rule in plan.mask)

    @property
    def needs(self) -> frozenset[str]:
        """Inputs of a call that the parts read."""
        return frozenset(name for stack in self.blueprint.stacks() for name in stack.needs)

    @property
    def writer(self) -> Config | None:
        """Part that writes to `context.store` what this part reads; None if there is none."""
        try:
            stores = of_config(self.config, Shape(D_MODEL))
        except ValueError:  # options that a check of refusals sets
            return None
        names = stores.reads - stores.writes
        return _writer(names, self.part.__module__) if names else None

    def recipe(self, num_layers: int = 2) -> Tree:
        """Return the recipe of a small model that contains the part."""
        layer: Tree = {
            "residual": "pre_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 4},
            "feedforward": {"type": "mlp", "d_ff": 24, "activation": "gelu"},
        }
        model: dict[str, object] = {
            "type": self.topology,
            "d_model": D_MODEL,
            "num_layers": num_layers,
            "vocab_size": VOCABULARY,
            "max_length": MAX_LENGTH,
            "embedding": "tokens",
            "position": "sinusoidal",
            "layer": layer,
            "head": "language_model",
        }
        part = {"type": self.name, **self.options}
        if self.slot == "activation":
            layer["feedforward"]["activation"] = part
        elif self.slot == "model":
            model["type"] = part
        elif self.slot == "mixer":
            layer["mixer"] = part
            del layer["attention"]
        elif self.slot in layer or self.place == "layer":
            layer[self.slot] = part
        else:
            model[self.slot] = part
        if self.topology == "encoder_decoder":
            self._join(model, layer)
        layer |= as_data(self.beside)
        if (writer := self.writer if self.slot in MODEL else None) is not None:
            self._write(model, writer, num_layers)
        return {"tfkit": 1, "model": model}

    def _write(self, model: dict[str, object], writer: Config, num_layers: int) -> None:
        """Let the embedding, or the first layer with a default part in place of this one, write what the part reads."""
        slot = writer.part.part_slot
        if slot == "embedding":
            model[slot] = writer.spelled()
            return
        usual: Tree = {"attention": {"type": "multi_head", "num_heads": 4}, "feedforward": {"type": "mlp", "d_ff": 24}}
        usual |= {"residual": "pre_norm", "norm": "layer_norm", "mixer": None}
        own = {self.slot: usual.get(self.slot)} if self.slot in usual else {}
        own |= {"attention": usual["attention"]} if self.slot == "mixer" else {}
        model["layers"] = {"writer": own | {slot: writer.spelled()}, "reader": {}}
        model["pattern"] = ["writer", *["reader"] * max(1, num_layers - 1)]
        model["num_layers"] = max(2, num_layers)

    def _join(self, model: dict[str, object], layer: dict[str, object]) -> None:
        """Adapt the recipe of an encoder-decoder if the gradients of some weights would vanish."""
        if self.slot == "mixer":  # the decoder reads only the last state of the encoder's recurrence
            del layer["feedforward"]
            model["decoder"] = {"memory": "last_state"}
        elif issubclass(self.part, ResidualFacts) and not self.part.norm_names(["attention"]):
            # attention without residual paths loses token identity with depth (Dong et al. 2021, arXiv 2103.03404)
            model["num_layers"] = 1


def as_data(options: Iterable[tuple[str, str]]) -> Options:
    """Return the options of `variant`, or the keys of `beside`, as plain data."""
    return {name: json.loads(value) for name, value in options}


def _as_json(values: Options) -> dict[str, str]:
    return {name: json.dumps(value) for name, value in values.items()}


@cache
def load(case: Case, num_layers: int = 2) -> Recipe:
    """Return the validated recipe of the case."""
    return load_recipe(case.recipe(num_layers))


def refusal(case: Case) -> str | None:
    """Return the error message if the recipe, or the options of a part outside the model, are invalid, else None."""
    try:
        if case.slot in MODEL:
            load(case)
        else:
            case.config  # noqa: B018
    except (RecipeError, ValueError) as error:
        return str(error)
    return None


def loads(case: Case) -> bool:
    """True unless the recipe is refused. An exception raised by the part is not a refusal; the checks report it."""
    try:
        return refusal(case) is None
    except Broken:
        return False
    except Exception:
        return True


@cache
def blueprint(case: Case, num_layers: int = 2) -> Blueprint:
    """Return the Blueprint of the case; raise Broken if the recipe is invalid."""
    try:
        return load(case, num_layers).blueprint()
    except RecipeError as error:
        raise Broken(f"a recipe with this part is rejected: {error}") from None


WRITERS = ("attention", "mixer", "feedforward", "residual", "norm", "embedding")


def _writer(names: frozenset[str], module: str) -> Config | None:
    """Return a registered part that writes these names to `context.store`, preferably one of the same file."""
    parts = [REGISTRY.get(slot, name) for slot in WRITERS for name in REGISTRY.names(slot)]
    for part in sorted(parts, key=lambda part: part.__module__ != module):
        try:
            config = Slot(part.part_slot).validate({"type": part.part_name, **required(part.part_slot, part.part_name)})
        except (Broken, ValueError):
            continue
        stores = of_config(config, Shape(D_MODEL))
        if stores.written >= names and stores.reads <= stores.writes:
            return config
    return None


def cases(slot: str, name: str) -> list[Case]:
    """Return the part with default options in each topology that its capabilities allow, at least one."""
    if slot == "model":
        return [Case(slot, name, name)]
    if slot not in TOPOLOGIES:
        return [Case(slot, name, "")]
    all_cases = [Case(slot, name, topology) for topology in TOPOLOGIES[slot]]
    promised = [case for case in all_cases if not lacks(case)]
    if slot in ("mask", "head"):
        # a mask rule may be invalid in one direction, and a head may read a token that sees no others (the first token
        # of a causal stack); other parts must work in every topology
        promised = [case for case in promised if loads(case)]
    part = REGISTRY.get(slot, name)
    if issubclass(part, PositionFacts) and "embed" not in part.hooks():
        promised.append(Case(slot, name, "decoder", "layer"))
    return promised or all_cases[:1]


def lacks(case: Case) -> list[str]:
    """Return the capabilities that the topology requires but the part does not have."""
    reads = case.slot in ("attention", "residual")
    needed = [name for name in NEEDED[case.topology] if name != "cross_attention" or reads]
    lacking = [name for name in needed if not case.declares(name)]
    if case.slot == "mixer" and case.topology == "encoder_decoder" and not hands_over(case):
        lacking.append("last_state")
    return lacking


def hands_over(case: Case) -> bool:
    """True if the part is a recurrence whose last state can initialize another stack."""
    config = case.config
    return isinstance(config, SublayerFacts.Config) and bool(config.state_widths(Shape(D_MODEL, causal=True)))


def variants(slot: str, name: str, within: Case | None = None) -> Iterator[Case]:
    """Yield the part with one option changed at a time, in the first topology that accepts the change, or `within`."""
    try:
        options = required(slot, name) if within is None else within.options
    except Broken:
        return
    plain = [case for case in cases(slot, name) if not case.place] if within is None else [within]
    for option, field in REGISTRY.get(slot, name).Config.model_fields.items():
        if option in options:
            continue
        for value in alternatives(option, field.annotation, field.default):
            accepted = [changed for case in plain if loads(changed := case.with_(**{option: value}))]
            # attention is tested in two topologies, the second one with cross-attention
            yield from dict.fromkeys(accepted[:1] + accepted[-1:]) if slot == "attention" else accepted[:1]
