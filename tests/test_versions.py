"""The Pythons and the torch that are promised: said alike everywhere, and tested where they are at hand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from . import versions
from .sampling import looped
from .versions import BEYOND, OLDEST, PROJECT, PYTHONS, ROOT, WITH_OLDEST, WITH_TORCH, WITHOUT_TORCH

pytestmark = pytest.mark.full

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_all_that_names_versions_names_the_same() -> None:
    minors = [int(version.removeprefix("3.")) for version in PYTHONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{minors[0]}"
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"torch>={OLDEST},<{BEYOND}" in PROJECT["dependencies"]


@looped("name", sorted({*WITH_TORCH, *WITH_OLDEST, *WITHOUT_TORCH}))
def test_what_runs_on_other_versions_is_there(name: str) -> None:
    assert (ROOT / name.removeprefix("--ignore=").partition("::")[0]).exists()


def test_the_tests_that_need_no_torch_import_none() -> None:
    blocked = "import sys, pytest; sys.modules['torch'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    quiet = ("--collect-only", "-q", "-p", "no:cacheprovider", "-n", "0")
    command = [sys.executable, "-c", blocked, *quiet, *WITHOUT_TORCH]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_oldest_releases_are_those_that_are_promised() -> None:
    found = versions.packages(oldest=True)
    assert {"pydantic==2.12.*", "einops==0.8.1.*", "rich==14.3.*", "scipy==1.14.*"} <= set(found)
    assert not any(re.match("torch|transformer|ruff|mypy", line) for line in found)
    assert "pydantic>=2.12,<3" in versions.packages(oldest=False)


def test_versions_are_compared_by_their_numbers() -> None:
    assert (
        versions.numbers("2.9.1") < versions.numbers(OLDEST) < versions.numbers("2.13.0+cpu") < versions.numbers(BEYOND)
    )
