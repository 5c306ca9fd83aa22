"""Every shipped recipe is whole: it begins with what it is, resolves, comes back from its text, and tasks train."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import tfkit
from tests.reports.test_draw import check_picture
from tfkit.cli.main import main
from tfkit.core.errors import RecipeError
from tfkit.core.skeleton import NoDraws
from tfkit.models import build_model
from tfkit.models.base import Model
from tfkit.models.parametrization import growths
from tfkit.recipe.load import load_recipe
from tfkit.recipe.overlays import written
from tfkit.recipe.text.faults import path_values
from tfkit.recipe.text.source import parse
from tfkit.reports.diff import diff_architectures, diff_settings
from tfkit.reports.explain import explain

from .recipe.fuzz.oracle import groups
from .recipe.small import read_again
from .recipe.test_resolved import origins
from .sampling import each, shares, some
from .shipped import NAMES, shipped

ROOT = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(ROOT.glob("*/*.yaml"))
MODELS = sorted((ROOT / "models").glob("*.yaml"))
TASKS = sorted((ROOT / "tasks").glob("*.yaml"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time
# so small that a test can train it, and still the recipe's own architecture and data
SHORT = {"train.steps": 2, "train.samples": 1, "train.evaluate_every": 2, "train.checkpoint_every": 2}
TEXTS = {
    "en": "A man runs.\nTwo dogs play in the snow.\nA girl reads a book.\nThe red car is old.\n",
    "de": "Ein Mann läuft.\nZwei Hunde spielen im Schnee.\nEin Mädchen liest ein Buch.\nDas rote Auto ist alt.\n",
}


def test_each_recipe_says_what_it_is_and_what_to_type() -> None:
    def check(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        header = re.match(r"(#.*\n)+", text)
        assert header is not None and len(header[0].splitlines()) >= 4
        assert re.search(r"(19|20)\d\d", header[0]), "the header names the paper and its year"
        assert re.search(rf"# Type: tfkit \w+ {path.stem}", header[0]) and "# Expect: " in header[0]
        assert all(len(line) <= 120 for line in text.splitlines())

    each(RECIPES, check)
    assert [path.stem for path in sorted(RECIPES, key=lambda path: path.stem)] == NAMES, "a name is not unique"


@pytest.mark.parametrize("names", [NAMES[part::4] for part in range(4)], ids=range(4))
def test_each_recipe_resolves_and_its_texts_read_the_same(names: list[str]) -> None:
    def check(name: str) -> None:
        recipe = shipped(name)
        assert recipe.warnings == ()
        blueprint, resolved, text = recipe.blueprint(), read_again(recipe), recipe.resolved()
        assert diff_architectures(blueprint, blueprint) == diff_architectures(blueprint, resolved.blueprint()) == []
        assert resolved.blueprint() == blueprint and diff_settings(recipe, resolved) == []
        parameters = sum(p.numel() for p in build_model(blueprint, device="meta").parameters())
        said = re.search(r"([\d,]{7,}) parameters", str(recipe.text))
        assert said is None or int(said[1].replace(",", "")) == parameters
        # the comments end on their line, and every default has a sentence
        rooms = ("model.", "train.", "generate.")
        assert not [key for key, origin in origins(text).items() if origin == "default" and key.startswith(rooms)]
        assert all(len(line) <= 120 for line in text.splitlines() if "# default" in line)
        without = "\n".join(line.rpartition("  # ")[0] or line for line in text.splitlines())
        assert yaml.load(text, LOADER) == yaml.load(without, LOADER)
        data = parse(str(recipe.text), name)[0].plain()
        assert parse(written(data), name)[0].plain() == data

    each(names, check)


@pytest.mark.parametrize("names", shares(NAMES, 12))
def test_each_recipe_is_drawn_explained_and_derived_from(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def files(recipe: tfkit.Recipe) -> list[str]:
        return [] if recipe.data is None else [os.path.normpath(path) for path in path_values(recipe.data)]

    def check(name: str) -> None:
        recipe = shipped(name)
        check_picture(recipe.blueprint())
        keys = [answer.path for answer in explain(recipe, "model").answers]
        assert len(keys) > 30 and len(set(keys)) == len(keys)
        for key in keys:
            found = [answer.path for answer in explain(recipe, key).answers]
            # a part that some layers have and others do not is answered with its options
            assert key in found and all(path == key or path.startswith(f"{key}.") for path in found)
        assert all(explain(recipe, section).answers for section in recipe.sections())
        result = CliRunner().invoke(main, ["new", "mine", "--force", "--from", name], catch_exceptions=False)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        mine = load_recipe("mine.yaml")
        assert mine.root.plain() | {"data": None} == recipe.root.plain() | {"data": None}
        # paths of the shared recipe are relative to the folder of another test
        assert files(mine) == (files(load_recipe(name)) if recipe.data else [])

    each(names, check)


@pytest.mark.parametrize("names", shares([path.stem for path in MODELS], 24))
def test_a_model_with_a_base_of_half_its_width_comes_back_or_is_refused_by_name(names: list[str]) -> None:
    def made(blueprint: Any) -> tuple[Any, Any]:
        with NoDraws():
            model: Model = build_model(blueprint, device="meta")
        return groups(model), [(one.base, one.init, one.layers, one.is_table) for one in growths(model, blueprint)]

    def check(name: str) -> None:
        stacks = list(shipped(name).blueprint().stacks())
        prefixes = {plan.side: f"{plan.side}." if len(stacks) > 1 else "" for plan in stacks}
        base = {f"{prefixes[plan.side]}d_model": plan.d_model // 2 for plan in stacks}
        try:
            recipe = load_recipe(name, overrides={"model.parametrization": {"type": "mup", "base": base}})
        except RecipeError as error:
            assert all(re.search(r" '[\w.]+'", fault.message) for fault in error.faults), error
            return
        again = read_again(recipe)
        assert again.blueprint() == recipe.blueprint() and made(recipe.blueprint()) == made(again.blueprint())

    each(names, check)


def blocks(node: yaml.Node) -> Iterator[yaml.Node]:
    """The mappings that a reader goes down: the recipe, its `model`, and the `layer` in that."""
    yield node
    for key, value in node.value:
        if key.value in ("model", "layer"):
            yield from blocks(value)


@pytest.mark.full
def test_each_model_is_whole_and_short_and_a_line_for_each_setting() -> None:
    def check(path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 30
        root = yaml.compose(text)
        assert {key.value for key, _ in root.value} == {"tfkit", "model"}, "nothing is taken from elsewhere"
        assert re.search(r"^# New in it\b.*: ", text, re.MULTILINE) and re.search(r"[\d,]{7,} parameters", text)
        assert not any(node.flow_style for node in blocks(root))

    each(MODELS, check)


def overrides(name: str, folder: Path) -> dict[str, object]:
    """Data of the test's own where a recipe asks for files, and sizes that train in seconds."""
    for language, text in TEXTS.items():
        (folder / f"text.{language}").write_text(text * 5, encoding="utf-8")
    english, german = str(folder / "text.en"), str(folder / "text.de")
    contents = {
        "labelled": "for a good film\nagainst a bad film\n" * 9,
        "words": "play some jazz\nplay rock\n" * 9,
        "tags": "O O B-genre\nO B-genre\n" * 9,
        "treebank": ("1\tdogs\t_\tNOUN" + "\t_" * 6 + "\n2\tbark\t_\tVERB" + "\t_" * 6 + "\n\n") * 9,
    }
    for file, text in contents.items():
        (folder / file).write_text(text, encoding="utf-8")
    labelled, words, tags, treebank = (str(folder / file) for file in contents)

    def splits(**values: object) -> dict[str, object]:
        return {f"data.{split}.{key}": value for split in ("train", "valid") for key, value in values.items()}

    pair = {"type": "parallel_text", "source": english, "target": german}
    written: dict[str, object] = {"generate.max_new_tokens": 5}
    own: dict[str, dict[str, object]] = {
        "multi30k": {
            **{f"data.{split}": pair for split in ("train", "valid", "test")},
            "data.tokenizer.vocab_size": 60,
        },
        "tinyshakespeare": {"data.train.files": english, "data.split.valid": 0.5},
        "names": splits(files=english),
        "pretrain": splits(files=english),
        "sst2": splits(file=labelled),
        "trec": splits(file=labelled),
        "snips": splits(file=words, tags=tags),
        "ud-ewt": splits(file=treebank),
        "chat": written,
        "translate-characters": written,
        "probe": splits(count=40) | {"data.test.count": 40, "data.longer.count": 40},
        "digits": splits(limit=20) | {"data.test.limit": 20},
        "captions": splits(size=20) | {"data.test.size": 20},
        "tones": splits(size=20) | {"data.test.size": 20},
        "protein-functions": {"train.init_from": "none"},
        "directions": {"data.train.size": 20, "data.valid.limit": 5, "data.test.limit": 5} | written,
        **{task: {} for task in ("proteins", "molecules", "events", "tune-names")},
    }
    if name in own:
        return {**SHORT, **own[name]}
    if name.endswith("docstrings"):
        return {**SHORT, "data.train.limit": 40, "data.valid.limit": 5, "data.tokenizer.vocab_size": 400}
    sizes = {f"data.{split}.{part}": 60 for split in ("train", "valid", "test") for part in ("train", "valid", "test")}
    return {**SHORT, **sizes, "data.tokenizer.vocab_size": 120, "generate.max_new_tokens": 5}


