"""Code that a recipe says it needs: imported only when the user says so, on the command line or with `trust`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from tfkit.core.errors import TfkitError, UsageError
from tfkit.recipe.faults import Faults
from tfkit.recipe.node import Node
from tfkit.recipe.prepare import folder
from tfkit.recipe.values import items

_IMPORTED: set[str] = set()  # what the user had imported in this process, by file or module


def import_parts(name: str | Path) -> ModuleType:
    """Import a Python file (by path) or an installed module (by name), which registers its parts; once per file.

    Raises UsageError naming the file when it is missing or cannot be imported.
    """
    text = str(name)
    module = _import(text)
    _IMPORTED.add(_identity(text))
    return module


def _import(text: str) -> ModuleType:
    if not (text.endswith(".py") or "/" in text):
        return _guarded(text, lambda: importlib.import_module(text))
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"{path}: no such file to import parts from")
    module_name = f"tfkit_parts_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before it runs, so that its classes can be pickled and inspected

    def run() -> ModuleType:
        assert spec.loader is not None
        spec.loader.exec_module(module)
        return module

    try:
        return _guarded(str(path), run)
    except TfkitError:
        del sys.modules[module_name]
        raise


def _guarded(name: str, run: object) -> ModuleType:
    try:
        return run()  # type: ignore[operator,no-any-return]
    except TfkitError as error:
        raise UsageError(f"{name}: {error}") from error
    except Exception as error:
        place = ""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename.endswith(name):
                place = f":{trace.tb_lineno}"
            trace = trace.tb_next
        raise UsageError(f"{name}{place}: cannot be imported: {type(error).__name__}: {error}") from error


def honour_imports(node: Node | None, given: Sequence[str | Path], trust: bool, faults: Faults) -> tuple[str, ...]:
    """Import what the recipe's `imports:` names, where the user trusts it or named the same with --import.

    Anything else is a fault that says how; gives what was imported, files as paths.
    """
    allowed = {_identity(name) for name in given}
    done = []
    for item in items(node):
        if not isinstance(item.value, str):
            faults.add(item, "expected a Python file or the name of a module")
            continue
        name = str((folder(item) / item.value).absolute()) if item.value.endswith(".py") else item.value
        if not trust and _identity(name) not in allowed | _IMPORTED:
            faults.add(
                item, f"this recipe needs the code in '{item.value}'; read it, then give --trust or --import {name}"
            )
            continue
        try:
            import_parts(name)
            done.append(name)
        except UsageError as error:
            faults.add(item, str(error))
    return tuple(done)


def _identity(name: str | Path) -> str:
    return str(Path(name).resolve()) if str(name).endswith(".py") else str(name)
