"""`tfkit new`: a recipe's text under a name of one's own, right before it is written, with its comments."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.options import path_values

from ..sampling import some

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


def changes(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[0] + line[2:] for line in lines if line[0] in "+-"]


def made(name: str, *arguments: str) -> str:
    result = new(name, *arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return Path(name).with_suffix(".yaml").read_text()


def test_without_more_it_is_a_recipe_that_trains(here: Path) -> None:
    result = new("mine")
    assert result.stdout == "mine.yaml: made from translate-numbers\nType: tfkit train mine.yaml\n"
    before, after = shipped_recipes()["translate-numbers"].read_text(), (here / "mine.yaml").read_text()
    assert changes(before, after) == [
        "-# Type: tfkit train translate-numbers",
        "+# Made from translate-numbers.",
        "+# Type: tfkit train mine.yaml",
    ]
    assert tfkit.load_recipe("mine.yaml").root.plain() == tfkit.load_recipe("translate-numbers").root.plain()


def files(recipe: tfkit.Recipe) -> list[str]:
    """The paths that the section `data` says."""
    return [] if recipe.data is None else [os.path.normpath(path) for path in path_values(recipe.data)]


@pytest.mark.parametrize("name", some(shipped_recipes()))
def test_from_every_shipped_recipe(here: Path, name: str) -> None:
    text = made("mine", "--from", name)
    mine, theirs = tfkit.load_recipe("mine.yaml"), tfkit.load_recipe(name)
    assert mine.root.plain() | {"data": None} == theirs.root.plain() | {"data": None}
    assert files(mine) == files(theirs)
    assert f"# Made from {name}.\n" in text
    assert f" {name} " not in text.partition("# Type:")[2].partition("\n")[0] + " "


def test_values_go_into_the_text(here: Path) -> None:
    text = made("mine", "--set", "model.d_model=64", "--set", "train.optimizer.eps=1e-8", "--set", "train.patience=2")
    said = changes(shipped_recipes()["translate-numbers"].read_text(), text)
    assert "+  optimizer: {type: adam, betas: [0.9, 0.98], eps: 1e-8}" in said
    assert {"-  d_model: 128", "+  d_model: 64", "+  patience: 2"} <= set(said)
    expect = text.index("# Expect:")
    assert text[:expect].endswith("# Of translate-numbers, before it was changed here:\n")
    assert "# Made from translate-numbers --set model.d_model=64 --set train.optimizer.eps=1e-8 --set" in text


def test_a_value_that_changes_nothing_qualifies_nothing(here: Path) -> None:
    assert "before it was changed" not in made("mine", "--set", "model.d_model=128")


def test_what_is_set_is_not_said_to_be_typed_again(here: Path) -> None:
    sets = [f"data.{split}.{side}=x" for split in ("train", "valid") for side in ("file", "tags")]
    some = made("some", "--from", "snips", "--set", sets[0])
    assert "# Type: tfkit train some.yaml --set data.train.tags=train/seq.out \\\n" in some
    every = made("every", "--from", "snips", *(part for text in sets for part in ("--set", text)))
    assert "# Type: tfkit train every.yaml\n# Of snips" in every


def test_paths_lead_to_the_same_files(here: Path) -> None:
    text = made("near/mine", "--from", "far/base.yaml")
    assert '  train: {type: text, files: ["../far/texts/a.txt", "../far/texts/b.txt"]}   # two files\n' in text
    assert '  other: {data.train.files: "../far/texts/c.txt"}\n' in text
    recipe, base = tfkit.load_recipe("near/mine.yaml"), tfkit.load_recipe("far/base.yaml")
    assert recipe.data is not None and base.data is not None
    assert [Path(file).resolve() for file in recipe.data.train.files] == list(map(Path, base.data.train.files))


def test_paths_on_the_command_line_are_those_of_the_working_folder(here: Path) -> None:
    text = made("near/mine", "--from", "far/base.yaml", "--set", "data.train.files=mine.txt", "--variant", "wide")
    assert '  train: {type: text, files: "../mine.txt"}   # two files\n' in text
    assert "  d_model: 32   # narrow\n" in text
    assert "--set data.train.files" not in text.partition("# Type:")[2].partition("\n")[0]


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
    assert "extends: far/base.yaml\nimports: [far/parts.py]\n" in text
    assert "data:\n  valid: {files: far/texts/d.txt}\n" in text


def test_line_ends_and_comments_stay(here: Path) -> None:
    (here / "dos.yaml").write_bytes(BASE.replace("\n", "\r\n").encode())
    assert new("mine", "--from", "dos.yaml", "--set", "model.dropout=none").exit_code == 2
    assert new("mine", "--from", "dos.yaml", "--set", "model.layer.dropout=0.1").exit_code == 0
    text = (here / "mine.yaml").read_bytes().decode()
    assert text.count("\n") == text.count("\r\n")
    assert "    feedforward: {type: mlp, d_ff: 16}\r\n    dropout: 0.1\r\n" in text


def test_an_older_recipe_is_written_in_this_language(here: Path) -> None:
    (here / "old.yaml").write_text(
        BASE.replace("tfkit: 1", "tfkit: 0").replace("position: learned", "position: relative_buckets")
    )
    result = new("mine", "--from", "old.yaml")
    assert result.exit_code == 0
    assert result.stderr.count("read in version 1 as this") == 1
    text = (here / "mine.yaml").read_text()
    assert "tfkit: 1\n" in text and "  position: t5_bias\n" in text
    assert "tfkit: 0" in (here / "old.yaml").read_text()


# -------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "model.layer.attention.num_hedas=4"], "--set model.layer.attention.num_hedas=4: "
         "model.layer.attention.num_hedas: unknown option. Did you mean 'num_heads'?\n"),
        (["--set", "model.d_model"], "--set model.d_model: write key=value, as in model.num_layers=4\n"),
        (["--set", "extends=gpt2"], "'extends' cannot be laid over a recipe"),
        (["--variant", "huge"], "--variant huge: unknown variant 'huge'"),
        (["--from", "gtp2"], "'gtp2' is neither a shipped recipe nor a file. Did you mean 'gpt2'?"),
        (["--from", "far"], "this is a folder, not a recipe file"),
        (["--from", "far/base.yaml", "--set", "model.num_layers=0"], "--set model.num_layers=0: model.num_layers"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_written(here: Path, arguments: list[str], message: str) -> None:
    result = new("mine", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["far"]


def test_a_change_that_a_text_cannot_hold_is_refused(here: Path) -> None:
    (here / "far" / "child.yaml").write_text(
        "tfkit: 1\nextends: base.yaml\nmodel: {layer: {feedforward: {activation: gelu}}}\n"
    )
    result = new("mine", "--from", "far/child.yaml", "--set", "model.layer.feedforward={type: glu, d_ff: 8}")
    assert result.exit_code == 2
    assert "cannot be written into its text, because of what it extends" in result.stderr
    assert not (here / "mine.yaml").exists()


def test_an_anchor_in_the_way_is_named(here: Path) -> None:
    text = BASE.replace("[texts/a.txt, texts/b.txt]", "&files [texts/a.txt]").replace("texts/b.txt}", "*files}")
    (here / "far" / "base.yaml").write_text(text)
    assert made("mine", "--from", "far/base.yaml").count("files") > 2
    result = new("other", "--from", "far/base.yaml", "--set", "data.train.files=x.txt")
    assert result.exit_code == 2
    assert result.stderr == (
        "tfkit: far/base.yaml:20: the value &files is used at line 21 too, where nothing is to change; write it out "
        "there first\n"
    )


@pytest.mark.parametrize("name", ["", " ", ".yaml", "folder/"])
def test_a_name_that_is_none(here: Path, name: str) -> None:
    result = new(name)
    assert (result.exit_code, "NAME is the name of a file" in result.stderr) == (2, True)


def test_nothing_is_written_over_without_force(here: Path) -> None:
    (here / "mine.yaml").write_text("precious\n")
    result = new("mine")
    assert result.exit_code == 2
    assert result.stderr == "tfkit: mine.yaml: is there already; choose another name, or replace it with --force\n"
    assert (here / "mine.yaml").read_text() == "precious\n"
    assert new("mine", "--force").exit_code == 0
    assert new("far").exit_code == 0
    (here / "folder.yaml").mkdir()
    assert "this is a folder" in new("folder", "--force").stderr
