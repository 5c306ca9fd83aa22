"""Every registered part is held to every contract that it promises, by being registered."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import tfkit.contracts.verify
from tfkit.contracts.cases import MODEL, cases
from tfkit.contracts.check import CHECKS, with_needs
from tfkit.contracts.verify import verify
from tfkit.core.inputs import CONTRACTS
from tfkit.core.registry import CATALOGUES, REGISTRY

NAMES = [(slot, name) for slot in CATALOGUES for name in REGISTRY.names(slot)]
if find_spec("llguidance") is None:
    NAMES = [entry for entry in NAMES if entry not in {("logits", "choices"), ("logits", "regex")}]
QUICK = [name for name, check in CHECKS.items() if not check.slow]
SLOW = [name for name, check in CHECKS.items() if check.slow]
# to try the options of these takes long; `multi_head` represents them in the quick suite
LONG = [("attention", name) for name in ("differential", "latent", "linear", "performer")]
EVERY = 4  # of the changes of one option, one in so many is tried in the full suite
FEW = 12  # and in the quick one


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "name"), NAMES)
def test_part_keeps_its_contracts_with_every_option(slot: str, name: str) -> None:
    report = verify(REGISTRY.get(slot, name), QUICK)
    assert report.holds, str(report)


@pytest.mark.whole
@pytest.mark.parametrize("every", [FEW, pytest.param(EVERY, marks=pytest.mark.full)])
@pytest.mark.parametrize(("slot", "name"), NAMES)
def test_part_keeps_its_contracts(slot: str, name: str, every: int) -> None:
    report = verify(REGISTRY.get(slot, name), QUICK, options=0 if (slot, name) in LONG else every)
    assert report.holds, str(report)
    assert report.outcomes, "nothing was asked of it"


# test_compile.py does the same for many parts at once, in a tenth of the time
@pytest.mark.slow
@pytest.mark.parametrize("check", SLOW)
@pytest.mark.parametrize(("slot", "name"), [entry for entry in NAMES if entry[0] in MODEL])
def test_part_compiles_and_exports_alone(check: str, slot: str, name: str) -> None:
    found = cases(slot, name)
    for case in found if slot == "attention" else found[:1]:
        if CHECKS[check].applies(case):
            CHECKS[check](case)


@pytest.mark.parametrize("slot", CATALOGUES)
def test_every_slot_has_checks_of_its_own(slot: str) -> None:
    own = [check for check in CHECKS.values() if slot in check.slots and check.name not in ("built", "config")]
    assert own, f"nothing is asked of a {slot}"


def test_a_part_can_except_itself_from_every_contract_but_the_first() -> None:
    assert set(CONTRACTS) == set(CHECKS) - {"built"}


def test_what_a_check_needs_runs_before_it() -> None:
    for place, check in enumerate(CHECKS.values()):
        assert set(check.needs) <= set(list(CHECKS)[:place]), check.name
        assert with_needs(check.name)[0] == "built"


def test_a_check_needs_what_is_asked_of_the_same_parts() -> None:
    for check in CHECKS.values():
        for need in check.needs:
            assert set(check.slots) <= set(CHECKS[need].slots), f"{check.name} needs {need}"


def test_every_file_of_checks_is_listed() -> None:
    folder = Path(tfkit.contracts.__file__).parent
    texts = {file.stem: file.read_text("utf-8") for file in folder.glob("*.py")}
    files = {name for name, text in texts.items() if re.search(r"^@contract\(", text, re.MULTILINE)}
    assert files == set(tfkit.contracts.verify.FILES)