@pytest.mark.full
@pytest.mark.parametrize("path", some(TASKS), ids=lambda path: path.stem)
def test_a_task_trains_evaluates_and_generates(path, tmp_path):
    recipe = tfkit.load_recipe(path.stem, overrides=overrides(path.stem, tmp_path))
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False)
    scores = run.evaluate(limit=4)
    assert scores["loss"] > 0
    if recipe.blueprint(run.tokenizer.vocab_size).decoder is not None:
        given = np.zeros((2, 24, 24, 3)) if run.reads_vectors else ["two dogs", "a"]
        given = [f"<lu> {text}" for text in given] if path.stem == "directions" else given
        assert len(run.generate(given, max_new_tokens=3)) == 2
    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    assert tfkit.load_run(moved).evaluate(limit=4) == scores


def test_paths_of_shipped_recipes_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (fault, *_) = load_recipe("trec").missing_files()
    assert f"no such file: {tmp_path / 'train.txt'}" in fault.message
    teacher = load_recipe("distillation", variant="soft").train.teacher
    assert teacher is not None and teacher.run == str(tmp_path / "runs" / "teacher")


@pytest.mark.slow
@pytest.mark.parametrize("variant", [None, "reversed"])
def test_five_sentences_are_learned_by_heart(variant, tmp_path):
    recipe = tfkit.load_recipe("translate-characters", variant=variant, overrides={"train.device": "cpu"})
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False)
    assert run.evaluate()["exact_match"] == 100
