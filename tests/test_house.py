"""Budgets of the package: lines of rooms, files and functions, circles of imports, escapes from types."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tfkit

ROOT = Path(tfkit.__file__).parent
FILE, FUNCTION = 450, 45  # lines
ANY, IGNORED = 487, 36  # lower them with the code
QUICK = 2200  # cases of the quick suite
# lines of each room and of the tests; a change that needs more says so where it is described
ROOMS = {
    "__init__.py": 44,
    "__main__.py": 5,
    "api.py": 201,
    "cli": 3946,
    "components": 5207,
    "contracts": 4427,
    "core": 3901,
    "data": 6523,
    "functional": 1853,
    "generation": 4502,
    "interop": 12634,
    "models": 2070,
    "plain": 2371,
    "recipe": 7257,
    "reports": 3974,
    "run": 1202,
    "runs": 2685,
    "skeletons": 988,
    "storage": 910,
    "studies": 5495,
    "training": 9449,
}
TESTS = 59_835


@cache
def sources() -> dict[str, tuple[Path, str, ast.Module]]:
    """Each module of the package by its name, with its file, text and syntax tree."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = file.read_text("utf-8")
        found[name] = (file, text, ast.parse(text))
    return found


def imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Modules of the package that a file imports anywhere, for types alone and within functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in arrows[name]:
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            place = stack.index(name)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in arrows:
        if name not in order:
            visit(name)
    return found


@pytest.mark.full
def test_a_file_is_a_page() -> None:
    lines = {str(file.relative_to(ROOT)): len(text.splitlines()) for file, text, _ in sources().values()}
    assert not {file: count for file, count in lines.items() if count > FILE}


@pytest.mark.full
def test_rooms_keep_to_their_lines() -> None:
    lines = Counter[str]()
    for file, text, _ in sources().values():
        lines[file.relative_to(ROOT).parts[0]] += len(text.splitlines())
    assert not {room: count for room, count in lines.items() if count > ROOMS.get(room, 0)}
    tests = sum(len(file.read_text("utf-8").splitlines()) for file in Path(__file__).parent.rglob("*.py"))
    assert tests <= TESTS, f"tests/ has {tests:,} lines"


@pytest.mark.full
def test_functions_are_short() -> None:
    long = {
        f"{file.name}:{node.name}": count
        for file, _, tree in sources().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (count := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION
    }
    assert not long


def test_no_module_imports_itself_by_others() -> None:
    arrows = {name: set(imported(tree, set(sources()))) - {name} for name, (_, _, tree) in sources().items()}
    assert not circles(arrows)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


@pytest.mark.full
def test_types_have_few_escapes() -> None:
    names = [node for _, _, tree in sources().values() for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assert sum(node.id == "Any" for node in names) <= ANY
    assert sum(text.count("# type: ignore") for _, text, _ in sources().values()) <= IGNORED


def test_each_room_says_what_is_in_it() -> None:
    rooms = {name: tree for name, (file, _, tree) in sources().items() if file.name == "__init__.py"}
    assert not [name for name, tree in rooms.items() if not ast.get_docstring(tree)]


def test_the_quick_suite_stays_quick(request: pytest.FixtureRequest) -> None:
    """Holds trivially for a part of the suite."""
    quick = [item for item in request.session.items if not any(map(item.get_closest_marker, ("full", "slow")))]
    assert len(quick) <= QUICK, (
        f"{len(quick)} quick cases, {QUICK} at most: loop over like cases in one test (tests/sampling.py: each), "
        "or mark with pytest.mark.full what need not be tried in every run"
    )
