"""Every shipped recipe is whole: it begins with what it is, resolves, and the tasks train."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import tfkit
from tfkit.models import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.diff import diff_architectures, diff_settings

from .sampling import each, some
from .shipped import shipped

ROOT = Path(__file__).parents[1] / "recipes"
RECIPES = sorted(ROOT.glob("*/*.yaml"))
MODELS = sorted((ROOT / "models").glob("*.yaml"))
TASKS = sorted((ROOT / "tasks").glob("*.yaml"))
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


@pytest.mark.parametrize("paths", [RECIPES[part::4] for part in range(4)], ids=range(4))
def test_each_recipe_resolves_and_its_resolved_text_is_equal(paths: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "resolved.yaml"

    def check(path: Path) -> None:
        recipe = shipped(path.stem)
        again.write_text(recipe.resolved(), encoding="utf-8")
        blueprint, resolved = recipe.blueprint(), load_recipe(again)
        assert resolved.blueprint() == blueprint
        assert diff_architectures(blueprint, blueprint) == diff_architectures(blueprint, resolved.blueprint()) == []
        assert diff_settings(recipe, resolved) == []
        parameters = sum(p.numel() for p in build_model(blueprint, device="meta").parameters())
        said = re.search(r"([\d,]{7,}) parameters", path.read_text(encoding="utf-8"))
        assert said is None or int(said[1].replace(",", "")) == parameters

    each(paths, check)


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


def blocks(node: yaml.Node) -> Iterator[yaml.Node]:
    """The mappings that a reader goes down: the recipe, its `model`, and the `layer` in that."""
    yield node
    for key, value in node.value:
        if key.value in ("model", "layer"):
            yield from blocks(value)


def test_a_shipped_name_is_unique():
    assert len({path.stem for path in RECIPES}) == len(RECIPES)


def overrides(name: str, folder: Path) -> dict[str, object]:
    """Data of the test's own where a recipe asks for files, and sizes that train in seconds."""
    for language, text in TEXTS.items():
        (folder / f"text.{language}").write_text(text * 5, encoding="utf-8")
    english, german = str(folder / "text.en"), str(folder / "text.de")
    if name == "multi30k":
        pair = {"type": "parallel_text", "source": english, "target": german}
        return {**SHORT, "data.train": pair, "data.valid": pair, "data.test": pair, "data.tokenizer.vocab_size": 60}
    if name == "tinyshakespeare":
        return {**SHORT, "data.train.files": english, "data.valid.files": german}
    if name in ("names", "pretrain"):
        return {**SHORT, "data.train.files": english, "data.valid.files": english}
    if name in ("sst2", "trec"):
        (folder / "labelled").write_text("for a good film\nagainst a bad film\n" * 9, encoding="utf-8")
        return {**SHORT, **{f"data.{split}.file": str(folder / "labelled") for split in ("train", "valid")}}
    if name == "snips":
        (folder / "words").write_text("play some jazz\nplay rock\n" * 9, encoding="utf-8")
        (folder / "tags").write_text("O O B-genre\nO B-genre\n" * 9, encoding="utf-8")
        files = {"file": str(folder / "words"), "tags": str(folder / "tags")}
        return SHORT | {f"data.{split}.{key}": file for split in ("train", "valid") for key, file in files.items()}
    if name == "ud-ewt":
        rows = [f"{n}\t{word}\t_\t{tag}" + "\t_" * 6 for n, word, tag in ((1, "dogs", "NOUN"), (2, "bark", "VERB"))]
        (folder / "treebank").write_text("\n".join([*rows, "", ""]) * 9, encoding="utf-8")
        return {**SHORT, **{f"data.{split}.file": str(folder / "treebank") for split in ("train", "valid")}}
    if name in ("chat", "translate-characters"):
        return {**SHORT, "generate.max_new_tokens": 5}
    if name == "probe":
        return SHORT | {f"data.{split}.count": 40 for split in ("train", "valid", "test", "longer")}
    if name in ("digits", "captions", "tones"):
        size = "limit" if name == "digits" else "size"
        return SHORT | {f"data.{split}.{size}": 20 for split in ("train", "valid", "test")}
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
