"""The code is formatted, linted and typed: the tools' own verdicts, as tests; and what tfkit asks of its parts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
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


FORWARDS = sorted(
    file
    for file in (ROOT / "tfkit").rglob("*.py")
    if any(node.name == "forward" for node in ast.walk(ast.parse(file.read_text("utf-8"))) if hasattr(node, "name"))
)
# calls that change the axes of a tensor
RESHAPES = {
    "rearrange",
    "einsum",
    "reduce",
    "repeat",
    "view",
    "reshape",
    "transpose",
    "permute",
    "flatten",
    "unflatten",
}
LEGEND = re.compile(r"^# Axes: .*(?:\n# .*)*", re.MULTILINE)
SHAPE = re.compile(r"(?<!ignore)\[((?:\.\.\.|[a-z_\d|*+-]+)(?: [a-z_\d|*+-]+)*)\]")


def shape_faults(text: str) -> Iterator[str]:
    """Yield what a file with forwards lacks: a legend, the shape of a line, or an axis in the legend."""
    legend = LEGEND.search(text)
    if legend is None:
        yield "has no legend: # Axes: batch, time, ..."
        return
    lines, words = text.splitlines(), set(re.findall(r"[a-z_]+", legend.group()))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            for statement in (
                one for one in ast.walk(node) if isinstance(one, ast.Assign | ast.AnnAssign | ast.Return)
            ):
                around = "\n".join(lines[statement.lineno - 2 : statement.end_lineno + 1])
                if reshapes(statement) and not SHAPE.search("\n".join(re.findall("#.*", around))):
                    yield f"{statement.lineno}: changes a shape; say which it is: # [batch time d_model]"
            comments = "\n".join(re.findall("#.*", "\n".join(lines[node.lineno - 1 : node.end_lineno])))
            stated = " ".join(SHAPE.findall(comments + (ast.get_docstring(node) or "")))
            for unknown in sorted(set(re.findall(r"[a-z_]+", stated)) - words):
                yield f"{node.lineno}: the axis {unknown} is not in the legend"


def reshapes(statement: ast.AST) -> bool:
    """True if a statement calls a function that changes axes."""
    calls = [call.func for call in ast.walk(statement) if isinstance(call, ast.Call)]
    return bool(RESHAPES & {getattr(call, "attr", None) or getattr(call, "id", "") for call in calls})


@pytest.mark.parametrize("file", FORWARDS, ids=lambda file: file.relative_to(ROOT / "tfkit").as_posix())
def test_a_file_with_a_forward_names_its_axes_and_states_shapes(file):
    assert not list(shape_faults(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("removed", [r"# Axes:.*", r"  # \[.*", "batch, "])
def test_a_missing_legend_shape_or_axis_is_found(removed):
    text = (ROOT / "tfkit" / "components" / "attention" / "longformer.py").read_text(encoding="utf-8")
    assert list(shape_faults(re.sub(removed, "", text)))
