"""Tables on a terminal, and SVG figures drawn with matplotlib (extra `study`), which is imported on demand."""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import IO, Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from tfkit.core.errors import TfkitWarning, UsageError, optional
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


COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#9f6b53", "#787774", "#cb912f", "#337ea9", "#d44c47")
LONGEST = 48  # maximum characters of a label


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def matplotlib_figure() -> Any:
    """Return matplotlib's Figure class, which needs no display. Raise UsageError if it is not installed."""
    return optional("matplotlib.figure", "study", "figures need").Figure


def label(text: str) -> str:
    """Return user text as a label; a leading space keeps matplotlib from ignoring labels that start with `_`."""
    return _shown(f" {text}" if text.startswith("_") else text)


def _shown(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 3]}..."


def svg(figure: Any, name: str) -> str:
    """Render a figure as reproducible SVG, without a date and with ids salted with `name`.

    Only tick labels may contain math markup; other text is drawn verbatim.
    """
    matplotlib = importlib.import_module("matplotlib")
    kind = importlib.import_module("matplotlib.text").Text
    axes = [axis for one in figure.axes for axis in (one.xaxis, one.yaxis)]
    ticks = {id(text) for axis in axes for text in axis.findobj(kind) if text is not axis.label}
    for text in figure.findobj(kind):
        text.set_usetex(False)
        if id(text) not in ticks:
            text.set_parse_math(False)
            text.set_text(_shown(text.get_text()))
    stream = io.StringIO()
    settings = {"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif", "text.usetex": False}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # missing glyphs, which the browser's font has
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    drawing = stream.getvalue()
    return drawing[drawing.index("<svg") :]


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


def finished(axes: Any) -> None:
    """Add a grid and, for labelled lines, a legend."""
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(handles, labels, fontsize=8, frameon=False)
