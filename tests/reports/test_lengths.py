"""How long a text may be is known wherever it is said: in the stack, or in a position that holds so many."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tfkit.cli.main import WRONG, main
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count, default_length

from ..sampling import looped

TEXT = """\
tfkit: 1
model:
  type: decoder
  d_model: 8
  vocab_size: 20
  num_layers: 2
  embedding: tokens
  position: {type: learned, max_length: 24}
  layer: {norm: layer_norm, attention: {type: multi_head, num_heads: 2}, feedforward: {type: mlp, d_ff: 16}}
  head: language_model
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(TEXT)


def run(*words: str):
    return CliRunner().invoke(main, list(words))


def test_show_counts_at_the_length_that_a_position_holds():
    result = run("show", "mine.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "At length 24," in result.stdout
    assert run("show", "mine.yaml", "--length", "9").exit_code == 0
    longer = run("show", "mine.yaml", "--length", "25")
    assert (longer.exit_code, longer.stderr) == (WRONG, "tfkit: length 25 exceeds the decoder's max_length 24\n")


@looped(
    ("position", "max_length", "length"),
    [
        ("{type: learned, max_length: 24}", "none", 24),
        ("{type: learned, max_length: 24}", "16", 16),
        ("[{type: learned, max_length: 24}, {type: learned, max_length: 20}]", "none", 20),
        ("[{type: learned, max_length: 24}, rotary]", "none", 24),
        ("rotary", "none", 512),
    ],
)
def test_the_shortest_holds(position, max_length, length):
    recipe = load_recipe("mine.yaml", sets=[f"model.position={position}", f"model.max_length={max_length}"])
    assert default_length(recipe.blueprint()) == length
    assert count(recipe.blueprint()).length == length
    Path("resolved.yaml").write_text(recipe.resolved())
    assert load_recipe("resolved.yaml").blueprint() == recipe.blueprint()


def test_of_two_stacks_each_has_its_own():
    sets = ["model.type=encoder_decoder", "model.encoder.position={type: learned, max_length: 12}"]
    blueprint = load_recipe("mine.yaml", sets=sets).blueprint()
    assert [plan.max_length for plan in blueprint.stacks()] == [12, 24]
    assert run("show", "mine.yaml", *(f"--set={text}" for text in sets)).exit_code == 0


def test_its_origin_is_the_position():
    assert "max_length: 24  # mine.yaml:8:41, from model.position" in load_recipe("mine.yaml").resolved()
    told = run("explain", "mine.yaml", "model.max_length").stdout
    assert told.startswith("model.max_length: 24\n  derived from model.position: mine.yaml:8:41\n")
