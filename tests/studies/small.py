"""A tiny study, whose runs may be trained in the process of the test."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.training.small import LINES, RECIPE
from tfkit.cli.main import main

VARIANTS = {
    "norm": {"model.layer.norm": ["layer_norm", "rms_norm"]},
    "wide": {"model.d_model": 16},
    "glu": {"model.layer.feedforward": {"type": "glu", "activation": "silu"}},
}


def study(folder: Path, name: str = "small", more: dict[str, Any] | None = None, **keys: Any) -> Path:
    """The file of a study with these keys in `study:`; `more` is laid over the recipe, section by section."""
    corpora = {}
    for split, lines in (("train", LINES), ("valid", LINES[:2])):
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        corpora[split] = {"type": "text", "files": f"{split}.txt"}
    recipe: dict[str, Any] = {**RECIPE, "variants": VARIANTS, "data": {**RECIPE["data"], **corpora}}
    recipe["train"] = {**RECIPE["train"], "metrics": [], "steps": 2}
    for section, values in (more or {}).items():
        recipe[section] = {**recipe.get(section, {}), **values}
    recipe["study"] = keys if "design" in keys else {"compare": ["norm"], "seeds": 2, **keys}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return file


def tfkit(*arguments: object, folder: Path) -> Result:
    """Run a command line in this process, in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner(env={"COLUMNS": "120"}).invoke(main, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)


class Trained:
    """A job that trains in this process."""

    began: list[str] = []  # runs trained so far
    failing = ""  # runs whose name contains this fail

    def __init__(self, words: Sequence[str], log: Path, threads: int | None = None) -> None:
        self.words, self.log, self.status = words, log, 0

    def start(self) -> None:
        folder = Path(self.words[self.words.index("--out") + 1])
        if ".trial" not in str(folder):
            self.began.append(folder.name)
        if self.failing and self.failing in folder.name:
            self.log.write_text("tfkit: the disk is full")
            self.status = 2
            return
        result = CliRunner().invoke(main, list(self.words))
        assert result.exit_code == 0 or "a lower learning rate" in result.output, result.output
        self.status = result.exit_code

    def poll(self) -> int:
        return self.status

    wait = poll

    def stop(self, number: int = 0) -> None:
        pass


def replaced(patch: pytest.MonkeyPatch) -> None:
    """Train runs in this process."""
    for name, value in (("began", []), ("failing", "")):
        patch.setattr(Trained, name, value)
    patch.setattr("tfkit.studies.runner.Job", Trained)
    patch.setattr("tfkit.studies.process.Job", Trained)
    patch.setattr("tfkit.studies.runner.POLL", 0.001)
