"""`tfkit new`: a recipe of one's own that extends another, right before it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.recipe.text.faults import path_values

from ..sampling import looped

BASE = """\
# A base with data beside it.
# Type: tfkit train base.yaml --set data.train.files=a.txt --set data.valid.files=b.txt
# Expect: little.
tfkit: 1
model:
  type: decoder
  d_model: 16   # narrow
  vocab_size: tokenizer
  max_length: 8
  num_layers: 1
  embedding: tokens
  position: learned
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  head: language_model
data:
  tokenizer: character
  train: {type: text, files: [texts/a.txt, texts/b.txt]}   # two files
  valid: {type: text, files: texts/b.txt}
objective: causal_lm
variants:
  wide: {model.d_model: 32}
  other: {data.train.files: texts/c.txt}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a recipe in another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "base.yaml").write_text(BASE)
    return tmp_path


def new(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["new", *arguments], catch_exceptions=False)


def made(name: str, *arguments: str) -> str:
    result = new(name, *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return Path(name).with_suffix(".yaml").read_text()


def test_without_more_it_is_a_recipe_that_trains(here: Path) -> None:
    result = new("mine")
    assert result.stdout == "mine.yaml: derived from translate-numbers\nNext: tfkit train mine.yaml\n"
    assert (here / "mine.yaml").read_text() == (
        "# translate-numbers; tfkit show mine.yaml prints the whole recipe.\n"
        "# Type: tfkit train mine.yaml\n"
        "tfkit: 1\n"
        "extends: translate-numbers\n"
    )
    assert tfkit.load_recipe("mine.yaml").root.plain() == tfkit.load_recipe("translate-numbers").root.plain()


def files(recipe: tfkit.Recipe) -> list[str]:
    """The paths that the section `data` says."""
    return [] if recipe.data is None else [os.path.normpath(path) for path in path_values(recipe.data)]


def test_it_says_what_is_changed_and_no_more(here: Path) -> None:
    text = made("mine", "--set", "model.d_model=64", "--set", "train.optimizer.eps=1e-8", "--set", "train.patience=2")
    assert text.startswith(
        "# translate-numbers, changed by --set model.d_model=64 --set train.optimizer.eps=1e-8 --set"
    )
    assert text.endswith("model:\n  d_model: 64\ntrain:\n  optimizer: {eps: 1e-8}\n  patience: 2\n")


def test_a_variant_and_a_value_over_it(here: Path) -> None:
    text = made("mine", "--from", "far/base.yaml", "--variant", "wide", "--set", "model.d_model=64")
    assert text.endswith("extends: far/base.yaml\nmodel:\n  d_model: 64\n")
    (here / "far" / "child.yaml").write_text(
        "tfkit: 1\nextends: base.yaml\nmodel: {layer: {feedforward: {activation: gelu}}}\n"
    )
    made("other", "--from", "far/child.yaml", "--set", "model.layer.feedforward={type: glu, d_ff: 8}")
    assert "activation" not in tfkit.load_recipe("other.yaml").root.plain()["model"]["layer"]["feedforward"]


def test_paths_lead_to_the_same_files(here: Path) -> None:
    text = made("near/mine", "--from", "far/base.yaml", "--variant", "other", "--set", "data.valid.files=mine.txt")
    assert 'extends: "../far/base.yaml"\n' in text
    assert '  train: {files: "../far/texts/c.txt"}\n' in text and '  valid: {files: "../mine.txt"}\n' in text
    assert files(tfkit.load_recipe("near/mine.yaml")) == [str(here / path) for path in ("far/texts/c.txt", "mine.txt")]


def test_what_it_extends_and_imports_is_found_again(here: Path) -> None:
    (here / "far" / "parts.py").write_text(
        "import tfkit\nfrom tfkit.components.feedforward import MLP\n"
        "@tfkit.register('feedforward', 'my_mlp')\nclass Mine(MLP): ...\n"
    )
    (here / "far" / "child.yaml").write_text(
        "tfkit: 1\nextends: base.yaml\nimports: [parts.py]\nmodel: {layer: {feedforward: {type: my_mlp, d_ff: 8}}}\n"
    )
    refused = new("mine", "--from", "far/child.yaml")
    assert (refused.exit_code, "this recipe needs the code" in refused.stderr) == (2, True)
    text = made("mine", "--from", "far/child.yaml", "--trust", "--set", "data.valid.files=far/texts/d.txt")
    assert text.endswith("extends: far/child.yaml\ndata:\n  valid: {files: far/texts/d.txt}\n")


@looped(
    ("arguments", "message"),
    [
        (["--set", "model.d_mdel=4"], "--set model.d_mdel=4: model.d_mdel: unknown option. Did you mean 'd_model'?\n"),
        (["--set", "model.d_model"], "--set model.d_model: expected key=value, as in model.num_layers=4\n"),
        (["--set", "extends=gpt2"], "'extends' can only be set in the recipe file"),
        (["--variant", "huge"], "--variant huge: unknown variant 'huge'"),
        (["--from", "gtp2"], "'gtp2' is neither a shipped recipe nor a file. Did you mean 'gpt2'?"),
        (["--from", "far"], "is a folder, not a recipe file"),
        (["--from", "far/base.yaml", "--set", "model.num_layers=0"], "--set model.num_layers=0: model.num_layers"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(here: Path, arguments: list[str], message: str) -> None:
    result = new("mine", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["far"]


@looped("name", ["", " ", ".yaml", "folder/"])
def test_a_name_that_is_none(here: Path, name: str) -> None:
    result = new(name)
    assert (result.exit_code, "NAME must be a file name" in result.stderr) == (2, True)


def test_nothing_is_written_over_without_force(here: Path) -> None:
    (here / "mine.yaml").write_text("precious\n")
    result = new("mine")
    assert result.exit_code == 2
    assert result.stderr == "tfkit: mine.yaml: already exists; choose another name, or replace it with --force\n"
    assert (here / "mine.yaml").read_text() == "precious\n"
    assert new("mine", "--force").exit_code == 0
    assert new("far").exit_code == 0
    (here / "folder.yaml").mkdir()
    assert "is a folder" in new("folder", "--force").stderr
