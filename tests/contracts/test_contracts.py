"""Every registered part is held to every contract that it promises, by being registered."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tfkit.core.registry import REGISTRY

from .cases import SLOTS, Case, cases, variants
from .checks import CHECKS, SLOW, Check

NAMES = [(slot, name) for slot in SLOTS for name in REGISTRY.names(slot)]
PLAIN = [case for slot, name in NAMES for case in cases(slot, name)]
FIRST = {cases(slot, name)[0] for slot, name in NAMES}
VARIED = [case for slot, name in NAMES for case in variants(slot, name)]
QUICK = [check for name, check in CHECKS.items() if name not in SLOW]


def hold(case: Case, checks: Iterable[Check]) -> None:
    """Every check that applies; all that is broken is told at once."""
    broken = []
    for check in checks:
        if check.applies(case) and (not check.once or case in FIRST):
            try:
                check(case)
            except AssertionError as error:
                broken.append(str(error))
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_part_keeps_its_contracts(case: Case) -> None:
    hold(case, QUICK)


@pytest.mark.parametrize("case", VARIED, ids=str)
def test_part_keeps_its_contracts_with_another_option(case: Case) -> None:
    hold(case, [check for check in QUICK if check.every_option])


# test_compile.py does the same for many parts at once, in a tenth of the time
@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("case", [case for case in PLAIN if case in FIRST or case.slot == "attention"], ids=str)
def test_part_compiles_and_exports_alone(name: str, case: Case) -> None:
    hold(case, [CHECKS[name]])
