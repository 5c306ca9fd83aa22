"""The code is formatted, linted and typed: the tools' own verdicts, as tests; and what tfkit asks of its parts."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_the_tool_has_nothing_to_say(command):
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "tfkit" / "components").rglob("*.py")), ids=lambda file: file.stem)
def test_components_change_shapes_by_patterns_in_words(file):
    """einops says each axis by its name; expand adds no axis."""
    methods = {"view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "movedim"}
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    found = [node.lineno for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr in methods]
    assert not found, f"{file}: lines {found}"
