"""Import of the code that recipes need, only with the user's consent (`--import` or `trust`)."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import ModuleType

from tfkit.core.errors import Fault, Place, RunError, UsageError, failure
from tfkit.core.registry import REGISTRY, Registration
from tfkit.core.synonyms import nearest
from tfkit.recipe.architecture.prepare import folder
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, items
from tfkit.storage.files import LARGEST_TEXT, read_bytes, why_missing


@dataclass(frozen=True)
class ImportedCode:
    """A file or module imported in this process, with the parts that it registered.

    `name` is the argument of --import, with an absolute path for a file; `sha256` is the hash of the executed source
    (None for a module).
    """

    name: str
    module: ModuleType
    sha256: str | None
    entries: tuple[Registration, ...]

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Slot and name of each registered part."""
        return tuple((entry.slot, entry.name) for entry in self.entries)


_IMPORTED: dict[str, ImportedCode] = {}  # by identity


def import_parts(name: str | Path) -> ModuleType:
    """Import a Python file or module, as `imported` does, and return the module."""
    return imported(name).module


def imported(name: str | Path) -> ImportedCode:
    """Import a Python file (by path) or an installed module (by name), which registers its parts.

    A file is executed again only if its content has changed. If it is missing or fails, raise UsageError with the file
    and line, and roll back the registry.
    """
    text = str(name)
    done = _file(Path(text)) if is_file(text) else _module(text)
    for slot, part_name, part, _ in done.entries:
        if not REGISTRY.has(slot, part_name):
            REGISTRY.register(slot, part_name)(part)
    _IMPORTED[identity(text)] = done
    return done


def find_imported(name: str | Path) -> ImportedCode | None:
    """Return the file or module imported as `name`, or None."""
    return _IMPORTED.get(identity(name))


def importer_of(slot: str, name: str) -> ImportedCode | None:
    """Return the imported file or module that registered this part, or None."""
    part = REGISTRY.get(slot, name)
    entered = ((done, entry) for done in _IMPORTED.values() for entry in done.entries)
    return next((done for done, entry in entered if entry.part is part), None)


def is_file(name: str) -> bool:
    """True if `name` is a file rather than a module."""
    return name.endswith(".py") or "/" in name or "\\" in name


def identity(name: str | Path) -> str:
    """Return the canonical name: the real path of a file, the name of a module."""
    return os.path.realpath(name) if is_file(str(name)) else str(name)


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file as a run records it; raise RunError if the file is unreadable."""
    return sha256(read_bytes(path)).hexdigest()


def _file(path: Path) -> ImportedCode:
    source = _source(path)
    digest = sha256(source).hexdigest()
    before = _IMPORTED.get(identity(str(path)))
    for done in _IMPORTED.values():  # the same content needs no second import, even from a moved file
        if done.sha256 == digest:
            return replace(done, name=str(path.absolute()))
    place = sha256(identity(path).encode()).hexdigest()
    module_name = f"tfkit_parts_{path.stem}_{place[:8]}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None:
        raise RunError(f"{path}: not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before the code runs, so that its classes can be pickled and inspected
    try:
        with REGISTRY.recording() as entries:
            try:
                # execute exactly the hashed source, without writing bytecode next to the user's file
                exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
            except BaseException:
                del sys.modules[module_name]
                raise
    except (Exception, SystemExit) as error:
        raise UsageError(failure(error, str(path))) from error
    return ImportedCode(str(path.absolute()), module, digest, _in_place_of(before, entries))


def _in_place_of(older: ImportedCode | None, entries: Sequence[Registration]) -> tuple[Registration, ...]:
    """Unregister parts that the new version of a file no longer defines; return the current registrations."""
    stood = {} if older is None else {(entry.slot, entry.name): entry for entry in older.entries}
    now = {(entry.slot, entry.name) for entry in entries}
    REGISTRY.take_back(entry for key, entry in stood.items() if key not in now)
    return tuple(entry._replace(before=stood.get((entry.slot, entry.name), entry).before) for entry in entries)


def _source(path: Path) -> bytes:
    """Read a Python file; raise UsageError if it is missing, unreadable or not a .py file."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder; use a Python file in it, or an installed module")
    if not os.path.exists(path):
        names = [file.name for file in islice(path.parent.glob("*.py"), 1000)]
        near = None if path.name in names else nearest(path.name, names)
        hint = f". Did you mean '{path.parent / near}'?" if near is not None else ""
        raise UsageError(f"{path}: {why_missing(path)}{hint}")
    if path.suffix != ".py":
        raise UsageError(f"{path}: not a Python file (.py)")
    try:
        return read_bytes(path, LARGEST_TEXT)
    except RunError as error:
        raise UsageError(str(error)) from None


