"""Values of a recipe that are seldom meant: accepted, with a warning that has its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch import Tensor

import tfkit
from tfkit.cli.main import WRONG, main
from tfkit.components.norm import Norm
from tfkit.core import component
from tfkit.core.component import Doubt, Problem
from tfkit.core.errors import RecipeWarning, RunError
from tfkit.recipe.load import load_recipe

TEXT = """\
tfkit: 1
model:
  type: decoder
  d_model: 8
  vocab_size: 20
  num_layers: 2
  embedding: tokens
  layer:
    norm: {type: doubtful, size: 1}
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  head: language_model
"""
SAYS = "mine.yaml:9:34: warning: model.layer.norm.size: 1 is seldom meant"


@pytest.fixture(autouse=True)
def doubtful(tmp_path, monkeypatch):
    """A working folder with a recipe, and a norm that doubts its option."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(TEXT)

    @tfkit.register("norm", "doubtful")
    class Doubtful(Norm):
        class Config(component.Config):
            size: int

            def check(self, shape: tfkit.Shape) -> Iterator[Problem]:
                if self.size == 1:
                    yield Doubt("size", "1 is seldom meant")
                if self.size < 1:
                    yield Problem("size", "must be at least 1")

        def forward(self, x: Tensor) -> Tensor:
            return x


def test_a_doubt_is_a_warning_with_its_place_once_for_all_layers():
    (found,) = load_recipe("mine.yaml").warnings
    assert (found.file, found.line, found.column, found.path) == ("mine.yaml", 9, 34, "model.layer.norm.size")
    assert str(RecipeWarning(found)) == SAYS
    assert load_recipe("mine.yaml", overrides={"model.layer.norm.size": 2}).warnings == ()


def test_warnings_are_sorted_by_place():
    sets = ["model.encoder.layer.norm.size=1", "model.decoder.layer.norm.size=1", "model.type=encoder_decoder"]
    sets += ["model.layer.cross_attention.num_heads=2"]
    found = load_recipe("mine.yaml", sets=sets).warnings
    assert [warning.file for warning in found] == [f"--set {text}" for text in sorted(sets[:2])]


def test_commands_print_them_on_stderr_and_continue():
    Path("other.yaml").write_text(TEXT)
    for words, said in (
        (["check", "mine.yaml", "other.yaml"], f"{SAYS}\n{SAYS.replace('mine', 'other')}\n"),
        (["show", "mine.yaml"], f"{SAYS}\n"),
    ):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, result.stderr) == (0, said) and result.stdout
    wrong = CliRunner().invoke(main, ["check", "mine.yaml", "--set", "model.final_norm={type: doubtful, size: 0}"])
    assert (wrong.exit_code, wrong.stdout) == (WRONG, "")
    assert "must be at least 1" in wrong.stderr and "warning" not in wrong.stderr


def test_training_reports_them_before_anything_else(tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.warns(RecipeWarning) as found, pytest.raises(RunError):
        tfkit.train("mine.yaml", out=tmp_path / "taken")
    assert [str(warning.message) for warning in found] == [SAYS] and found[0].filename == __file__
