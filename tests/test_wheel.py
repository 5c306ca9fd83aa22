"""The wheel works outside a clone: its recipes ship, and a short training ends."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tfkit

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]
SHORT = ("train.steps=2", "train.evaluate_every=2", "train.checkpoint_every=2", "train.metrics=[]")


def pip(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the build backend cannot be had here")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_checks_lists_and_trains_outside_the_clone(tmp_path: Path) -> None:
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"transformer_recipes-{tfkit.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "tfkit",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    pip("install", "--quiet", "--no-deps", "--target", str(tmp_path / "site"), str(wheel))

    def run(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert str(tmp_path / "site") in run("-c", "import tfkit; print(tfkit.__file__)")
    assert run("-m", "tfkit", "--version") == f"tfkit {tfkit.__version__}\n"
    assert "bert-base: ok" in run("-m", "tfkit", "check", "bert-base")
    assert run("-m", "tfkit", "recipes").count("\n") > 150
    run(
        "-m",
        "tfkit",
        "train",
        "translate-numbers",
        "--out",
        "short",
        *(word for one in SHORT for word in ("--set", one)),
    )
    assert (tmp_path / "short" / "model.safetensors").is_file()
    assert run("-m", "tfkit", "generate", "short", "five hundred")
