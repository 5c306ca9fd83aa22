"""Every error that tfkit raises for its users.

TfkitError
├── RecipeError   invalid recipe or options of a part: all faults at once, each with its place
├── DataError     unusable data, tokenizer or checkpoint file
├── RunError      a run folder that cannot be created, resumed or loaded
│   └── DifferenceError  models that were compared are not equal (also a DataError)
└── UsageError    a call or command line that requests something impossible
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tfkit.core.output import printable

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
