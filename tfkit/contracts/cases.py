"""A part under test: its options, its topology, and the small recipe that contains it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from tfkit.contracts.expect import Broken
from tfkit.contracts.options import D_MODEL, MAX_LENGTH, VOCABULARY, alternatives, required
from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import Options, Tree
from tfkit.core.component import Component, Config, Shape
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import PositionFacts, ResidualFacts, SublayerFacts
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
        place = "set in the layer" if self.place else ""
        options = " and ".join(f"{name}: {scalar(json.loads(value))}" for name, value in self.variant)
        return ", ".join(filter(None, (topology, place, options and f"with {options}")))

    @property
    def part(self) -> type[Component]:
        """The part under test."""
        return REGISTRY.get(self.slot, self.name)

    @property
    def options(self) -> dict[str, object]:
        """The options that are set, including required ones."""
        return required(self.slot, self.name) | {name: json.loads(value) for name, value in self.variant}

    @property
    def config(self) -> Config:
        """The validated options of the part."""
        return Slot(self.slot).validate({"type": self.name, **self.options})

    def declares(self, capability: str) -> bool:
        """True if the part declares `capability`."""
        return declares(self.part, capability)

    def with_(self, **options: object) -> Case:
        """Return a copy with additional options."""
        return replace(self, variant=tuple((dict(self.variant) | _as_json(options)).items()))

    def with_layer(self, **keys: object) -> Case:
        """Return a copy with additional keys in the layer."""
        return replace(self, beside=(*self.beside, *_as_json(keys).items()))

    # --- the model

    @property
    def blueprint(self) -> Blueprint:
        """The Blueprint of the small model that contains the part."""
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
        layer |= {name: json.loads(value) for name, value in self.beside}
        return {"tfkit": 1, "model": model}

    def _join(self, model: dict[str, object], layer: dict[str, object]) -> None:
        """Adapt the recipe of an encoder-decoder if the gradients of some weights would vanish."""
        if self.slot == "mixer":  # the decoder reads only the last state of the encoder's recurrence
            del layer["feedforward"]
            model["decoder"] = {"memory": "last_state"}
        elif issubclass(self.part, ResidualFacts) and not self.part.norm_names(["attention"]):
            # attention without residual paths loses token identity with depth (Dong et al. 2021, arXiv 2103.03404)
            model["num_layers"] = 1


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


# --- enumeration


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


def variants(slot: str, name: str) -> Iterator[Case]:
    """Yield the part with one option changed at a time, in the first topology that accepts the change."""
    try:
        options = required(slot, name)
    except Broken:
        return
    plain = [case for case in cases(slot, name) if not case.place]
    for option, field in REGISTRY.get(slot, name).Config.model_fields.items():
        if option in options:
            continue
        for value in alternatives(option, field.annotation, field.default):
            accepted = [changed for case in plain if loads(changed := case.with_(**{option: value}))]
            # attention is tested in two topologies, the second one with cross-attention
            yield from dict.fromkeys(accepted[:1] + accepted[-1:]) if slot == "attention" else accepted[:1]
