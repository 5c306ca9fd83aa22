"""Origin of parts: source locations of classes, installed plugins, and messages about broken plugins."""

from __future__ import annotations

import importlib
import inspect
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfkit.core.errors import TfkitError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tfkit.parts"  # each entry point names a module that registers parts on import
# uninformative frames: frozen modules, tfkit and importlib
INSIDE = ("<", f"{Path(__file__).parents[1]}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}")


def is_shipped(part: type) -> bool:
    """True if the class belongs to tfkit."""
    return part.__module__.startswith("tfkit.")


def origin(part: type) -> str:
    """Describe where a class is defined: qualified name, file and line."""
    name, file = home_of(part)
    try:
        line = f":{inspect.findsource(part)[1] + 1}"
    except (OSError, TypeError, IndexError, SyntaxError):
        line = ""
    return f"{name} ({file}{line})"


def source_file(part: type) -> str | None:
    """Return the source file of a class; None if there is none, as in a notebook."""
    try:
        return inspect.getsourcefile(part)
    except (OSError, TypeError):
        return None


def home_of(part: type) -> tuple[str, str]:
    """Return the qualified name and the file of a class."""
    return part.__qualname__, source_file(part) or "<interactive>"


@dataclass(frozen=True)
class PluginProblem:
    """Installed plugin that could not be loaded; `message` starts with the file and the line."""

    plugin: str
    distribution: str
    message: str

    def __str__(self) -> str:
        return f"the plugin '{self.plugin}' of {self.distribution} cannot be loaded: {self.message}"


def installed() -> Iterator[EntryPoint]:
    """Yield the entry points of the installed plugins, sorted by name."""
    from importlib.metadata import entry_points  # slow import, not needed by most commands

    yield from sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))


def distribution_of(entry: EntryPoint) -> str:
    """Return the name and version of the package that declares an entry point."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def failure(error: BaseException, name: str) -> str:
    """Describe why importing `name` (a file or a module) failed: `file:line: cannot be imported: ...`.

    The line is in the imported file. If the error was raised elsewhere, that location is appended.
    """
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    outside = [place for place in frames if not place[0].startswith(INSIDE)]
    broken = (error.filename, error.lineno or 1) if isinstance(error, SyntaxError) and error.filename else None
    own = name if name.endswith(".py") else outside[0][0] if outside else broken[0] if broken else name
    lines = [line for file, line in outside if file == own]
    line = lines[-1] if lines else broken[1] if broken else 0
    where = f"{own}:{line}" if line else own
    if isinstance(error, TfkitError):
        return f"{where}: {_one_line(str(error))}"
    deepest = broken or (outside[-1] if outside else None)
    elsewhere = f" ({deepest[0]}:{deepest[1]})" if deepest and deepest[0] != own else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    what = type(error).__name__ + (f": {_one_line(text)}" if text else "")
    if isinstance(error, SystemExit):
        what = f"it exits the program (sys.exit({error.code!r}))"
    return f"{where}: cannot be imported: {what}{elsewhere}"


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
