"""A part to be checked, put into a small model: what the contracts (checks.py) are asked of. Knows nothing of pytest.

A part comes from the registry; options that it requires get a size from `SIZES` by their name. So a part that somebody
adds to a catalogue, or registers of their own, is checked without a line being written about it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component, Config, Slot
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.core.shape import Shape
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_recipe

SLOTS = (
    "attention", "mixer", "position", "feedforward", "norm", "residual", "embedding", "head", "mask", "activation",
    "init", "model",
)  # fmt: skip
SUBLAYERS = ("attention", "mixer", "feedforward")

# What options are set to, by name: required ones always, others one at a time as variants of the part.
SIZES: dict[str, Any] = {
    "after": 1,
    "alpha": 1.5,
    "before": 2,
    "d_embedding": 8,
    "d_ff": 24,
    "factor": 2.0,
    "fraction": 0.5,
    "head_dim": 8,
    "max_distance": 20,
    "max_length": 40,
    "max_val": 2.0,
    "min_val": -2.0,
    "negative_slope": 0.2,
    "num_buckets": 8,
    "num_classes": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "offset": 2,
    "qk_norm": "rms_norm",
    "scale": 0.3,
    "scaling": {"type": "linear", "factor": 2.0},
    "segments": 2,
    "size": 3,
    "softcap": 5.0,
    "theta": 100.0,
    "threshold": 0.1,
    "value": 0.05,
    "value_dim": 6,
    "weight_offset": 1.0,
}
# What a required option that is itself a part is set to, by slot.
PARTS = {"feedforward": "mlp", "activation": "gelu", "norm": "layer_norm", "attention": "multi_head"}

# The topologies that a part of each slot is tried in; a part's capabilities may take some away.
TOPOLOGIES: dict[str, tuple[str, ...]] = {
    "attention": ("decoder", "encoder", "encoder_decoder"),
    "mixer": ("decoder", "encoder"),
    "position": ("decoder", "encoder", "encoder_decoder"),
    "feedforward": ("decoder", "encoder"),
    "norm": ("decoder",),
    "residual": ("decoder", "encoder_decoder"),
    "embedding": ("decoder", "encoder_decoder"),
    "head": ("decoder", "encoder"),
    "mask": ("decoder", "encoder"),
    "activation": ("decoder",),
    "init": ("encoder_decoder",),
}
NEEDED = {
    "decoder": {"causal"},
    "encoder": {"bidirectional"},
    "encoder_decoder": {"causal", "bidirectional", "cross_attention"},
}

VOCABULARY = 23
D_MODEL = 16
MAX_LENGTH = 32
SOURCE = 6
PREFIX = 3  # tokens of the prefix that a prefix mask opens


@dataclass(frozen=True)
class Case:
    """One part with its options, in one topology; `place` is "layer" for a position said in the layers."""

    slot: str
    name: str
    topology: str = "decoder"
    place: str = ""
    variant: tuple[tuple[str, Any], ...] = ()  # options besides the required ones; () = as the part comes

    def __str__(self) -> str:
        options = "".join(f"-{name}={value}" for name, value in self.variant)
        return f"{self.slot}-{self.name}-{self.topology}{'-' * bool(self.place)}{self.place}{options}"

    @property
    def part(self) -> type[Component]:
        """The class under test."""
        return REGISTRY.get(self.slot, self.name)

    @property
    def options(self) -> dict[str, Any]:
        """Every option that is set."""
        return required(self.slot, self.name) | {name: thawed(value) for name, value in self.variant}

    def declares(self, capability: str) -> bool:
        """Whether the part promises `capability`; only a sublayer can go without saying so, as recipes allow it."""
        capabilities = self.part.capabilities
        if self.slot in SUBLAYERS and not capabilities:
            return capability in ("causal", "bidirectional", "padding", "packing")
        return not capabilities or capability in capabilities

    def with_(self, **options: Any) -> Case:
        """The same with some more options set."""
        more = {name: frozen(value) for name, value in options.items()}
        return Case(self.slot, self.name, self.topology, self.place, tuple((dict(self.variant) | more).items()))

    @property
    def pair(self) -> bool:
        """Whether there are an encoder and a decoder."""
        return len(list(blueprint(self).stacks())) == 2

    @property
    def blueprint(self) -> Blueprint:
        return blueprint(self)

    @property
    def config(self) -> Config:
        """The part's own options, validated."""
        return Slot(self.slot).validate({"type": self.name, **self.options})

    @property
    def opens(self) -> bool:
        """Whether a mask rule shows more than the limits allow."""
        return any(rule.part.opens for plan in self.blueprint.last.layers for rule in plan.mask)  # type: ignore[attr-defined]

    @property
    def needs(self) -> frozenset[str]:
        """The call inputs that the mask rules read."""
        rules = [rule.part for stack in self.blueprint.stacks() for plan in stack.layers for rule in plan.mask]
        return frozenset(rule.needs for rule in rules if rule.needs)  # type: ignore[attr-defined]

    def recipe(self, num_layers: int = 2) -> dict[str, Any]:
        """A small model with the part in it, as a recipe."""
        layer: dict[str, Any] = {
            "residual": "pre_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 4},
            "feedforward": {"type": "mlp", "d_ff": 24, "activation": "gelu"},
        }
        model: dict[str, Any] = {
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
        return {"tfkit": 1, "model": model}


def frozen(value: Any) -> Any:
    """`value` as something that can be hashed; `thawed` takes it back."""
    if isinstance(value, Mapping):
        return ("{}", *((key, frozen(entry)) for key, entry in value.items()))
    return value


def thawed(value: Any) -> Any:
    """What `frozen` was given."""
    if isinstance(value, tuple) and value[:1] == ("{}",):
        return {key: thawed(entry) for key, entry in value[1:]}
    return value


# --- options


def required(slot: str, name: str) -> dict[str, Any]:
    """The options that the part cannot do without, each with a size from the table.

    That are those without a default, and those that its own check asks for (a window's size).
    """
    options = undefaulted(slot, name)
    if slot in ("init", "model"):
        return options
    config = Slot(slot).validate({"type": name, **options})
    asked = [problem.option for problem in config.check(PLAIN_SHAPE)]
    return options | {option: SIZES[option] for option in asked if option in SIZES and option not in options}


PLAIN_SHAPE = Shape(D_MODEL, VOCABULARY, MAX_LENGTH, num_heads=4)


def undefaulted(slot: str, name: str) -> dict[str, Any]:
    """The options without a default, each with a size from the table."""
    config = REGISTRY.get(slot, name).Config
    options: dict[str, Any] = {}
    for option, field in config.model_fields.items():
        if not field.is_required():
            continue
        inner = next((mark.slot for mark in field.metadata if isinstance(mark, Slot)), None)
        choices = get_args(field.annotation)
        if option in SIZES:
            options[option] = SIZES[option]
        elif inner is not None:
            chosen = PARTS.get(inner) or REGISTRY.names(inner)[0]
            options[option] = {"type": chosen, **required(inner, chosen)}
        elif choices and isinstance(choices[0], str):
            options[option] = choices[0]
        else:
            raise AssertionError(
                f"{slot} '{name}' requires the option '{option}', and the table of sizes has none of that name: "
                f"add '{option}': <a small value> to SIZES in tests/contracts/cases.py"
            )
    return options


def load(case: Case, num_layers: int = 2) -> Recipe:
    """The case's recipe, validated."""
    return load_recipe(case.recipe(num_layers))


def loads(case: Case) -> bool:
    """Whether the recipe is accepted."""
    try:
        load(case)
    except (RecipeError, AssertionError):
        return False
    return True


@cache
def blueprint(case: Case, num_layers: int = 2) -> Blueprint:
    """The case's architecture; a refusal of it is said in words."""
    try:
        return load(case, num_layers).blueprint()
    except RecipeError as error:
        raise AssertionError(f"a recipe with this part is refused: {error}") from None


# --- enumeration


def cases(slot: str, name: str) -> list[Case]:
    """The part as it comes, in every topology that its capabilities promise; at least one."""
    if slot == "model":
        return [Case(slot, name, name)]
    found = [Case(slot, name, topology) for topology in TOPOLOGIES[slot]]
    promised = [case for case in found if slot == "feedforward" or all(map(case.declares, NEEDED[case.topology]))]
    if slot == "mask":
        # a rule may have no meaning under one direction, and then refuses it; every other part keeps its promises
        promised = [case for case in promised if loads(case)]
    if slot == "position" and "embed" not in found[0].part.hooks():  # type: ignore[attr-defined]
        promised.append(Case(slot, name, "decoder", "layer"))
    return promised or found[:1]


def variants(slot: str, name: str) -> Iterator[Case]:
    """The part with one option changed at a time, in the first topology whose recipe accepts that."""
    try:
        options = required(slot, name)
    except AssertionError:
        return
    plain = [case for case in cases(slot, name) if not case.place]
    for option, field in REGISTRY.get(slot, name).Config.model_fields.items():
        if option in options:
            continue
        for value in alternatives(option, field.annotation, field.default):
            accepted = [changed for case in plain if loads(changed := case.with_(**{option: value}))]
            # attention differs most between its own input and a memory
            yield from dict.fromkeys(accepted[:1] + accepted[-1:]) if slot == "attention" else accepted[:1]


def alternatives(option: str, annotation: Any, default: Any) -> Iterator[Any]:
    """Other values that an option may have."""
    kinds = flattened(annotation)
    if option in SIZES:
        yield SIZES[option]
    if bool in kinds:
        yield not default
    for kind in kinds:
        if isinstance(kind, str) and kind != default:
            yield kind


def flattened(annotation: Any) -> list[Any]:
    """The members of a union, and the words of a Literal."""
    if getattr(annotation, "__origin__", None) is Literal:
        return list(get_args(annotation))
    members = get_args(annotation)
    if not members or isinstance(annotation, type):
        return [annotation]
    return [entry for member in members for entry in flattened(member)]


# --- models and calls


@cache
def model(case: Case, dtype: torch.dtype = torch.float64, num_layers: int = 2) -> Model:
    """The case's model in eval mode, every weight moved off its initial value, so that nothing hides there."""
    if dtype != torch.float32:
        return duplicate(model(case, torch.float32, num_layers)).to(dtype)
    made = build_model(blueprint(case, num_layers), seed=1)
    randomise(made)
    return made.eval()


def randomise(made: torch.nn.Module) -> None:
    """Add noise to every weight; norms stay near 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    """Random ids [batch time], never 0."""
    return torch.randint(1, VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(100 + seed))


def special(needs: frozenset[str], ids: Tensor, past: int, shift: Tensor) -> dict[str, Tensor]:
    """What a call must give besides ids for the mask rules; `shift` [batch] is the padding on the left of each row."""
    given = {}
    for name in needs:
        if name == "prefix_length":
            given[name] = shift + PREFIX
        elif name == "global_attention_mask":
            place = torch.arange(past + ids.shape[1])
            given[name] = (place[None] == shift[:, None].clamp(max=ids.shape[1] - 1)).long()
        else:
            raise AssertionError(
                f"a mask rule needs the call input '{name}', and the contracts do not know how to make one: add it to "
                "`special` in tests/contracts/cases.py"
            )
    return given


def run(
    case: Case,
    ids: Tensor,
    real: Tensor | None = None,
    positions: Tensor | None = None,
    shift: Tensor | None = None,
    source: Tensor | None = None,
    source_real: Tensor | None = None,
    on: Any = None,
    **more: Any,
) -> dict[str, Tensor]:
    """What the model gives for [batch time] ids: `hidden` and `logits`, or `pooled` where a row has one answer.

    In a pair the ids are the decoder's; every row then reads the same source unless `source` says otherwise.
    """
    called = on if on is not None else model(case)
    state = more.get("state")
    past = 0 if state is None else state.length
    shift = torch.zeros(ids.shape[0], dtype=torch.long) if shift is None else shift
    arguments: dict[str, Any] = {**special(case.needs, ids, past, shift), **more}
    if case.pair:
        source = tokens(1, SOURCE, seed=9).expand(ids.shape[0], -1) if source is None else source
        arguments |= {"input_ids": source, "attention_mask": source_real, "decoder_input_ids": ids}
        arguments |= {"decoder_attention_mask": real, "decoder_position_ids": positions}
    else:
        arguments |= {"input_ids": ids, "attention_mask": real, "position_ids": positions}
    return outputs(case, called(**{name: value for name, value in arguments.items() if value is not None}))


def outputs(case: Case, out: Any) -> dict[str, Tensor]:
    """A model's output by name; a head that gives a row one answer is called `pooled`."""
    found = {"hidden": out.hidden}
    if out.logits is not None:
        found["logits" if tokenwise(case) else "pooled"] = out.logits
    return found


@cache
def tokenwise(case: Case) -> bool:
    """Whether the head answers for every token: its second axis grows with the text."""
    shapes = []
    for time in (5, 6):
        ids = tokens(2, time)
        arguments = special(case.needs, ids, 0, torch.zeros(2, dtype=torch.long))
        arguments |= {"input_ids": ids, **({"decoder_input_ids": ids} if case.pair else {})}
        with torch.no_grad():
            shapes.append(tuple(model(case)(**arguments).logits.shape))
    return [shape[1:2] for shape in shapes] == [(5,), (6,)]


def fresh(case: Case, dtype: torch.dtype = torch.float64) -> Model:
    """A copy of the case's model that may be changed."""
    return duplicate(model(case, dtype))


def duplicate(made: Model) -> Model:
    """A deep copy that leaves out what is frozen: copying the options takes most of the time."""
    kept: dict[int, Any] = {}
    for module in made.modules():
        values = [getattr(module, name, None) for name in ("blueprint", "plan", "config", "shape")]
        kept |= {id(value): value for value in values if value is not None}
    return copy.deepcopy(made, kept)
