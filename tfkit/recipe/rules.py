"""The rule table: requirements between the parts of a recipe, and the compatible combinations.

A rule states that a requirer needs a capability from the parts in some slots. The requirer is a slot, or a fact of the
recipe such as a causal layer. The table is the source of error messages, of the compatibility tables in the
documentation, and of the combinations that tests cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfkit.core.component import Component, Config
from tfkit.core.inputs import CAPABILITIES
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import PositionFacts

Part = type[Component]
PartLike = Part | Config

LAYER = ("attention", "mixer", "feedforward", "position", "norm", "residual")
# pairs of slots that interact in a layer; each pair of parts works unless a rule refuses it
PAIRS = (("position", "attention"), ("mask", "attention"), ("residual", "norm"))
# capabilities that a metric may require from an objective
OF_OBJECTIVES = ("likelihood", "characters", "words", "continuations", "tags", "numbers", "probabilities")
# pairs of slots that interact outside the model
SECTION_PAIRS = (("metric", "objective"), ("logits", "strategy"))


@dataclass(frozen=True)
class CapabilityRule:
    """A requirement: if `requirer` (a slot, or a fact of the recipe) is present, parts in `slots` need `capability`."""

    capability: str
    requirer: str
    slots: tuple[str, ...]
    # True if a part in the slot `requirer` has this requirement
    applies: Callable[[PartLike], bool] = lambda part: True

    def refuses(self, candidate: PartLike) -> bool:
        """True if the part is in one of the slots and lacks the capability, considering its options if given."""
        part, config = part_of(candidate), candidate if isinstance(candidate, Config) else None
        return part.part_slot in self.slots and self.capability not in part.able(config)


def part_of(requirer: PartLike) -> Part:
    """Return the part class of a Config; return a part class unchanged."""
    return requirer.part if isinstance(requirer, Config) else requirer


def _hook(name: str) -> Callable[[PartLike], bool]:
    def applies(requirer: PartLike) -> bool:
        if isinstance(requirer, Config):
            return isinstance(requirer, PositionFacts.Config) and name in requirer.part.asks(requirer)
        return issubclass(requirer, PositionFacts) and name in requirer.hooks()

    return applies


def _measures(capability: str) -> Callable[[PartLike], bool]:
    return lambda requirer: part_of(requirer).measures() == capability  # type: ignore[attr-defined]


def _declares(name: str, value: bool = True) -> Callable[[PartLike], bool]:
    return lambda requirer: getattr(part_of(requirer), name) is value


RULES = (
    CapabilityRule("rotation", "position", ("attention",), _hook("rotation")),
    CapabilityRule("bias", "position", ("attention",), _hook("bias")),
    CapabilityRule("temperature", "position", ("attention",), _hook("temperature")),
    CapabilityRule("masks", "mask", ("attention", "mixer", "feedforward"), _declares("triangle", False)),
    CapabilityRule("causal", "a causal layer", LAYER),
    CapabilityRule("causal", "mask", LAYER, _declares("hides_future")),
    CapabilityRule("bidirectional", "a bidirectional layer", LAYER),
    CapabilityRule("cross_attention", "a memory", ("attention", "residual")),
    CapabilityRule("padding", "a batch with padding", LAYER),
    CapabilityRule("packing", "a packed batch", LAYER),
    *(CapabilityRule(name, "metric", ("objective",), _measures(name)) for name in OF_OBJECTIVES),
    CapabilityRule("draws", "logits", ("strategy",), _declares("of_sampling")),
    CapabilityRule("rewind", "strategy", ("attention", "mixer"), _declares("rewinds")),
)

FACTS = {rule.requirer: rule for rule in RULES if rule.requirer not in CATALOGUES}  # rules by fact of the recipe


def requirements_of(requirer: PartLike) -> list[CapabilityRule]:
    """Return the requirements of a part, considering its options if given."""
    return [rule for rule in RULES if rule.requirer == part_of(requirer).part_slot and rule.applies(requirer)]


def refusal(requirer: PartLike, part: PartLike) -> CapabilityRule | None:
    """Return the rule that forbids combining `part` with `requirer`, or None."""
    return next((rule for rule in requirements_of(requirer) if rule.refuses(part)), None)


def reason(rule: CapabilityRule, candidate: PartLike, requirer: Part | None = None) -> str:
    """Explain which capability is missing, what requires it, and what to use instead."""
    part = part_of(candidate)
    who = rule.requirer if requirer is None else f"{requirer.part_slot} '{requirer.part_name}'"
    lacks = f"{part.part_slot} '{part.part_name}' does not declare '{rule.capability}'"
    text = f"{lacks} ({CAPABILITIES[rule.capability]}), which {who} requires"
    return "; ".join([text, *_switch(rule, candidate), *_instead(rule, part, requirer)])


def _switch(rule: CapabilityRule, candidate: PartLike) -> Iterator[str]:
    """Yield a hint for each boolean option whose change would provide the capability."""
    if not isinstance(candidate, Config):
        return
    for option in type(candidate).model_fields:
        value = getattr(candidate, option)
        if isinstance(value, bool) and not rule.refuses(candidate.model_copy(update={option: not value})):
            yield f"set {option}: {str(not value).lower()}"


def _instead(rule: CapabilityRule, part: Part, requirer: Part | None) -> Iterator[str]:
    """Yield lists of alternatives: for `part`, and for `requirer` if given."""
    others = [name for name, other in REGISTRY.load(part.part_slot).items() if not rule.refuses(other)]
    if others:
        what = "that do" if requirer is None else f"compatible with '{requirer.part_name}'"
        yield f"{_several(part.part_slot)} {what}: {', '.join(sorted(others))}"
    if requirer is not None:
        requirers = REGISTRY.load(requirer.part_slot).items()
        going = sorted(name for name, other in requirers if refusal(other, part) is None)
        yield f"{_several(requirer.part_slot)} compatible with '{part.part_name}': {', '.join([*going, 'none'])}"


def _several(slot: str) -> str:
    return {"strategy": "strategies", "logits": "logits rules"}.get(slot, f"{slot}s")


def pairs(slot: str, other: str, brief: bool = False) -> Iterator[tuple[str, str, str | None]]:
    """Yield every pair of parts from two slots, with the reason why they are incompatible, or None.

    A `brief` reason names no parts, so that pairs can be grouped by it.
    """
    for name, requirer in sorted(REGISTRY.load(slot).items()):
        for other_name, part in sorted(REGISTRY.load(other).items()):
            rule, why = refusal(requirer, part), None
            if rule is not None:
                lacks = f"the {other} does not declare '{rule.capability}': {CAPABILITIES[rule.capability]}"
                why = lacks if brief else reason(rule, part, requirer)
            yield name, other_name, why
