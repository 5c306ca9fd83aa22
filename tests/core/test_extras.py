"""Optional libraries: each is named with its versions if it is missing, never as an extra of another project."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import tfkit
from tfkit.core import errors
from tfkit.core.errors import DISTRIBUTION, UsageError, installing, optional

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
    with pytest.raises(UsageError, match=r'^figures need the package no_such_library: pip install "jinja2>=3\.1\.6"'):
        optional("no_such_library.figure", "study", "figures need")
    monkeypatch.setattr(errors, "DISTRIBUTION", "no-such-distribution")
    assert installing("study") == 'pip install -e ".[study]" in a clone of tfkit'


def test_an_extra_newer_than_the_installation_is_named() -> None:
    assert installing("newer") == 'pip install -e ".[newer]" in a clone of tfkit'


@pytest.mark.full
def test_messages_and_documents_name_declared_extras_and_install_no_other_project() -> None:
    count = 0
    for file in sorted({*ROOT.rglob("*.py")} - {ROOT / "core" / "errors.py"}):
        text = file.read_text(encoding="utf-8")
        assert "pip install" not in text, file
        if not re.search(r"\b(optional|installing)\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if name in ("optional", "installing"):
                extra = node.args[name == "optional"]  # type: ignore[attr-defined]
                assert isinstance(extra, ast.Constant) and extra.value in EXTRAS, f"{file}:{node.lineno}"
                count += 1
    assert count >= 10
    for document in [ROOT.parent / "README.md", *ROOT.rglob("*.md"), *(ROOT.parent / "recipes").rglob("*.md")]:
        text = document.read_text(encoding="utf-8").replace("&& tfkit", "")
        assert not re.search(r"pip install[^\n]*\btfkit\b(?!/)", text), document
