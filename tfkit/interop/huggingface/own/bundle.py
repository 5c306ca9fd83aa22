"""Collection of the tfkit modules that a model needs, by walking their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component
from tfkit.core.errors import UsageError, is_shipped, source_file
from tfkit.core.registry import CATALOGUES
from tfkit.runs.supply import parts_of

ROOT = Path(__file__).parents[3]  # folder of the tfkit package
HERE = Path(__file__).parent
ENTRIES = ("tfkit.recipe.model", "tfkit.models.build")  # imported by tfkit_sources.build
# modules of parts: one per slot, or a catalogue of several; parts that the model does not use are left out
SLOTS = {slot: module for slot, module in CATALOGUES.items() if module.startswith("tfkit.components.")}


def write_sources(blueprint: Blueprint, folder: Path) -> None:
    """Write the code that loads a model without tfkit: the transformers classes and the tfkit modules they need."""
    parts = [part for part in parts_of(blueprint) if part.part_slot in (*SLOTS, "model")]
    sources = {f"{_file(name)}": text for name, text in sorted(_modules(parts).items())} | _own_files(parts)
    text = (HERE / "tfkit_sources.py").read_text(encoding="utf-8")
    before, _, after = text.partition("SOURCES: dict[str, str] = {}\n")
    (folder / "tfkit_sources.py").write_text(before + _literal(sources) + after, encoding="utf-8", newline="\n")
    modeling = (HERE / "modeling_tfkit.py").read_text(encoding="utf-8")
    near = modeling.replace(f"from {__package__}.tfkit_sources import", "from .tfkit_sources import")
    (folder / "modeling_tfkit.py").write_text(near, encoding="utf-8", newline="\n")


def _modules(parts: Iterable[type[Component]]) -> dict[str, str]:
    """Return the source text of every needed module by module name."""
    parts = list(parts)
    waiting = [*ENTRIES, *filter(_is_catalogue, SLOTS.values())]
    waiting += [part.__module__ for part in parts if is_shipped(part)]
    for part in parts:
        if not is_shipped(part):
            waiting += _imports(_own_text(part), "parts")
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in needed or path is None:
            continue
        needed.add(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if not _is_catalogue(name):
            waiting += _imports(path.read_text(encoding="utf-8"), name)
    unused = {name: f'"""{_title(name)} None of them is used by this model."""\n' for name in SLOTS.values()}
    return unused | {name: _text(name, needed) for name in needed}


def _imports(text: str, name: str) -> Iterator[str]:
    """Yield the tfkit modules that a source text imports at run time; names from a catalogue yield their modules."""
    for node in _running(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            homes = _homes(node.module) if _is_catalogue(node.module) else {}
            for alias in node.names:
                yield homes.get(alias.name, f"{node.module}.{alias.name}")


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a module, skipping TYPE_CHECKING blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def _homes(catalogue: str) -> dict[str, str]:
    """Return a catalogue's mapping from exported names to their modules."""
    path = _path(catalogue)
    tree = ast.parse("" if path is None else path.read_text(encoding="utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module is not None]
    return {alias.asname or alias.name: str(node.module) for node in froms for alias in node.names}


def _text(name: str, needed: set[str]) -> str:
    """Return the source text of a module; a catalogue is reduced to the names that are needed."""
    if not _is_catalogue(name):
        path = _path(name)
        return "" if path is None else path.read_text(encoding="utf-8")
    homes = [(each, home) for each, home in _homes(name).items() if home in needed]
    lines = [f'"""{_title(name)} Reduced to those used by this model."""\n', "from __future__ import annotations\n"]
    return "\n".join([*lines, *(f"from {home} import {each}" for each, home in homes)]) + "\n"


def _is_catalogue(name: str) -> bool:
    """True for a package that only re-exports the parts of a slot from its modules."""
    path = _path(name) if name in SLOTS.values() else None
    return path is not None and path.name == "__init__.py"


def _title(name: str) -> str:
    """Return the first line of a module's docstring."""
    path = _path(name)
    text = "" if path is None else path.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or name).splitlines()[0]


def _path(name: str) -> Path | None:
    """Return the file of a tfkit module, or None for other modules."""
    if name != "tfkit" and not name.startswith("tfkit."):
        return None
    place = ROOT.joinpath(*name.split(".")[1:])
    if (place / "__init__.py").is_file():
        return place / "__init__.py"
    file = place.with_name(f"{place.name}.py")
    return file if file.is_file() else None


def _file(name: str) -> str:
    """Return the key of a module in SOURCES."""
    path = _path(name)
    package = path is not None and path.name == "__init__.py"
    return name.replace(".", "/") + ("/__init__.py" if package else ".py")


def _own_files(parts: Iterable[type[Component]]) -> dict[str, str]:
    """Return the files that define user-defined parts, each once."""
    texts = {source_file(part) or "": _own_text(part) for part in parts if not is_shipped(part)}
    files = {f"parts/{Path(file).stem}_{number}.py": text for number, (file, text) in enumerate(texts.items())}
    return {"parts/__init__.py": "", **files} if files else {}


def _own_text(part: type[Component]) -> str:
    """Return the text of the file that defines a part.

    Raise UsageError if there is no file, as for a class defined in a notebook.
    """
    file = source_file(part)
    try:
        return Path(file or "").read_text(encoding="utf-8")
    except OSError:
        name = f"{part.part_slot} '{part.part_name}'"
        raise UsageError(
            f"{name} cannot be exported: its class is not defined in a file; move the class to a file"
        ) from None


def _literal(sources: dict[str, str]) -> str:
    """Return Python source that assigns the texts to SOURCES."""
    lines = ["SOURCES: dict[str, str] = {}\n"]
    for file, text in sources.items():
        plain = "'''" not in text and not text.endswith(("'", "\\"))
        lines.append(f"\nSOURCES[{file!r}] = " + (f"r'''{text}'''\n" if plain else f"{text!r}\n"))
    return "".join(lines)
