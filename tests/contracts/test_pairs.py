"""Every pair of parts that meet in a layer works, or a rule of the table refuses it: there is nothing in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tfkit.contracts.cases import Case, cases, loads, refusal
from tfkit.contracts.check import CHECKS
from tfkit.contracts.options import required
from tfkit.core.registry import REGISTRY
from tfkit.recipe.rules import PAIRS, pairs

from ..sampling import looped, some_rows

# forward, backward, who sees whom, padding, and decoding from a state as without
HELD = ("built", "shapes", "gradients", "future", "padding", "cache")
TABLE = [(slot, name, other, partner, why) for slot, other in PAIRS for name, partner, why in pairs(slot, other)]


def together(slot: str, name: str, other: str, partner: str) -> Iterator[Case]:
    """The part with its partner in the layer, in the topologies that its own slot is tried in."""
    options: dict[str, Any] = {"type": partner, **required(other, partner)}
    found = cases(slot, name)
    for case in found if other == "attention" else found[:1]:  # a norm meets a layout in one way only
        yield case.with_layer(**{other: options})


@pytest.mark.full
@pytest.mark.parametrize(
    ("slot", "name", "other", "partner", "why"), some_rows((row for row in TABLE if row[4] is None), every=9)
)
def test_a_pair_works(slot: str, name: str, other: str, partner: str, why: None) -> None:
    found = [case for case in together(slot, name, other, partner) if loads(case)]
    assert found, f"no rule refuses {slot} '{name}' with {other} '{partner}', yet no recipe takes them"
    for case in found:
        for check in HELD:
            # what is promised by both
            if CHECKS[check].applies(case) and CHECKS[check].required_of(REGISTRY.get(other, partner)):
                CHECKS[check](case)


@looped(("slot", "name", "other", "partner", "why"), [row for row in TABLE if row[4] is not None])
def test_a_pair_that_a_rule_refuses_is_refused_with_its_reason(
    slot: str, name: str, other: str, partner: str, why: str
) -> None:
    for case in together(slot, name, other, partner):
        said = refusal(case)
        assert said is not None, f"{case}: the table refuses it, and the recipe is accepted"
        assert why in said or "does not declare" in said, said


def test_the_table_is_not_empty() -> None:
    assert {(slot, other) for slot, _, other, _, _ in TABLE} == set(PAIRS)
