"""The rule table: what one part of a recipe requires of another, and which parts can be combined.

A rule says that an *asker* (a part, or a fact of the recipe such as the direction of a layer) requires a capability of
parts in some slots. The same table gives the errors of a recipe, the compatibility tables of the documentation, and the
combinations that tests run over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tfkit.core.capabilities import CAPABILITIES
from tfkit.core.component import Component, Config
from tfkit.core.registry import REGISTRY

Part = type[Component]
Asker = Part | Config

LAYER = ("attention", "mixer", "feedforward", "position", "norm", "residual")
# the pairs of slots whose parts meet in a layer; every pair of parts works, or a rule refuses it
PAIRS = (("position", "attention"), ("mask", "attention"), ("residual", "norm"))
# what a metric may require of an objective
OF_OBJECTIVES = ("likelihood", "characters", "words", "continuations", "tags", "numbers")
# the same of slots whose parts meet in a recipe
SECTION_PAIRS = (("metric", "objective"), ("logits", "strategy"))


@dataclass(frozen=True)
class CapabilityRule:
    """`asker`, a slot or a fact of the recipe, requires `capability` of the parts in the slots `asked`."""

    capability: str
    asker: str
    asked: tuple[str, ...]
    asks: Callable[[Asker], bool] = lambda asker: True  # of an asker that is a part: whether this one asks

    def refuses(self, asked: Asker) -> bool:
        """Whether a part is asked, and does not declare the capability (with its options, where they are given)."""
        part, config = part_of(asked), asked if isinstance(asked, Config) else None
        return part.part_slot in self.asked and self.capability not in part.able(config)


def part_of(asker: Asker) -> Part:
    """The part itself, of options too."""
    return asker.part if isinstance(asker, Config) else asker


def _hook(name: str) -> Callable[[Asker], bool]:
    def asks(asker: Asker) -> bool:
        if isinstance(asker, Config):
            return name in asker.part.asks(asker)  # type: ignore[attr-defined]
        return name in asker.hooks()  # type: ignore[attr-defined]

    return asks


def _measures(capability: str) -> Callable[[Asker], bool]:
    return lambda asker: part_of(asker).measures() == capability  # type: ignore[attr-defined]


def _shapes_draws(asker: Asker) -> bool:
    return part_of(asker).of_sampling  # type: ignore[attr-defined,no-any-return]


def _takes_back(asker: Asker) -> bool:
    return part_of(asker).rewinds  # type: ignore[attr-defined,no-any-return]


def _hides_the_future(asker: Asker) -> bool:
    return part_of(asker).hides_future  # type: ignore[attr-defined,no-any-return]


def _more_than_the_direction(asker: Asker) -> bool:
    return not part_of(asker).triangle  # type: ignore[attr-defined]


RULES = (
    CapabilityRule("rotation", "position", ("attention",), _hook("rotation")),
    CapabilityRule("bias", "position", ("attention",), _hook("bias")),
    CapabilityRule("temperature", "position", ("attention",), _hook("temperature")),
    CapabilityRule("masks", "mask", ("attention", "mixer", "feedforward"), _more_than_the_direction),
    CapabilityRule("causal", "a causal layer", LAYER),
    CapabilityRule("causal", "mask", LAYER, _hides_the_future),
    CapabilityRule("bidirectional", "a layer that sees both ways", LAYER),
    CapabilityRule("cross_attention", "a memory", ("attention", "residual")),
    CapabilityRule("padding", "a batch with padding", LAYER),
    CapabilityRule("packing", "a packed batch", LAYER),
    *(CapabilityRule(name, "metric", ("objective",), _measures(name)) for name in OF_OBJECTIVES),
    CapabilityRule("draws", "logits", ("strategy",), _shapes_draws),
    CapabilityRule("rewind", "strategy", ("attention", "mixer"), _takes_back),
)


def fact(asker: str) -> CapabilityRule:
    """The rule whose asker is that fact of a recipe."""
    return next(rule for rule in RULES if rule.asker == asker)


def asked_by(asker: Asker) -> list[CapabilityRule]:
    """The rules by which a part, with its options or whatever they are, requires something of others."""
    return [rule for rule in RULES if rule.asker == part_of(asker).part_slot and rule.asks(asker)]


def refusal(asker: Asker, part: Asker) -> CapabilityRule | None:
    """The rule that keeps `part` from standing with `asker`, or None where they can be combined."""
    return next((rule for rule in asked_by(asker) if rule.refuses(part)), None)


def reason(rule: CapabilityRule, asked: Asker, asker: Part | None = None) -> str:
    """In words: what a part does not declare, who asks for it, and what would can be combined instead."""
    part = part_of(asked)
    who = rule.asker if asker is None else f"{asker.part_slot} '{asker.part_name}'"
    lacks = f"{part.part_slot} '{part.part_name}' does not declare '{rule.capability}'"
    text = f"{lacks} ({CAPABILITIES[rule.capability]}), which {who} requires"
    return "; ".join([text, *_switch(rule, asked), *_instead(rule, part, asker)])


def _switch(rule: CapabilityRule, asked: Asker) -> Iterator[str]:
    """The option that would give the capability, where turning one does."""
    if not isinstance(asked, Config):
        return
    for option in type(asked).model_fields:
        value = getattr(asked, option)
        if isinstance(value, bool) and not rule.refuses(asked.model_copy(update={option: not value})):
            yield f"say {option}: {str(not value).lower()}"


def _instead(rule: CapabilityRule, part: Part, asker: Part | None) -> Iterator[str]:
    """What goes with the one, and with the other."""
    others = [name for name, other in REGISTRY.load(part.part_slot).items() if not rule.refuses(other)]
    if others:
        what = "that do" if asker is None else f"that go with '{asker.part_name}'"
        yield f"{_several(part.part_slot)} {what}: {', '.join(sorted(others))}"
    if asker is not None:
        askers = REGISTRY.load(asker.part_slot).items()
        going = sorted(name for name, other in askers if refusal(other, part) is None)
        yield f"{_several(asker.part_slot)} that go with '{part.part_name}': {', '.join([*going, 'none'])}"


def _several(slot: str) -> str:
    """Several parts of a slot, in a word."""
    return {"strategy": "strategies", "logits": "logits rules"}.get(slot, f"{slot}s")


def pairs(slot: str, other: str) -> Iterator[tuple[str, str, str | None]]:
    """Every part of `slot` with every part of `other`, and why they cannot be combined, None where they can."""
    for name in REGISTRY.names(slot):
        asker = REGISTRY.get(slot, name)
        for other_name in REGISTRY.names(other):
            part = REGISTRY.get(other, other_name)
            rule = refusal(asker, part)
            yield name, other_name, None if rule is None else reason(rule, part, asker)


def lacking(slot: str, other: str) -> Iterator[tuple[str, str, str | None]]:
    """The same with what the part of `other` lacks alone, which is one sentence for many pairs."""
    for name, asker in sorted(REGISTRY.load(slot).items()):
        for other_name, part in sorted(REGISTRY.load(other).items()):
            rule = refusal(asker, part)
            why = f"the {other} does not declare '{rule.capability}': {CAPABILITIES[rule.capability]}" if rule else None
            yield name, other_name, why


def legal(slot: str, other: str) -> list[tuple[str, str]]:
    """The pairs that can be combined."""
    return [(name, other_name) for name, other_name, why in pairs(slot, other) if why is None]
