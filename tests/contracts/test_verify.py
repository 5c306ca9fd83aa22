"""What people are shown: a heading for each part, a line for each check, failures in words, the counts."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from tfkit.contracts import verify as module
from tfkit.contracts.expect import Broken, describe
from tfkit.contracts.report import Failure, Outcome, Report
from tfkit.contracts.verify import registered_by, run_verification, verify
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.imports import import_parts

SOURCE = '''\
import tfkit
from tfkit.training.metric import LossMetric, TextMetric
from tfkit.training.schedule import Schedule


@tfkit.register("schedule", "{prefix}_steady")
class Steady(Schedule):
    """A sound one."""

    def lr(self, step, total, d_model):
        return 0.1


@tfkit.register("schedule", "{prefix}_angry")
class Angry(Schedule):
    """Raises when it is asked."""

    def lr(self, step, total, d_model):
        return [][step]


@tfkit.register("metric", "{prefix}_late")
class Late(TextMetric):
    def compare(self, outputs, references):
        return float(outputs[0] == references[0])
'''


NUMBER = count()  # a file of the same text would be the same module


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = tmp_path / "my_parts.py"
    file.write_text(SOURCE.format(prefix=f"mine_{next(NUMBER)}"))
    monkeypatch.chdir(tmp_path)
    return import_parts(file)


def shown(found: Any, width: int = 120) -> tuple[bool, str]:
    stream = io.StringIO()
    holds = run_verification(found, Console(file=stream, width=width))
    return holds, stream.getvalue()


def test_registered_by_gives_the_parts_of_these_modules(parts: ModuleType) -> None:
    found = registered_by([parts])
    assert [part.__name__ for part in found] == ["Angry", "Steady", "Late"]
    assert all(part.__module__ == parts.__name__ for part in found)


def test_a_module_without_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(UsageError, match=r"empty.py: registers no part; decorate a class with @tfkit.register"):
        registered_by([import_parts(file)])


def test_the_report_says_what_failed_and_where(parts: ModuleType) -> None:
    holds, text = shown(registered_by([parts]))
    assert not holds
    lines = [line.split() for line in text.splitlines()]
    names = {part.__name__: part.part_name for part in registered_by([parts])}
    assert ["schedule", names["Angry"], "my_parts.py:14"] in lines
    assert "raises IndexError: list index out of range (my_parts.py:19, in lr)" in text
    assert ["not", "run", "pure", "because", "'rates'", "failed"] in lines
    assert ["FAILED", "order", "the", "order", "of", "the", "examples", "does", "not", "matter"] in lines
    assert "the same pairs score 0 and 1" in text
    assert text.splitlines()[-1] == "3 parts, 14 checks: 11 ok, 2 FAILED, 1 not run"


def test_a_sound_part_holds(parts: ModuleType) -> None:
    steady = next(part for part in registered_by([parts]) if part.__name__ == "Steady")
    holds, text = shown([steady])
    assert holds
    assert text.splitlines()[-1] == "1 part, 4 checks: 4 ok"
    assert "FAILED" not in text and "not run" not in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_nothing_is_cut_at_any_width(parts: ModuleType, width: int) -> None:
    _, text = shown(registered_by([parts]), width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "(my_parts.py:19,inlr)" in "".join(text.split())


def test_what_is_not_declared_is_listed() -> None:
    norm = REGISTRY.get("norm", "layer_norm")
    assert Report(norm, ()).undeclared == []

    class Quiet(norm):  # type: ignore[misc,valid-type]
        capabilities = frozenset({"causal"})

    Quiet.adopt("norm", "quiet")
    assert Report(Quiet, ()).undeclared == ["cache", "compile", "export", "packing", "padding"]


def test_equal_failures_are_told_once_and_many_are_counted() -> None:
    check = verify(REGISTRY.get("schedule", "constant"), ["built"]).outcomes[0].check
    same = Outcome(check, (Failure("in a decoder", "wrong"), Failure("in an encoder", "wrong")))
    assert list(same.lines())[1:] == ["in a decoder; in an encoder: wrong"]
    many = Outcome(check, tuple(Failure("", f"wrong {number}") for number in range(5)))
    assert list(many.lines())[1:] == ["wrong 0", "wrong 1", "wrong 2", "and 2 more failures"]


def test_an_interrupt_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    part = REGISTRY.get("schedule", "constant")

    def interrupted(self: Any, step: int, total: int, d_model: int) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(part, "lr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify(part)


def test_an_error_while_a_part_is_asked_what_it_can_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(slot: str, name: str) -> Any:
        raise ZeroDivisionError("no hooks")

    monkeypatch.setattr(module, "cases", broken)
    report = verify(REGISTRY.get("schedule", "constant"))
    assert {outcome.status for outcome in report.outcomes} == {"FAILED", "not run"}
    assert "raises ZeroDivisionError: no hooks" in str(report)


def test_a_long_message_is_shortened() -> None:
    part = REGISTRY.get("schedule", "constant")
    message = describe(ValueError("long " * 500), part)
    assert len(message) < 500 and message.endswith("...")
    assert describe(Broken("as it is"), part) == "as it is"


def test_verifying_leaves_the_callers_random_numbers_alone() -> None:
    import torch

    before = torch.get_rng_state()
    verify(REGISTRY.get("norm", "layer_norm"), ["built", "shapes", "dropout"], options=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_an_attention_takes_well_under_a_minute() -> None:
    import time

    start = time.process_time()
    assert verify(REGISTRY.get("attention", "multi_head")).holds
    assert time.process_time() - start < 45
