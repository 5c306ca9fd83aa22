"""`data.folder`: the folder that the paths of corpora are relative to."""

from __future__ import annotations

from pathlib import Path

import pytest

import tfkit
from tfkit.recipe.derive import Derived
from tfkit.recipe.load import Recipe, load_recipe

from .small import said

NAMES = ("train.en", "train.de", "val.en", "val.de", "test_2016_flickr.en", "test_2016_flickr.de")
RECIPE = """
tfkit: 1
extends: multi30k
data:
  folder: texts
  tokenizer: {type: file, path: tokenizer.json}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        file = tmp_path / "recipes" / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a red cat\ntwo dogs\n")
    (tmp_path / "recipes" / "mine.yaml").write_text(RECIPE)
    return tmp_path


def files(recipe: Recipe) -> list[str]:
    """The files of all corpora, relative to the working folder."""
    assert recipe.data is not None
    found = [path for _, corpus in recipe.data.splits() for path in corpus.files_read()]
    return [Path(path).relative_to(Path.cwd()).as_posix() for path in found]


def test_one_value_names_the_files_of_a_shipped_recipe() -> None:
    recipe = load_recipe("multi30k", sets=["data.folder=recipes/texts"])
    assert files(recipe) == [f"recipes/texts/{name}" for name in NAMES]
    assert not recipe.missing_files()
    assert files(load_recipe("multi30k", overrides={"data.folder": "recipes/texts"})) == files(recipe)


def test_a_folder_is_relative_to_the_file_that_says_it_and_holds_corpora_only() -> None:
    recipe = load_recipe("recipes/mine.yaml")
    assert files(recipe) == [f"recipes/texts/{name}" for name in NAMES]
    assert recipe.data.tokenizer.path == str(Path("recipes/tokenizer.json").absolute())
    assert [fault.path for fault in recipe.missing_files()] == ["data.tokenizer.path"]


def test_a_path_of_the_command_line_is_relative_to_the_working_folder() -> None:
    changes = {"data.test.source": "new.en"}
    for how in ({"sets": ["data.test.source=new.en"]}, {"overrides": changes}):
        assert files(load_recipe("recipes/mine.yaml", **how))[4:] == ["new.en", "recipes/texts/test_2016_flickr.de"]


def test_a_mapping_in_python_has_the_same_folder() -> None:
    data = {"folder": "recipes/texts", "tokenizer": "character", "train": {"type": "text", "files": ["a", "/b"]}}
    recipe = load_recipe({"tfkit": 1, "extends": "gpt2", "data": data, "objective": "causal_lm"})
    assert recipe.data.train.files == (str(Path("recipes/texts/a").absolute()), "/b")


def test_a_missing_file_is_placed_where_the_user_named_its_folder(here: Path) -> None:
    missing = load_recipe("multi30k", sets=["data.folder=nowhere"]).missing_files()
    assert len(missing) == len(NAMES)
    assert str(missing[0]) == (
        f"--set data.folder=nowhere: data.test.source: no such file: {here}/nowhere/test_2016_flickr.en; to use "
        "another one: --set data.test.source=PATH, or --set data.folder=PATH for all of them"
    )


def test_a_folder_without_effect_is_refused() -> None:
    assert said("gpt-docstrings", sets=["data.folder=/tmp"]) == [
        "--set data.folder=/tmp: data.folder: has no effect: no corpus path is relative to it; remove folder, "
        "or shorten the corpus paths"
    ]
    assert said("multi30k", sets=["data.folder=3"]) == [
        "--set data.folder=3: data.folder: expected a word or text, got 3"
    ]


def test_a_run_knows_its_files_by_their_whole_paths(here: Path) -> None:
    sets = ["data.folder=recipes/texts", "data.tokenizer={type: character}", "train.steps=1", "train.metrics=[]"]
    run = tfkit.train("multi30k", sets=[*sets, "train.keep=last", "train.samples=0"], out="run", progress=False)
    resolved = load_recipe(run.folder / "resolved.yaml")
    assert files(resolved) == [f"recipes/texts/{name}" for name in NAMES]
    found = said(run.folder / "resolved.yaml", sets=["data.folder=other"])
    assert len(found) == 1 and found[0].startswith("--set data.folder=other: data.folder: ")


def test_a_derived_recipe_reads_the_same_files(here: Path) -> None:
    sets = ["data.test.source=new.en"]
    derived = Derived("recipes/mine.yaml", here / "new.yaml", sets=sets)
    (here / "new.yaml").write_text(derived.text())
    made, original = load_recipe("new.yaml"), load_recipe("recipes/mine.yaml", sets=sets)
    assert files(made) == files(original)
    derived.check(made, original)
