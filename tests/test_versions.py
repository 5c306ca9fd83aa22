"""The Pythons and the torch that are promised: said alike everywhere, and tested where they are at hand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from . import versions
from .sampling import looped
from .versions import (
    BEYOND,
    OLDEST,
    OWN,
    PROJECT,
    PYTHONS,
    ROOT,
    WITH_OLDEST,
    WITH_TORCH,
    WITHOUT_TORCH,
    Missing,
    Trial,
)

pytestmark = pytest.mark.full

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def fake(file: Path, prints: str) -> Path:
    """A program that is called like a Python and prints that, or fails."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{f'echo {prints}' if prints else 'exit 127'}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on PATH, and pyenv's folder beside it."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_all_that_names_versions_names_the_same() -> None:
    minors = [int(version.removeprefix("3.")) for version in PYTHONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{minors[0]}"
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"torch>={OLDEST},<{BEYOND}" in PROJECT["dependencies"]


@looped("name", sorted({*WITH_TORCH, *WITH_OLDEST, *WITHOUT_TORCH}))
def test_what_runs_on_other_versions_is_there(name: str) -> None:
    assert (ROOT / name.partition("::")[0]).exists()


def test_the_tests_that_need_no_torch_import_none() -> None:
    blocked = "import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    quiet = ("--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0")
    command = [sys.executable, "-c", blocked, *quiet, *WITHOUT_TORCH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_python_is_found_on_path_or_among_those_of_pyenv(pythons: Path) -> None:
    with pytest.raises(Missing, match=r"there is no python3\.98 on PATH or among pyenv's"):
        versions.interpreter("3.98")
    fake(pythons / "pyenv/versions/3.98.0/bin/python", "3.97")
    kept = fake(pythons / "pyenv/versions/3.98.1/bin/python", "3.98")
    fake(pythons / "path/python3.98", "")  # pyenv's stand-in for a version that is not chosen
    assert versions.interpreter("3.98") == str(kept)
    chosen = fake(pythons / "path/python3.98", "3.98")
    assert versions.interpreter("3.98") == str(chosen)


def test_what_is_not_at_hand_is_told_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = Trial("python", OWN, "2.80.0")

    def trials(version: str) -> list[Trial]:
        if version == "3.1":
            raise Missing("there is none")
        return {"3.2": [Trial("python", "3.2")], OWN: [Trial("python", OWN, OLDEST, oldest=True), newest]}[version]

    def passed(trial: Trial, folder: Path) -> bool:
        if trial is newest:
            raise Missing("it cannot be imported")
        return trial.version != "3.2" or bad == ""

    bad = ""
    monkeypatch.setattr(versions, "trials", trials)
    monkeypatch.setattr(versions, "passed", passed)
    monkeypatch.setattr(versions, "PYTHONS", ["3.1", "3.2", OWN])
    assert versions.main() == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "not run: Python 3.1: there is none"
    assert second.startswith("not run: Python 3.2 with torch: there is no wheel of torch>=")
    assert third == f"not run: {newest}: it cannot be imported"
    bad = "3.2"
    assert versions.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "failed: Python 3.2, the tests that need no torch"


def test_the_oldest_releases_are_those_that_are_promised() -> None:
    found = versions.packages(oldest=True)
    assert {"pydantic==2.12.*", "einops==0.8.1.*", "rich==14.0.*", "scipy==1.14.*"} <= set(found)
    assert not any(re.match("torch|transformer|ruff|mypy", line) for line in found)
    assert "pydantic>=2.12,<3" in versions.packages(oldest=False)


def test_versions_are_compared_by_their_numbers() -> None:
    assert (
        versions.numbers("2.9.1") < versions.numbers(OLDEST) < versions.numbers("2.13.0+cpu") < versions.numbers(BEYOND)
    )


def test_what_fails_says_its_last_words() -> None:
    with pytest.raises(Missing, match=r"^no such luck: the last$"):
        versions.attempt([sys.executable, "-c", "print('first'); print('the last'); exit(3)"], "no such luck")
    with pytest.raises(Missing, match=r"no such luck: .*nowhere"):
        versions.attempt(["/nowhere/python"], "no such luck")
