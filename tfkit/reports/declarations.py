"""Declarations that the class of a part may make, by slot: attributes with their comments, methods with docstrings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import takewhile
from textwrap import dedent
from typing import Annotated, Literal

from tfkit.components.attention import MultiHead
from tfkit.core import component
from tfkit.core.describe import in_words
from tfkit.core.inputs import CAPABILITIES
from tfkit.core.options import Norm, PositiveFloat, PositiveInt, RecipePath, Slot
from tfkit.core.registry import CATALOGUES, base_of

# methods that are called, not overridden
INTERNAL = {
    "Component.adopt", "InitFacts.without_std", "PositionFacts.hooks", "Sublayer.apply_fused", "MultiHead.new_state",
}  # fmt: skip
HEADS = {
    "declarations": ("slots", "declaration", "default", "meaning"),
    "capabilities": ("capability", "meaning"),
    "options": ("type of an option", "in a recipe"),
    "hooks": ("hook of multi_head", "meaning"),
}


class Kinds(component.Config):
    """An option of each type."""

    flag: bool
    count: PositiveInt
    number: float
    text: str
    choice: Literal["soft", "hard"]
    maybe: PositiveFloat | None
    sizes: list[int]
    any_number: tuple[int, ...]
    pair: tuple[int, int]
    by_name: dict[str, float]
    file: RecipePath
    norm: Norm
    nested: Annotated[component.Config, Slot("feedforward")]


def tables(slot: str | None = None) -> dict[str, Sequence[tuple[str, ...]]]:
    """Return declarations of all slots or of one, capabilities, types of options and hooks, as rows of HEADS.

    Attributes have a default, methods have parameters, and names of the Config begin with `Config.`.
    """
    checks = [(f"Config.{name}", "", text) for name, _, text in _of(component.Config) if name.startswith("check")]
    found: dict[tuple[str, str, str], list[str]] = {one: [] for one in (*_of(component.Component), *checks)}
    for name in CATALOGUES if slot is None else [slot]:
        for one in _of_slot(name):
            found.setdefault(one, []).append(name)
    hooks = [(name, meaning) for name, _, meaning in _of(MultiHead) if "(" in name and not name.startswith("Config.")]
    return {
        "declarations": [(", ".join(slots) or "all", *one) for one, slots in found.items()],
        "capabilities": list(CAPABILITIES.items()),
        "options": [(str(kind), in_words(Kinds.model_fields[name])) for name, kind in Kinds.__annotations__.items()],
        **({"hooks": hooks} if slot in (None, "attention") else {}),
    }


def _of_slot(slot: str) -> list[tuple[str, str, str]]:
    """Return the declarations of the base class of a slot, each as its first class has it, without those of all."""
    module, name = base_of(slot)
    known = {one[0] for one in _of(component.Component)}
    found: dict[str, tuple[str, str, str]] = {}
    for kind in reversed(getattr(import_module(module), name).__mro__):
        if issubclass(kind, component.Component):
            methods = kind.__name__.endswith("Facts") or kind.__name__ == "Sublayer"
            found.update({one[0]: one for one in _of(kind, methods) if one[0] not in found.keys() | known})
    return list(found.values())


@cache
def _of(kind: type, methods: bool = True) -> list[tuple[str, str, str]]:
    """Return name, default and meaning of the declarations in the source of a class, and in that of its own Config."""
    source = dedent(inspect.getsource(kind))
    (tree,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = _in(tree, source.splitlines(), methods, "")
    return [one for one in found if f"{kind.__name__}.{one[0].partition('(')[0]}" not in INTERNAL]


def _in(tree: ast.ClassDef, lines: Sequence[str], methods: bool, prefix: str) -> Iterator[tuple[str, str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            yield from _in(node, lines, methods, "Config.")
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and (meaning := _comment(lines, node)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            default = "" if node.value is None else ast.unparse(node.value)
            yield prefix + ast.unparse(target), default, meaning
        elif isinstance(node, ast.FunctionDef) and methods and not node.name.startswith("_") and node.name != "forward":
            first = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
            if first:
                names = ", ".join(one.arg for one in node.args.args if one.arg not in ("self", "cls"))
                yield f"{prefix}{node.name}({names})", "", first.removesuffix(".")


def _comment(lines: Sequence[str], node: ast.stmt) -> str:
    """Return the comment after a statement, else that in the lines before it."""
    end = node.end_lineno or node.lineno
    after = lines[end - 1][node.end_col_offset or 0 :].strip()
    if after.startswith("#"):
        return after.lstrip("# ")
    above = takewhile(lambda line: line.startswith("#"), map(str.strip, reversed(lines[: node.lineno - 1])))
    return " ".join(reversed([line.lstrip("# ") for line in above]))
