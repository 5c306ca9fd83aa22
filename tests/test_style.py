"""Components name the axes that they change and state shapes: what ruff and mypy cannot check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tfkit

from .sampling import each

ROOT = Path(tfkit.__file__).parent


def test_components_change_shapes_by_patterns_in_words():
    """einops names each axis; expand adds no axis."""
    methods = {"view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "movedim"}

    def check(file):
        calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        found = [node.lineno for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr in methods]
        assert not found

    each(sorted((ROOT / "components").rglob("*.py")), check)


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
    """Yield what the forwards of a file lack: a legend, the shape of a line, or an axis in the legend."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    legend = LEGEND.search(text)
    lines, words = text.splitlines(), set(re.findall(r"[a-z_]+", legend.group() if legend else ""))
    for node in (function for function in functions if function.name == "forward"):
        if legend is None:
            yield f"{node.lineno}: the file has no legend: # Axes: batch, time, ..."
            return
        for statement in (one for one in ast.walk(node) if isinstance(one, ast.Assign | ast.AnnAssign | ast.Return)):
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


def test_a_file_with_a_forward_names_its_axes_and_states_shapes():
    def check(file):
        text = file.read_text(encoding="utf-8")
        if "def forward(" in text:
            assert list(shape_faults(text)) == []

    each(sorted(ROOT.rglob("*.py")), check)


def test_a_missing_legend_shape_or_axis_is_found():
    text = (ROOT / "components" / "attention" / "longformer.py").read_text(encoding="utf-8")
    for removed in (r"# Axes:.*", r"  # \[.*", "batch, "):
        assert list(shape_faults(re.sub(removed, "", text))), removed
