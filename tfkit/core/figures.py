"""Tables on a terminal, and figures that may fail."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.output import SPEECH, OutputLost, emit, encodable, event, lost, printable

WIDTH = 80  # default columns


class Console(rich.console.Console):
    """Rich console that escapes control characters in text.

    `stream` defaults to the current standard output. Raise OutputLost if the stream cannot be written.
    """

    def __init__(self, stream: IO[str] | None = None, stderr: bool = False) -> None:
        super().__init__(file=stream, stderr=stderr)
        self._closed = (stream or (sys.stderr if stderr else sys.stdout)) is None
        if self.width < 1:  # COLUMNS=0 is invalid
            self.width = WIDTH

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments with control characters escaped."""
        return (self._harmless(segment) for segment in super().render(renderable, options))

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as rich does. Raise OutputLost if the stream is lost."""
        if self._closed:
            raise OutputLost("the stream is closed")
        try:
            super().print(*objects, **how)
        except OSError as error:
            raise lost(error) from None

    def on_broken_pipe(self) -> None:
        """Raise OutputLost instead of exiting as rich does."""
        raise OutputLost("the reader has closed it", quiet=True)

    def _harmless(self, segment: Segment) -> Segment:
        if segment.control or (segment.text.isascii() and segment.text.isprintable()):
            return segment
        return segment._replace(text=encodable(printable(segment.text), self.file))


def tell(console: rich.console.Console, text: str, **facts: int) -> None:
    """Print a line of progress; on standard error with --progress json, an object with its facts."""
    if SPEECH.json and console.stderr:
        emit(event(text, "message", **facts) + "\n", console.file)
    else:
        console.print(Text(printable(text)), soft_wrap=True)


def drawn(what: str, draw: Callable[[], str]) -> str:
    """Draw a figure. On failure, warn and return an empty string; UsageError propagates."""
    try:
        return draw()
    except UsageError:
        raise
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        warnings.warn(TfkitWarning(f"the figure of {what} could not be drawn: {problem}"), stacklevel=2)
        return ""
