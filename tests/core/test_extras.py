"""Optional libraries: each is named with its versions if it is missing, never as an extra of another project."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tfkit
from tfkit.core import extras
from tfkit.core.errors import UsageError
from tfkit.core.extras import DISTRIBUTION, installing, optional

from ..sampling import looped

ROOT = Path(tfkit.__file__).parent
PROJECT = tomllib.loads((ROOT.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_distribution_is_the_one_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert importlib.metadata.version(DISTRIBUTION) == tfkit.__version__


@looped("extra", [name for name in EXTRAS if name != "test"])
def test_the_command_names_the_libraries_of_an_extra_with_their_versions(extra: str) -> None:
    def parts(requirement: str) -> tuple[str, frozenset[str]]:
        name, versions = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()  # type: ignore[union-attr]
        return name.replace("_", "-"), frozenset(versions.split(","))

    command, *named = re.findall(r'"([^"]+)"|^pip install ', installing(extra))
    assert command == "" and {parts(one) for one in named} == {parts(one) for one in EXTRAS[extra]}


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r'^figures need the package no_such_library: pip install "jinja2>=3\.1\.6" "mat'
    ):
        optional("no_such_library.figure", "study", "figures need")
    monkeypatch.setattr(extras, "DISTRIBUTION", "no-such-distribution")
    assert installing("study") == 'pip install -e ".[study]" in a clone of tfkit'


def calls() -> Iterator[tuple[str, str, str]]:
    """Yield the file, the function and the extra of each message about a missing library."""
    for file in sorted({*ROOT.rglob("*.py")} - {ROOT / "core" / "extras.py"}):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("optional", "installing")
            ):
                extra = node.args[node.func.id == "optional"]
                assert isinstance(extra, ast.Constant), f"{file}:{node.lineno}"
                yield f"{file}:{node.lineno}", node.func.id, str(extra.value)


@pytest.mark.full
def test_every_message_names_an_extra_that_is_declared() -> None:
    found = list(calls())
    assert len(found) >= 10
    assert [call for call in found if call[2] not in EXTRAS] == []


@pytest.mark.full
def test_no_message_and_no_document_installs_another_project() -> None:
    for file in ROOT.rglob("*.py"):
        if file == ROOT / "core" / "extras.py":
            continue
        texts = [
            node.value
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant)
        ]
        assert not any("pip install" in text for text in texts if isinstance(text, str)), file
    for document in [ROOT.parent / "README.md", *ROOT.rglob("*.md"), *(ROOT.parent / "recipes").rglob("*.md")]:
        assert not re.search(
            r"pip install[^\n]*\btfkit\b(?!/)", document.read_text(encoding="utf-8").replace("&& tfkit", "")
        ), document
