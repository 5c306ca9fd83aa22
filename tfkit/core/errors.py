"""Every error that tfkit raises for its users.

TfkitError
├── RecipeError      a recipe (or a part's options) is wrong: all faults at once, each with its place
├── DataError        a file of data, a tokenizer or a checkpoint cannot be used as it is
├── RunError         a run's folder cannot be created, resumed or loaded
└── UsageError       a call or a command line asks for something impossible
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
    """Base of all errors that are the user's to mend; the command line prints them without a traceback.

    Its text may quote a stranger's file, so that control characters in it are spelled out.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class TfkitWarning(UserWarning):
    """What users should know though their work goes on; the command line prints it on standard error."""

    def __str__(self) -> str:
        return printable(super().__str__())


class DataError(TfkitError):
    """Data, a tokenizer or weights that cannot be used; the message names the file and the line."""


class ExampleError(DataError):
    """An example that cannot be used: its `number`, from 1, and `why`; who knows the corpus says where it stands."""

    def __init__(self, number: int, why: str) -> None:
        self.number, self.why = number, why
        super().__init__(f"example {number}: {why}")


class RunError(TfkitError):
    """A run's folder that cannot be created, resumed or loaded; nothing in it has been changed."""


class UsageError(TfkitError):
    """A call or a command line that asks for something impossible."""


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file with its line and column (from 1), or `--set key=value`, or `<mapping>`.

    `via` is the layer of values that it came in with, where that is not the recipe itself: `base gpt2`, `variant wide`.
    """

    file: str
    line: int = 0
    column: int = 0
    via: str = field(default="", compare=False)

    def __str__(self) -> str:
        file = _short(self.file)
        return f"{file}:{self.line}:{self.column}" if self.line else file

    @property
    def is_shipped(self) -> bool:
        """True if it is in a recipe that ships with tfkit."""
        return os.path.abspath(self.file).startswith(SHIPPED)


def _short(file: str) -> str:
    """A file's name for a message: a shipped recipe's without the folder that tfkit is installed in."""
    root = next((root for root in SHIPPED if file.startswith(root)), None)
    return file if root is None else f"recipes{os.sep}{file.removeprefix(root)}"


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an" before it."""
    return f"an {noun}" if noun[:1].lower() in tuple("aeiou") else f"a {noun}"


def on_one_line(text: str, width: int) -> str:
    """What somebody wrote, for a message: without line breaks, cut to `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


@dataclass(frozen=True)
class Fault:
    """One thing wrong in a recipe.

    `path` is dotted, as it is written in a recipe (`model.layer.attention.type`); `suggestion` is the nearest right
    word, or None.
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
        """This on one line, with `level` ("warning: ") between the place and the path."""
        head = f"{self.place}: {level}"
        head += f"{on_one_line(self.path, 200)}: " if self.path else ""
        tail = f" Did you mean '{self.suggestion}'?" if self.suggestion else ""
        text = " ".join(self.message.splitlines())
        message = text if not tail or text.endswith((".", "?", "!")) else f"{text}."
        return printable(head + message + tail).replace("\n", "\\n")  # a file's name may hold a line feed


def by_place(faults: Iterable[Fault]) -> list[Fault]:
    """Each fault once, sorted by its place."""
    return sorted(dict.fromkeys(faults), key=lambda fault: (fault.file, fault.line, fault.column, fault.path))


class RecipeError(TfkitError):
    """A recipe is wrong. `.faults` holds every fault, sorted by place; `str()` prints one per line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = by_place(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class RecipeWarning(TfkitWarning):
    """Something in a recipe that is accepted but is seldom meant; `.fault` says where it stands."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.line_as("warning: "))
