"""`show --code` and `diff --code`: the file, its inputs and its refusals; the text is made up here."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfkit.core.rooms
from tests.training.small import RECIPE

from ..sampling import each
from .test_commands import recipe
from .typed import refused, typed

__all__ = ["recipe"]

pytestmark = pytest.mark.usefixtures("printer")


def test_the_code_is_printed_or_written_whole(recipe: Path, tmp_path: Path) -> None:
    text = '"""mine"""\nWIDTH = 16\nINPUTS = []\n# to use it\n'
    assert typed("show", recipe, "--code").stdout == text
    chosen = typed("show", recipe, "--code", "--with", "attention_mask, token_type_ids", "--variant", "wide").stdout
    assert "WIDTH = 32\nINPUTS = ['attention_mask', 'token_type_ids']\n" in chosen
    file = tmp_path / "mine.py"
    assert typed("show", recipe, "--code", "--out", file).stdout == f"{file}: {len(text)} characters\n"
    assert file.read_text() == text
    assert "already exists; choose another name, or replace it" in refused("show", recipe, "--code", "--out", file)
    assert typed("show", recipe, "--code", "--out", file, "--force", "--set", "model.d_model=8").exit_code == 0
    assert "WIDTH = 8" in file.read_text() and sorted(tmp_path.glob("*.py")) == [file]


def test_a_run_s_code_has_its_name(tmp_path: Path) -> None:
    made = tfkit.load_recipe({"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 20}})
    tfkit.save(tfkit.build(made), made, None, tmp_path / "first")
    assert typed("show", tmp_path / "first", "--code").stdout.startswith('"""first"""\n')
    assert typed("show", tmp_path / "first").stdout.startswith("first: decoder")


def test_options_of_another_output_are_refused_by_name(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder.py").mkdir()
    rows = [
        *(("--length 8", "--length"), ("--batch 1", "--batch"), ("--dtype float32", "--dtype"), ("--json", "--json")),
        ("--out mine", "the suffix must be one of .py, got none"),
        (f"--out {tmp_path / 'folder.py'} --force", "folder.py: is a folder"),
    ]
    each(rows, lambda words, said: said_in_a_line(said, "show", recipe, "--code", *words.split()))
    each(rows[:4], lambda words, said: said_in_a_line(said, "diff", recipe, recipe, "--code", *words.split()))
    alone = ("--out x.py", "--with token_type_ids", "--force")
    each(alone, lambda words: said_in_a_line(f"{words.split()[0]} needs --code", "show", recipe, *words.split()))
    monkeypatch.setattr(tfkit.core.rooms, "pages", lambda name: [])
    said_in_a_line("--code: this installation has no printer", "show", recipe, "--code")


def said_in_a_line(message: str, *words: object) -> None:
    text = refused(*words)
    assert message in text and text.startswith("tfkit: ") and text.count("\n") == 1


def test_what_cannot_be_printed_is_a_no(recipe: Path, tmp_path: Path) -> None:
    for words in (("show", recipe, "--code", "--out", tmp_path / "mine.py"), ("diff", recipe, "--code")):
        result = typed(*words, "--set", "model.d_model=12")
        assert (result.exit_code, result.stdout) == (1, "") and not (tmp_path / "mine.py").exists()
        assert result.stderr == "tfkit: 12 is too odd\n"


def test_a_diff_of_code_is_unified(recipe: Path) -> None:
    lines = typed("diff", recipe, "--variant", "wide", "--code").stdout.splitlines()
    assert lines[:2] == [f"--- {recipe}", f"+++ {recipe} --variant wide"]
    assert lines[3:] == [' """mine"""', "-WIDTH = 16", "+WIDTH = 32", " INPUTS = []"]
    assert typed("diff", recipe, recipe, "--code").stdout == "the code of the two models is the same\n"
