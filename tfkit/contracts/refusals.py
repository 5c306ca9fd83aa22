"""Recipes that need an undeclared capability are refused instead of being built incorrectly."""

from __future__ import annotations

from collections.abc import Iterator

from tfkit.contracts.cases import IN_WORDS, SUBLAYERS, TOPOLOGIES, Case, lacks, loads
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.core.trees import Options

# capability -> layer keys that require it, and the slots whose parts then need it
ASKING: dict[str, tuple[Options, tuple[str, ...]]] = {
    "rotation": ({"position": "rotary"}, ("attention",)),
    "bias": ({"position": "alibi"}, ("attention",)),
    "masks": ({"mask": {"type": "window", "size": 3}}, SUBLAYERS),
}


@contract("a recipe that needs an undeclared capability is refused", "built", slots=SUBLAYERS, once=True)
def check_refusals(case: Case) -> None:
    """Load recipes that require capabilities the part does not declare."""
    for recipe_case, capability, words in _requiring(case):
        expect(not loads(recipe_case), f"does not declare {capability}, but a recipe {words} is accepted")


def _requiring(case: Case) -> Iterator[tuple[Case, str, str]]:
    """Yield cases that must be refused, with the missing capability and a description of the recipe."""
    for topology in TOPOLOGIES[case.slot]:
        other = Case(case.slot, case.name, topology)
        if lacking := lacks(other):
            yield other, " and ".join(lacking), f"that uses it {IN_WORDS[topology]}"
    for capability, (keys, slots) in ASKING.items():
        if case.slot in slots and not case.declares(capability):
            text = " and ".join(f"{name}: {value}" for name, value in keys.items())
            yield case.with_layer(**keys), capability, f"with {text}"
