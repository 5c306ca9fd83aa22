"""The rule table: requirements between parts of a recipe, and compatible combinations.

In a rule, an *asker* (a part, or a fact of the recipe such as the direction of a layer) requires a capability of parts
in some slots. The same table is used for the errors of a recipe, the compatibility tables of the documentation, and
the combinations covered by tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfkit.core.capabilities import CAPABILITIES
from tfkit.core.component import Component, Config
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.slots import PositionFacts

Part = type[Component]
Asker = Part | Config

LAYER = ("attention", "mixer", "feedforward", "position", "norm", "residual")
# pairs of slots that meet in a layer; every pair of parts works, or a rule refuses it
PAIRS = (("position", "attention"), ("mask", "attention"), ("residual", "norm"))
# capabilities that a metric may require of an objective
OF_OBJECTIVES = ("likelihood", "characters", "words", "continuations", "tags", "numbers")
# pairs of slots that meet in a recipe
SECTION_PAIRS = (("metric", "objective"), ("logits", "strategy"))


@dataclass(frozen=True)
class CapabilityRule:
    """`asker`, a slot or a fact of the recipe, requires `capability` of parts in the slots `asked`."""

    capability: str
    asker: str
    asked: tuple[str, ...]
    asks: Callable[[Asker], bool] = lambda asker: True  # True if this part of the asker's slot requires it

    def refuses(self, asked: Asker) -> bool:
        """True if the part is subject to the rule and lacks the capability (under its options, if given)."""
        part, config = part_of(asked), asked if isinstance(asked, Config) else None
        return part.part_slot in self.asked and self.capability not in part.able(config)


def part_of(asker: Asker) -> Part:
    """Return the part of a Config; a part is unchanged."""
    return asker.part if isinstance(asker, Config) else asker


def _hook(name: str) -> Callable[[Asker], bool]:
    def asks(asker: Asker) -> bool:
        if isinstance(asker, Config):
            return isinstance(asker, PositionFacts.Config) and name in asker.part.asks(asker)
        return issubclass(asker, PositionFacts) and name in asker.hooks()

    return asks


def _measures(capability: str) -> Callable[[Asker], bool]:
    return lambda asker: part_of(asker).measures() == capability  # type: ignore[attr-defined]


def _declares(name: str, value: bool = True) -> Callable[[Asker], bool]:
    return lambda asker: getattr(part_of(asker), name) is value


RULES = (
    CapabilityRule("rotation", "position", ("attention",), _hook("rotation")),
    CapabilityRule("bias", "position", ("attention",), _hook("bias")),
    CapabilityRule("temperature", "position", ("attention",), _hook("temperature")),
    CapabilityRule("masks", "mask", ("attention", "mixer", "feedforward"), _declares("triangle", False)),
    CapabilityRule("causal", "a causal layer", LAYER),
    CapabilityRule("causal", "mask", LAYER, _declares("hides_future")),
    CapabilityRule("bidirectional", "a layer that sees both ways", LAYER),
    CapabilityRule("cross_attention", "a memory", ("attention", "residual")),
    CapabilityRule("padding", "a batch with padding", LAYER),
    CapabilityRule("packing", "a packed batch", LAYER),
    *(CapabilityRule(name, "metric", ("objective",), _measures(name)) for name in OF_OBJECTIVES),
    CapabilityRule("draws", "logits", ("strategy",), _declares("of_sampling")),
    CapabilityRule("rewind", "strategy", ("attention", "mixer"), _declares("rewinds")),
)


FACTS = {rule.asker: rule for rule in RULES if rule.asker not in CATALOGUES}  # by fact of a recipe


def requirements_of(asker: Asker) -> list[CapabilityRule]:
    """Return the requirements of a part, under its options if given."""
    return [rule for rule in RULES if rule.asker == part_of(asker).part_slot and rule.asks(asker)]


def refusal(asker: Asker, part: Asker) -> CapabilityRule | None:
    """Return the rule that forbids combining `part` with `asker`, or None."""
    return next((rule for rule in requirements_of(asker) if rule.refuses(part)), None)


def reason(rule: CapabilityRule, asked: Asker, asker: Part | None = None) -> str:
    """Describe the missing capability, the requirement, and the alternatives."""
    part = part_of(asked)
    who = rule.asker if asker is None else f"{asker.part_slot} '{asker.part_name}'"
    lacks = f"{part.part_slot} '{part.part_name}' does not declare '{rule.capability}'"
    text = f"{lacks} ({CAPABILITIES[rule.capability]}), which {who} requires"
    return "; ".join([text, *_switch(rule, asked), *_instead(rule, part, asker)])


def _switch(rule: CapabilityRule, asked: Asker) -> Iterator[str]:
    """Yield a hint for a boolean option that would provide the capability."""
    if not isinstance(asked, Config):
        return
    for option in type(asked).model_fields:
        value = getattr(asked, option)
        if isinstance(value, bool) and not rule.refuses(asked.model_copy(update={option: not value})):
            yield f"set {option}: {str(not value).lower()}"


def _instead(rule: CapabilityRule, part: Part, asker: Part | None) -> Iterator[str]:
    """Yield the compatible alternatives on both sides."""
    others = [name for name, other in REGISTRY.load(part.part_slot).items() if not rule.refuses(other)]
    if others:
        what = "that do" if asker is None else f"compatible with '{asker.part_name}'"
        yield f"{_several(part.part_slot)} {what}: {', '.join(sorted(others))}"
    if asker is not None:
        askers = REGISTRY.load(asker.part_slot).items()
        going = sorted(name for name, other in askers if refusal(other, part) is None)
        yield f"{_several(asker.part_slot)} compatible with '{part.part_name}': {', '.join([*going, 'none'])}"


def _several(slot: str) -> str:
    """Return the plural of a slot."""
    return {"strategy": "strategies", "logits": "logits rules"}.get(slot, f"{slot}s")


def pairs(slot: str, other: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield all pairs of parts of `slot` and `other`, with the reason of incompatibility or None."""
    for name in REGISTRY.names(slot):
        asker = REGISTRY.get(slot, name)
        for other_name in REGISTRY.names(other):
            part = REGISTRY.get(other, other_name)
            rule = refusal(asker, part)
            yield name, other_name, None if rule is None else reason(rule, part, asker)


def lacking(slot: str, other: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield the pairs like `pairs`, with a short reason that is equal for many pairs."""
    for name, asker in sorted(REGISTRY.load(slot).items()):
        for other_name, part in sorted(REGISTRY.load(other).items()):
            rule = refusal(asker, part)
            why = f"the {other} does not declare '{rule.capability}': {CAPABILITIES[rule.capability]}" if rule else None
            yield name, other_name, why


def legal(slot: str, other: str) -> list[tuple[str, str]]:
    """Return the compatible pairs."""
    return [(name, other_name) for name, other_name, why in pairs(slot, other) if why is None]
