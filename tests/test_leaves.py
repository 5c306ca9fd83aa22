"""Leaves can be cut off: without them the package checks, builds, trains and generates."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfkit

ROOT = Path(tfkit.__file__).parent
LEAVES = ("studies", "interop", "contracts", "skeletons", "plain")
DRAWINGS = ("commands", "gallery", "letters", "picture", "picture_text", "plots", "svg", "wiring")  # of reports/
PAGES = ("interop", "new", "studies")  # of cli/
RECIPE = """\
tfkit: 1
extends: translate-numbers
model: {d_model: 16, num_layers: 1}
data:
  train: {type: phrases, split: train, train: 40, valid: 8, test: 8}
  valid: {type: phrases, split: valid, train: 40, valid: 8, test: 8}
  test: none
  batch: {size: 8}
train: {steps: 2, metrics: [], samples: 0}
"""
PROGRAM = """\
import tfkit
recipe = tfkit.load_recipe("mine.yaml")
print(repr(recipe))
print(recipe._repr_html_()[:4], sum(weight.numel() for weight in tfkit.build("bert-base", device="meta").parameters()))
"""


@pytest.mark.full
def test_the_package_works_without_its_leaves(tmp_path: Path) -> None:
    package = tmp_path / "tfkit"
    shutil.copytree(ROOT, package, ignore=shutil.ignore_patterns("__pycache__", *LEAVES))
    shutil.copytree(ROOT.parent / "recipes", tmp_path / "recipes")
    for room, names in (("reports", DRAWINGS), ("cli", PAGES)):
        for name in names:
            (package / room / f"{name}.py").unlink()
    (tmp_path / "mine.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*words: str, status: int = 0) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    assert "Recipe 'mine'" in run("-c", PROGRAM)
    command = ("-m", "tfkit")
    assert "mine.yaml: ok" in run(*command, "check", "mine.yaml")
    assert "decoder" in run(*command, "show", "mine.yaml")
    assert "has no printer" in run(*command, "show", "mine.yaml", "--code", status=2)
    run(*command, "train", "mine.yaml", "--out", "run")
    assert run(*command, "generate", "run", "one", "--max-new-tokens", "3")
    assert "study" not in run(*command, "--help")
    assert "No such command 'study'" in run(*command, "study", "mine.yaml", status=2)
    assert "study: unknown section" in run(*command, "check", "norm-placement", status=2)
