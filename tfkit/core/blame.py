"""Tells whether an exception came from a user's own part, with its file and line, or from tfkit itself."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tfkit.core.errors import TfkitError
from tfkit.core.registry import REGISTRY, is_shipped, origin

LONGEST = 400  # letters of a message from elsewhere that are worth reading
# where PyTorch goes on with what is meant for its own makers
INNER = re.compile(r"Exception raised from|Caused by:|Hint:|Developer debug context|For more information, run with")


@dataclass(frozen=True)
class Blame:
    """The innermost line of a part's own module that an exception passed through; `part` is its class, if known."""

    file: str
    line: int
    function: str
    part: type[Any] | None

    def __str__(self) -> str:
        return f"{_from_here(self.file)}:{self.line}: in {self.function}"

    @property
    def called(self) -> str:
        """The part's slot and name."""
        return "" if self.part is None else f"part {self.part.part_slot} '{self.part.part_name}'"


def blame(error: BaseException) -> Blame | None:
    """The place in a user's own part where an exception was raised; None where it passed through no such part."""
    parts = own_parts()
    modules = {part.__module__ for part in parts}
    walked = traceback.walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in walked if frame.f_globals.get("__name__") in modules]
    if not own:
        return None
    frame, line = own[-1]
    part = next(filter(None, (_part_of(frame, parts) for frame, _ in reversed(own))), None)
    return Blame(frame.f_code.co_filename, line, frame.f_code.co_name, part)


def own_parts() -> list[type[Any]]:
    """The registered parts that are not tfkit's."""
    return [part for parts in REGISTRY.registered().values() for part in parts.values() if not is_shipped(part)]


def _part_of(frame: FrameType, parts: list[type[Any]]) -> type[Any] | None:
    """The part whose method a frame runs: that of its `self`, else the class that the method is written in."""
    kind = type(frame.f_locals.get("self"))
    if kind in parts:
        return kind
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_qualname
    alike = (part for part in parts if part.__module__ == module and name.startswith(f"{part.__qualname__}."))
    return next(alike, None)


def described(error: Exception) -> str | None:
    """An exception from a user's own part on one line, with its place; None for one from tfkit."""
    found = None if isinstance(error, TfkitError) else blame(error)
    if found is None:
        return None
    message = shortened(error)
    called = f" ({found.called})" if found.called else ""
    return f"{found}: {type(error).__name__}{f': {message}' * bool(message)}{called}"


def shortened(error: BaseException) -> str:
    """The message of another library's error on one line, without what concerns only that library's developers."""
    line = " ".join(INNER.split(str(error))[0].split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


@contextlib.contextmanager
def parts_named() -> Iterator[None]:
    """Within the block, or the function that this decorates, an exception gets a note of the own part it came from."""
    try:
        yield
    except Exception as error:
        note(error)
        raise


def note(error: Exception) -> None:
    """Add a note to an exception that names the user's own part that it came from, or may have come from."""
    if isinstance(error, TfkitError) or any(line.startswith("tfkit: ") for line in getattr(error, "__notes__", ())):
        return
    found, parts = blame(error), own_parts()
    if found is not None:
        error.add_note(f"tfkit: {found}{f', of the {found.called}' * bool(found.called)}")
    elif parts:
        names = ", ".join(f"{part.part_slot} '{part.part_name}' of {origin(part)}" for part in parts[:3])
        error.add_note(
            f"tfkit: parts of your own are registered, such as {names}; `tfkit parts --verify` tries whether they keep "
            "what their slots promise"
        )


def _from_here(file: str) -> str:
    """A path as it is seen from the working folder."""
    with contextlib.suppress(ValueError, OSError):
        near = os.path.relpath(file)
        return file if near.startswith(os.pardir) else near
    return file
