"""The wheel works outside a clone: its recipes ship, and a short training ends."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tfkit

ROOT = Path(__file__).resolve().parents[1]
SHORT = ("train.steps=2", "train.evaluate_every=2", "train.checkpoint_every=2", "train.metrics=[]")


@pytest.mark.slow
def test_the_wheel_checks_lists_and_trains_outside_the_clone(tmp_path: Path) -> None:
    site = tmp_path / "site"

    def run(*words: str) -> str:
        command, environment = [sys.executable, "-m", *words], os.environ | {"PYTHONPATH": str(site)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        if words[0] == "pip" and done.returncode and "hatchling" in done.stderr:
            pytest.skip("the build backend cannot be had here")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"transformer_recipes-{tfkit.__version__}-py3-none-any.whl"
    folders = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert folders == {"tfkit", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"}
    run("pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
    assert (site / "tfkit" / "__init__.py").is_file()
    assert run("tfkit", "--version") == f"tfkit {tfkit.__version__}\n"
    assert "bert-base: ok" in run("tfkit", "check", "bert-base")
    assert "proteins: ok" in run("tfkit", "check", "proteins")  # with the data beside it
    assert run("tfkit", "recipes").count("\n") > 150
    run("tfkit", "train", "translate-numbers", "--out", "short", *(f"--set={one}" for one in SHORT))
    assert (tmp_path / "short" / "model.safetensors").is_file()
    assert run("tfkit", "generate", "short", "five hundred")
