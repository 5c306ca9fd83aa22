"""A recipe that asks for what the part does not declare is refused, rather than built and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfkit.contracts.cases import IN_WORDS, TOPOLOGIES, Case, lacks, loads
from tfkit.contracts.check import SUBLAYERS, contract, expect

# what asks for a capability: the keys of a layer, and the slots of the parts that are asked
ASKING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "rotation": ({"position": "rotary"}, ("attention",)),
    "bias": ({"position": "alibi"}, ("attention",)),
    "masks": ({"mask": {"type": "window", "size": 3}}, SUBLAYERS),
}


@contract("a recipe is refused where the part lacks what it needs", "built", slots=SUBLAYERS, once=True)
def check_refusals(case: Case) -> None:
    """Write the recipes that ask for something else."""
    for asked, capability, words in _asking(case):
        expect(not loads(asked), f"it does not declare {capability}, yet a recipe is accepted {words}")


def _asking(case: Case) -> Iterator[tuple[Case, str, str]]:
    """Cases that the part is not made for, each with what it lacks and what the recipe has."""
    for topology in TOPOLOGIES[case.slot]:
        other = Case(case.slot, case.name, topology)
        if lacking := lacks(other):
            yield other, " and ".join(lacking), f"that has it {IN_WORDS[topology]}"
    for capability, (keys, slots) in ASKING.items():
        if case.slot in slots and not case.declares(capability):
            text = " and ".join(f"{name}: {value}" for name, value in keys.items())
            yield case.with_layer(**keys), capability, f"that says {text}"
