"""`tfkit new --part`: a part for every slot that works as it is written, and a test of it that passes."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfkit.cli.new import FOLDER, LIKE, USES
from tfkit.contracts.verify import verify
from tfkit.core.registry import CATALOGUES, HOMES, REGISTRY
from tfkit.recipe.imports import import_parts

from ..sampling import each, looped
from .typed import refused, typed

QUICK = ["feedforward", "metric", "stop"]
SEARCHING = (
    "tfkit.generation.search",
    "tfkit.generation.strategy.rows",
    "tfkit.training.objective.rows",
)  # what every strategy is made of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_there_is_one_for_every_slot() -> None:
    assert set(USES) == set(CATALOGUES)
    likes = {f"{slot}_{like}" for slot, words in LIKE.items() for like in words}
    assert {file.stem for file in FOLDER.glob("*.py")} - {"__init__", "commands"} == set(USES) | likes


@pytest.mark.full
@looped(("slot", "like"), [(slot, like) for slot, words in LIKE.items() for like in words])
def test_one_that_starts_from_another_part(here: Path, slot: str, like: str) -> None:
    name = f"like_{like}"
    result = typed("new", "--part", slot, name, "--like", like)
    assert (result.exit_code, result.stderr) == (0, "")
    import_parts(f"{name}.py")
    report = verify(REGISTRY.get(slot, name), options=0, checks=("built", "config", "shapes", "gradients", "cache"))
    assert report.holds, report
    text = (FOLDER / f"{slot}_{like}.py").read_text(encoding="utf-8")
    assert "Change th" in text and "description=" in text


@looped("slot", USES)
def test_what_it_says_to_type_works(here: Path, slot: str) -> None:
    before = set(here.iterdir())
    result = typed("new", "--part", slot, f"my_{slot}")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {path.name for path in {*here.iterdir()} - before} == {f"my_{slot}.py", f"test_my_{slot}.py"}
    verify_line, check_line, test_line = (line.strip() for line in result.stdout.partition("Next: ")[2].splitlines())
    assert verify_line == f"tfkit parts --verify my_{slot}.py"
    assert test_line == f"pytest test_my_{slot}.py"
    checked = typed(*shlex.split(check_line)[1:])
    assert checked.exit_code == 0, checked.stderr
    assert f"my_{slot}" in REGISTRY.names(slot)


@looped("slot", USES)
def test_it_shows_what_to_change_and_needs_little(slot: str) -> None:
    text = (FOLDER / f"{slot}.py").read_text(encoding="utf-8")
    assert "Change th" in text
    assert "class Config(" in text and "description=" in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tfkit."):
            module = str(node.module)
            base = module.endswith(".base") or module in HOMES.values()  # of a slot's page, its base class
            assert base or module in SEARCHING or module.split(".")[1] in ("core", "functional")


def write(slots: Sequence[str]) -> None:
    for slot in slots:
        assert typed("new", "--part", slot, f"my_{slot}").exit_code == 0


@pytest.mark.slow
def test_the_tests_it_writes_pass_until_a_part_is_broken(here: Path) -> None:
    write([*QUICK, "attention"])
    part = here / "my_attention.py"
    part.write_text(
        part.read_text().replace("attend(query, key, value, context.mask, Scores(1.0))", "query @ key.mT @ value")
    )
    result = run_tests(here)
    assert "test_my_attention.py::test_no_token_sees_a_later_one" in result.stdout
    assert "1 failed, 9 passed" in result.stdout


@pytest.mark.slow
def test_all_the_tests_it_writes_pass(here: Path) -> None:
    write(list(USES))
    result = run_tests(here)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "slots",
    [["schedule", "logits", "stop", "strategy", "metric", "callback"], pytest.param(USES, marks=pytest.mark.slow)],
    ids=len,
)
def test_it_keeps_its_contracts(here: Path, slots: Sequence[str]) -> None:
    write(slots)

    def check(slot: str) -> None:
        import_parts(f"my_{slot}.py")
        report = verify(REGISTRY.get(slot, f"my_{slot}"))
        assert report.holds, report

    each(slots, check)


@looped(
    ("name", "part"),
    [("x", "X"), ("sharp_eyes", "SharpEyes"), ("attention", "AttentionPart"), ("tensor", "TensorPart"), ("_1", "My1")],
)
def test_the_class_has_the_parts_name(here: Path, name: str, part: str) -> None:
    assert typed("new", "--part", "attention", name).exit_code == 0
    tree = ast.parse((here / f"{name}.py").read_text())
    (made,) = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert made == part
    import_parts(f"{name}.py")


def test_what_cannot_be_is_said_and_nothing_is_written_over(here: Path) -> None:
    lone = "the only other arguments it accepts are NAME, --like and --force"
    for arguments, message in (
        (("atention", "x"), "unknown slot 'atention'. Did you mean 'attention'?"),
        (("nothing_at_all", "x"), "unknown slot 'nothing_at_all'. Available: attention, "),
        (("residual", "x", "--like", "multi_head"), "no skeleton of a residual like 'multi_head'. Available: --part "),
        (("attention", "multi_head"), "attention 'multi_head' is already registered"),
        (("attention", "two words"), "must be an identifier such as my_attention, got 'two words'"),
        (("attention", "x", "--from", "gpt2"), lone),
        (("attention", "x", "--set", "a=1"), lone),
    ):
        assert message in " ".join(refused("new", "--part", *arguments).split())
        assert not list(here.iterdir())
    for there in ("mine.py", "test_mine.py"):
        (here / there).write_text("precious\n")
        assert f"tfkit: {there}: already exists" in refused("new", "--part", "norm", "mine")
        assert [(path.name, path.read_text()) for path in here.iterdir()] == [(there, "precious\n")]
        (here / there).unlink()
    (here / "mine.py").write_text("precious\n")
    assert typed("new", "--part", "norm", "mine", "--force").exit_code == 0
    assert "precious" not in (here / "mine.py").read_text()
