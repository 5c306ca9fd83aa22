"""What must hold of a whole recipe: `check` refuses it with a place, or it trains, or its data are refused by place."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

import tfkit
from tfkit.core.errors import RecipeError, TfkitError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run, load_run

from .draws import Recipe as Draw

FILE = "recipe.yaml"


def outcome(draw: Draw, folder: Path) -> str:
    """How it ended: refused, trained, data; raises AssertionError for any other end. The files are in `folder`."""
    file = folder / FILE
    file.write_text(yaml.safe_dump(draw, sort_keys=False, allow_unicode=True), encoding="utf-8")
    try:
        recipe = load_recipe(file)
    except RecipeError as error:
        for fault in error.faults:
            assert fault.file == str(file) and fault.line and fault.column and fault.path, f"without a place: {fault}"
        return "refused"
    if recipe.missing_files():
        return missing(recipe, folder)
    try:
        run = tfkit.train(recipe, out=folder / "out", progress=False)
    except TfkitError as error:
        assert not (folder / "out").exists(), f"a folder is left after: {error}"
        check_data(str(error), folder)
        return "data"
    check_trained(run, recipe)
    shutil.rmtree(folder / "out")
    return "trained"


def missing(recipe: Recipe, folder: Path) -> str:
    """A file that is not there is told with its place in the recipe, by check and by train."""
    try:
        tfkit.train(recipe, out=folder / "out", progress=False)
    except RecipeError as error:
        assert error.faults == sorted(recipe.missing_files(), key=lambda fault: (fault.line, fault.column))
        assert not (folder / "out").exists()
        return "missing"
    raise AssertionError("it trains without a file that it names")


def check_data(said: str, folder: Path) -> None:
    """The refusal names a file of the data: the recipe alone did not decide it."""
    files = re.findall(rf"{re.escape(str(folder))}/([\w.]+)", said)
    assert [name for name in files if name != FILE] or "the corpus '" in said, f"the recipe alone decided: {said}"


def check_trained(run: Run, recipe: Recipe) -> None:
    """It has weights, metrics, and answers."""
    loaded = load_run(run.folder)
    data: Any = recipe.data
    # a test set that nothing is measured on need not be measurable
    measured = data.test if recipe.train.metrics else None
    split = "test" if measured is not None else "valid" if data.valid is not None else "train"
    scores = loaded.evaluate(split, limit=3)
    names = {metric.part.part_name for metric in recipe.train.metrics}
    assert names <= scores.keys() and not math.isnan(scores["loss"]), scores
    head: Any = loaded.blueprint.head
    # whether a choice can be written depends on what stands before it
    chooses = any(rule.part.part_name == "choices" for rule in recipe.generate.logits)
    if loaded.writes and head.part.part_name in ("language_model", "masked_lm") and not chooses:
        assert len(loaded.generate(["a dog"], max_new_tokens=2)) == 1