def _module(name: str) -> ImportedCode:
    try:
        with REGISTRY.recording() as entries:
            module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            file = Path(f"{name}.py")
            hint = f"; did you mean the file {file}?" if file.is_file() else "; is it installed here?"
        raise UsageError(failure(error, name) + hint) from error
    before = _IMPORTED.get(name)
    if not entries and before is None:  # a module that had already been imported without recording its registrations
        parts = [part for of_slot in REGISTRY.registered().values() for part in of_slot.values()]
        own = [part for part in parts if f"{part.__module__}.".startswith(f"{name}.")]
        entries = [Registration(part.part_slot, part.part_name, part, None) for part in own]
    return ImportedCode(name, module, None, tuple(entries or (before.entries if before is not None else ())))


@dataclass
class Importer:
    """Imports the code of a recipe; failures are collected as faults."""

    faults: Faults
    trust: bool = False
    done: dict[str, str] = field(default_factory=dict)  # canonical name -> argument of --import
    _failed: set[str] = field(default_factory=set)

    def import_all(self, names: Iterable[str | Path]) -> None:
        """Import the names given with --import; failures become faults."""
        for name in names:
            try:
                self.done[identity(name)] = imported(name).name
            except UsageError as error:
                self._failed.add(identity(name))
                self.faults.errors.append(Fault(Place(f"--import {name}"), "", str(error)))
                self._without(str(name))

    def honour(self, node: Node | None, imported_before: Sequence[str] = ()) -> None:
        """Import the recipe's `imports:` if they are trusted or were already given with --import.

        Add a fault that explains how to import any other file or module. Names in `imported_before` are skipped.
        """
        for item in items(node):
            if not isinstance(item.value, str):
                self.faults.add(item, "expected a Python file or a module name")
                continue
            written = item.value
            name = str((folder(item) / written).absolute()) if is_file(written) else written
            if name in imported_before or identity(name) in self.done or identity(name) in self._failed:
                continue
            if is_file(written) and not os.path.exists(name):
                text = f"cannot import '{written}': no such file; set its location with --import FILE"
            elif not self.trust and identity(name) not in _IMPORTED:
                text = f"this recipe needs the code in '{written}'; review it, then use --trust or --import {name}"
            else:
                try:
                    self.done[identity(name)] = imported(name).name
                    continue
                except UsageError as error:
                    text = str(error)
            self.faults.add(item, text)
            self._without(name)

    def _without(self, name: str) -> None:
        """Suppress "unknown part" faults for the parts of code that was not imported."""
        parts = parts_written_in(name)
        self.faults.awaited = None if parts is None or self.faults.awaited is None else self.faults.awaited | parts


def parts_written_in(name: str) -> frozenset[tuple[str, str]] | None:
    """Return the slot and name of each part that a file registers, without executing it; None if unknown."""
    try:
        tree = ast.parse(read_bytes(name, LARGEST_TEXT)) if is_file(name) else None
    except (RunError, SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == "register"]
    words = [tuple(getattr(argument, "value", None) for argument in call.args) for call in calls]
    if any(len(pair) != 2 or not all(isinstance(word, str) for word in pair) for pair in words):
        return None  # a computed name is known only by executing the file
    return frozenset((str(slot), str(part)) for slot, part in words)
