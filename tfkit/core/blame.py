"""Attribution of an exception to a custom part, with file and line, to torch.compile, or to tfkit itself."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from tfkit.core.component import Component
from tfkit.core.errors import RunError, TfkitError, UsageError, is_shipped, origin
from tfkit.core.registry import REGISTRY

LONGEST = 400  # maximum characters of a quoted message
# markers after which a PyTorch message addresses only PyTorch developers
INNER = re.compile(r"Exception raised from|Caused by:|Hint:|Developer debug context|For more information, run with")

COMPILE_ERRORS = ("torch._dynamo", "torch._inductor")  # packages that define the errors of torch.compile


@dataclass(frozen=True)
class Blame:
    """Innermost frame of an exception within a custom part's module; `part` is its class, if known."""

    file: str
    line: int
    function: str
    part: type[Component] | None

    def __str__(self) -> str:
        near = self.file
        with contextlib.suppress(ValueError, OSError):
            near = os.path.relpath(self.file)
        return f"{self.file if near.startswith(os.pardir) else near}:{self.line}: in {self.function}"

    @property
    def description(self) -> str:
        """Slot and name of the part; empty if the part is unknown."""
        return "" if self.part is None else f"part {self.part.part_slot} '{self.part.part_name}'"


def blame(error: BaseException) -> Blame | None:
    """Return the frame in a custom part that raised the exception, or None."""
    parts = own_parts()
    modules = {part.__module__ for part in parts}
    walked = traceback.walk_tb(error.__traceback__)
    own = [(frame, line) for frame, line in walked if frame.f_globals.get("__name__") in modules]
    if not own:
        return None
    frame, line = own[-1]
    part = next(filter(None, (_part_of(frame, parts) for frame, _ in reversed(own))), None)
    return Blame(frame.f_code.co_filename, line, frame.f_code.co_name, part)


def own_parts() -> list[type[Component]]:
    """Return the registered parts that do not ship with tfkit."""
    return [part for parts in REGISTRY.registered().values() for part in parts.values() if not is_shipped(part)]


def _part_of(frame: FrameType, parts: list[type[Component]]) -> type[Component] | None:
    """Return the part whose method the frame runs: the class of its `self`, or the class defining the method."""
    kind = type(frame.f_locals.get("self"))
    if kind in parts:
        return kind
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_qualname
    alike = (part for part in parts if part.__module__ == module and name.startswith(f"{part.__qualname__}."))
    return next(alike, None)


def described(error: Exception) -> str | None:
    """Describe an exception from a custom part on one line with its place, or a name that is too long.

    Return None if tfkit raised it.
    """
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the name {str(error.filename)[:40]!r}... is too long; a file name has at most 255 bytes"
    place = None if isinstance(error, TfkitError) else blame(error)
    if place is None:
        return None
    message, description = shortened(error), place.description
    text = f"{place}: {type(error).__name__}{f': {message}' * bool(message)}"
    return f"{text} ({description})" if description else text


def shortened(error: BaseException) -> str:
    """Return a library's error message on one line, without hints for that library's developers."""
    line = " ".join(INNER.split(str(error))[0].split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


@contextlib.contextmanager
def compiling(key: str) -> Iterator[None]:
    """Convert errors of torch.compile to RunError; `key` is the recipe key that enables it."""
    try:
        yield
    except RuntimeError as error:
        # compared by name, because importing torch._dynamo takes a second
        if not type(error).__module__.startswith(COMPILE_ERRORS):
            raise
        reason = " ".join(str(error).split("\n")[:2]).strip()
        text = f"torch cannot compile this model: {reason}; {key}: false works without a compiler"
        raise RunError(f"{key}: {text}") from error


@contextlib.contextmanager
def parts_named() -> Iterator[None]:
    """Context manager and decorator that adds a note to exceptions, naming the custom part that raised them.

    Raise UsageError for a name that is too long for a file.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise UsageError(described(error)) from None
        note(error)
        raise


def note(error: Exception) -> None:
    """Add a note to an exception naming the custom parts that raised or may have caused it."""
    if isinstance(error, TfkitError) or any(line.startswith("tfkit: ") for line in getattr(error, "__notes__", ())):
        return
    place, parts = blame(error), own_parts()
    if place is not None:
        error.add_note(f"tfkit: {place}{f', of the {place.description}' * bool(place.description)}")
    elif parts:
        names = ", ".join(f"{part.part_slot} '{part.part_name}' of {origin(part)}" for part in parts[:3])
        error.add_note(
            f"tfkit: registered custom parts may be the cause: {names}; check them with `tfkit parts --verify`"
        )
