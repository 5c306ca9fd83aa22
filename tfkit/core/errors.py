"""Errors for users, optional libraries imported on use, and the origin of parts and plugins.

TfkitError
├── RecipeError   invalid recipe or options of a part: all faults at once, each with its place
├── DataError     unusable data, tokenizer or checkpoint file
├── RunError      a run folder that cannot be created, resumed or loaded
│   └── DifferenceError  models that were compared are not equal (also a DataError)
└── UsageError    a call or command line that requests something impossible
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfkit.core.output import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = (f"{PACKAGE / '_recipes'}{os.sep}", f"{PACKAGE.parent / 'recipes'}{os.sep}")  # in a wheel, in a clone


class TfkitError(Exception):
    """Base class of all errors that the user can fix; the command line prints them without a traceback.

    Messages may quote untrusted files, so control characters are escaped. `status` is the exit status of a command.
    """

    status = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class TfkitWarning(UserWarning):
    """Warning for users; the command line prints it on standard error."""

    def __str__(self) -> str:
        return printable(super().__str__())


class DataError(TfkitError):
    """Unusable data, tokenizer or weights; the message names the file and the line."""


class ExampleError(DataError):
    """Unusable example. `number` counts from 1, `why` is the reason; callers that know the corpus add the place."""

    def __init__(self, number: int, why: str) -> None:
        self.number, self.why = number, why
        super().__init__(f"example {number}: {why}")


class RunError(TfkitError):
    """Run folder that cannot be created, resumed or loaded. The folder is left unmodified."""


class DifferenceError(DataError, RunError):
    """Two models or engines that were compared are not equal; the message says in what."""

    status = 1


class UsageError(TfkitError):
    """Call or command line that requests something impossible."""


@dataclass(frozen=True)
class Place:
    """Origin of a value: a file with line and column (from 1), or `--set key=value`, or `<mapping>`.

    `via` names the base or variant that set the value, if not the recipe itself: `base gpt2`, `variant wide`.
    """

    file: str
    line: int = 0
    column: int = 0
    via: str = field(default="", compare=False)

    def __str__(self) -> str:
        root = next((root for root in SHIPPED if self.file.startswith(root)), None)
        # a shipped recipe is shown without the installation folder
        file = self.file if root is None else f"recipes{os.sep}{self.file.removeprefix(root)}"
        return f"{file}:{self.line}:{self.column}" if self.line else file

    @property
    def is_shipped(self) -> bool:
        """True if the file is a shipped recipe."""
        return os.path.abspath(self.file).startswith(SHIPPED)


def with_article(noun: str) -> str:
    """Prefix a noun with "a" or "an"."""
    return f"an {noun}" if noun[:1].lower() in tuple("aeiou") else f"a {noun}"


def on_one_line(text: str, width: int) -> str:
    """Quote user text in a message: without line breaks, truncated to `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


FaultData = dict[str, str | int | None]  # a fault for a program


@dataclass(frozen=True)
class Fault:
    """Fault in a recipe.

    `path` is dotted as in a recipe (`model.layer.attention.type`); `suggestion` is the nearest valid word, or None.
    """

    place: Place
    path: str
    message: str
    suggestion: str | None = None

    @property
    def file(self) -> str:
        return self.place.file

    @property
    def line(self) -> int:
        return self.place.line

    @property
    def column(self) -> int:
        return self.place.column

    def __str__(self) -> str:
        return self.line_as()

    def as_data(self) -> FaultData:
        """Return the fault for a program."""
        place = str(replace(self.place, line=0)) or None
        found: dict[str, str | int | None] = {
            "file": place,
            "line": self.line or None,
            "column": self.column or None,
            "key": self.path or None,
        }
        return {**found, "message": self.message, "suggestion": self.suggestion}

    def line_as(self, level: str = "") -> str:
        """Format on one line, with `level` ("warning: ") between place and path."""
        head = f"{self.place}: {level}"
        head += f"{on_one_line(self.path, 200)}: " if self.path else ""
        tail = f" Did you mean '{self.suggestion}'?" if self.suggestion else ""
        text = " ".join(self.message.splitlines())
        message = text if not tail or text.endswith((".", "?", "!")) else f"{text}."
        return printable(head + message + tail).replace("\n", "\\n")  # file names may contain line feeds


def by_place(faults: Iterable[Fault]) -> list[Fault]:
    """Deduplicate faults and sort them by place."""
    return sorted(dict.fromkeys(faults), key=lambda fault: (fault.file, fault.line, fault.column, fault.path))


class RecipeError(TfkitError):
    """Invalid recipe. `.faults` holds every fault, sorted by place; `str()` prints one per line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = by_place(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class RecipeWarning(TfkitWarning):
    """Valid but suspicious part of a recipe; `.fault` includes its place."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.line_as("warning: "))


DISTRIBUTION = "transformer-recipes"  # the package index has another project called tfkit


def installing(extra: str) -> str:
    """Return the pip command that installs an extra, according to the metadata of the distribution."""
    try:
        listed = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        listed = []
    requirements = [line.partition(";") for line in listed]
    names = [name.strip() for name, _, marker in requirements if re.search(rf"extra == ['\"]{extra}['\"]", marker)]
    if not names:  # a source tree that was never installed, or was before it had the extra
        return f'pip install -e ".[{extra}]" in a clone of tfkit'
    return "pip install " + " ".join(f'"{name}"' for name in names)


def optional(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an extra.

    Raise UsageError if its library is missing; `purpose` starts the message, such as "figures need".
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise UsageError(f"{purpose} the package {package}: {installing(extra)}") from None


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
