"""A printed number leads back to its run, or to the variant of a study that has it as a mean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import replaced, study, tfkit
from tfkit.core.errors import UsageError
from tfkit.studies.compare import PrintedNumber
from tfkit.studies.study import StudyRun
from tfkit.studies.study import study as run_study

from ..sampling import looped


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    folder = tmp_path_factory.mktemp("provenance")
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        return run_study(study(folder, compare=["wide"]), out=folder / "study", progress=False)


@pytest.mark.full
def test_a_number_leads_to_its_run_and_a_mean_to_its_variant(done: StudyRun) -> None:
    arm = done.results.arms[1]
    loss = arm.cells[1].scores["valid.loss"]
    printed = tfkit("runs", done.folder.name, "--produced", f"valid.loss={loss:.6f}", folder=done.folder.parent)
    assert printed.exit_code == 0, printed.output
    assert "wide-s1" in printed.stdout and "baseline-s0" not in printed.stdout
    spread = arm.spread("valid.loss")
    assert spread is not None
    printed = tfkit("runs", done.folder.name, "--produced", f"valid.loss={spread.mean:.6f}", folder=done.folder.parent)
    assert f"{done.folder.name}: wide: mean of 2 runs, {spread.mean:.6g}" in printed.stdout
    moved = Path(shutil.copytree(done.folder / "runs", done.folder.parent / "alone"))
    printed = tfkit("runs", moved, "--produced", f"valid.loss={spread.mean:.6f}", folder=done.folder.parent)
    assert printed.exit_code == 0 and "mean of" not in printed.stdout


@looped(
    ("text", "value", "expected"),
    [
        ("valid.loss=1.865", 1.86549, True),
        ("valid.loss=1.865", 1.8656, False),
        ("valid.loss=-0.02", -0.0249, True),
        ("seconds=3", 3.4, True),
        ("flops=1.2e9", 1.24e9, True),
        ("flops=1.2e9", 1.26e9, False),
        ("valid.loss=1", True, False),
        ("valid.loss=1", "1", False),
        ("valid.loss=1", None, False),
    ],
)
def test_a_number_stands_for_what_rounds_to_it(text: str, value: Any, expected: bool) -> None:
    assert PrintedNumber.of(text).matches(value) is expected


@looped("text", ["valid.loss", "=1", "valid.loss=", "valid.loss=x", "valid.loss=1=2"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--produced .*: write a measure and a number: valid.loss=1.865"):
        PrintedNumber.of(text)
