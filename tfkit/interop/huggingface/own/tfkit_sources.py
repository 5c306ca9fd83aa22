"""The tfkit sources that this model needs, and the import hook that loads them.

Each text in SOURCES is an unmodified tfkit module; if SOURCES is empty, the installed tfkit is used. The modules are
imported as submodules of this file, in which `tfkit` refers to this copy. They conflict neither with an installed tfkit
nor with the copy in another model.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = f"{__name__}.tfkit"
__path__: list[str] = []  # turns this file into a package whose modules Finder loads


def build(recipe: Mapping[str, Any], initialised: bool) -> Any:
    """Build the model of a recipe; its weights remain uninitialized unless `initialised` is set."""
    for file in SOURCES:
        # user-defined parts
        if file.startswith("parts/") and not file.endswith("__init__.py"):
            importlib.import_module(_module(file))
    blueprint = _tfkit("recipe.model").blueprint_of(recipe["model"])
    if initialised:
        return _tfkit("models.build").build_model(blueprint, seed=None)
    return blueprint.type.build(blueprint)


def write_code(model: Any, folder: Path) -> None:
    """Write the code files that load `model` to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not SOURCES:
        _tfkit("interop.huggingface.own.bundle").write_sources(model.blueprint, folder)
        return
    for name in ("modeling_tfkit.py", "tfkit_sources.py"):
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _tfkit(module: str) -> ModuleType:
    """Import a tfkit module from this copy, or from the installed tfkit if SOURCES is empty."""
    return importlib.import_module(f"{ROOT if SOURCES else 'tfkit'}.{module}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the modules in SOURCES."""

    root = ROOT

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = FILES.get(fullname)
        if file is None:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=file.endswith("__init__.py"))

    def exec_module(self, module: ModuleType) -> None:
        file = FILES[module.__name__]
        module.__file__ = f"{__file__}/{file}"
        tree = Renamed().visit(ast.parse(SOURCES[file]))
        exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec", dont_inherit=True), module.__dict__)

    def get_source(self, fullname: str) -> str:
        """Return the text of a module for tracebacks."""
        return SOURCES[FILES[fullname]]


class Renamed(ast.NodeTransformer):
    """Renames `tfkit` to ROOT in imports and in strings that name its modules."""

    def visit_Import(self, node: ast.Import) -> Any:
        """Import from this copy; `import tfkit.x` must also bind the name tfkit."""
        made: list[ast.stmt] = []
        for alias in node.names:
            name, alias_name = _renamed(alias.name), alias.asname
            if name != alias.name and alias_name is None:
                made.append(ast.Import([ast.alias(ROOT, "tfkit")]))
                alias_name = "tfkit" if name == ROOT else "_tfkit_module"
            made.append(ast.Import([ast.alias(name, alias_name)]))
        return [ast.copy_location(statement, node) for statement in made]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        node.module = None if node.module is None else _renamed(node.module)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = node.value
        if isinstance(text, str) and (text == "tfkit." or _renamed(text) in FILES):
            return ast.copy_location(ast.Constant(text.replace("tfkit", ROOT, 1)), node)
        return node


def _renamed(name: str) -> str:
    return ROOT + name.removeprefix("tfkit") if re.match(r"tfkit(\.|$)", name) else name


def _module(file: str) -> str:
    """Return the module name for a file in SOURCES."""
    return ".".join([__name__, *file.removesuffix(".py").removesuffix("/__init__").split("/")])


SOURCES: dict[str, str] = {}

FILES = {_module(file): file for file in SOURCES}
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "root", None) != ROOT]
sys.meta_path.append(Finder())
