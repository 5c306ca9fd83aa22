"""Standard streams of the commands."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TextIO, cast

from tfkit.core.errors import RunError, UsageError
from tfkit.core.output import SPEECH, OutputLost, answer_line, emit, event, lost, printable
from tfkit.storage.files import open_log

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tfkit.core.figures import Console

OUTPUT = "output.log"  # log in the folder of a study, used once standard output is lost
LEAST = 40  # minimum width for wrapping messages, even in narrower terminals


def echo(text: str = "", end: str = "\n") -> None:
    """Print a message with control characters escaped. Raise OutputLost if the output is lost."""
    emit(printable(text) + end, sys.stdout)


def echo_text(text: str, end: str = "\n") -> None:
    """Print generated text: unchanged to a file or pipe, with control characters escaped on a terminal."""
    shown = printable(text) if is_terminal(sys.stdout) else text
    emit(shown + end, sys.stdout)


def echo_json(data: object) -> None:
    """Print data as JSON. Raise OutputLost if the output is lost."""
    emit(answer_line(data, indent=2) + "\n", sys.stdout)


def echo_data(data: object, render: Callable[[Console], object]) -> None:
    """Print data as JSON with --json, else with `render` for readers."""
    if SPEECH.data:
        return echo_json(data)
    from tfkit.core.figures import Console

    render(Console())


def warn(text: str, kind: str = "warning", **facts: str | int | None) -> None:
    """Print a message on standard error; a no-op if the stream is lost. JSON lines have its facts."""
    with contextlib.suppress(OutputLost):
        emit(event(text, kind, **facts) + "\n", sys.stderr)


def say(text: str) -> None:
    """Print progress on standard error, unless the command is quiet."""
    if not SPEECH.quiet:
        warn(text, "message")


def warn_wrapped(text: str, **facts: str | int | None) -> None:
    """Warn with lines wrapped to the width of the terminal or COLUMNS; in a pipe each fault stays on one line."""
    if not SPEECH.json and (is_terminal(sys.stderr) or os.environ.get("COLUMNS", "").isdecimal()):
        width = max(shutil.get_terminal_size().columns, LEAST)
        text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
    warn(text, "warning", **facts)


def _wrapped(line: str, width: int) -> str:
    """Wrap a line between words with a hanging indent."""
    if len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner and log messages on standard error while the block runs; without a terminal, only with JSON."""
    if SPEECH.json or SPEECH.quiet or not is_terminal(sys.stderr):
        if SPEECH.json:
            say(what)
        yield
        return
    from tfkit.core.figures import Console

    logger = logging.getLogger("tfkit")
    level = logger.level
    with Console(stderr=True).status(what, spinner="line") as status:
        handler = WarningHandler(status.update)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


class WarningHandler(logging.Handler):
    """Handler that sends logged warnings to standard error and other messages to `show`."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        super().__init__(logging.WARNING if show is None else logging.INFO)
        self.show = show

    def emit(self, record: logging.LogRecord) -> None:
        if self.show is None or record.levelno >= logging.WARNING:
            warn(f"{record.name}: {record.getMessage()}")
        else:
            self.show(record.getMessage().replace("[", "\\["))  # escape rich's markup


class LastingOutput(io.RawIOBase):
    """Standard stream of a command whose results are on disk; if it is lost, further output goes to `log`.

    The loss is reported once, on standard error and in the log.
    """

    def __init__(self, stream: TextIO | None, log: Path, encoding: str) -> None:
        self.stream, self.log, self.encoding = stream, log, encoding
        self.lost = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return not self.lost and is_terminal(self.stream)

    def write(self, data: Buffer) -> int:
        text = bytes(data)
        if not self.lost:
            try:
                self._print(text)
            except OutputLost as error:
                self.lost = True
                warn(f"tfkit: {error}; further output goes to {self.log}")
                text = f"{error}; further output goes to this file only\n".encode() + text
        if self.lost:
            with contextlib.suppress(RunError, OSError), open_log(self.log) as file:
                file.write(text.decode(self.encoding, "replace"))
        return memoryview(data).nbytes

    def _print(self, text: bytes) -> None:
        """Write to the stream. Raise OutputLost if that fails."""
        if self.stream is None:
            raise OutputLost("the stream is closed")
        try:
            self.stream.buffer.write(text)
            self.stream.buffer.flush()
        except (OSError, ValueError) as error:
            raise lost(error) from None


@contextlib.contextmanager
def outlasting(log: Path) -> Iterator[None]:
    """Survive the loss of the standard streams within the block: report it once and append the rest to `log`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_lasting(stream, log) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO | None, log: Path) -> TextIO:
    encoding = "utf-8" if stream is None else stream.encoding
    lasting = cast(BinaryIO, LastingOutput(stream, log, encoding))
    return io.TextIOWrapper(lasting, encoding, newline="\n", write_through=True)


def standard_input() -> BinaryIO:
    """Return standard input as bytes. Raise UsageError if it is closed."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; pass texts as arguments, or a file with <")
    return sys.stdin.buffer


def is_terminal(stream: Any) -> bool:
    """True if a standard stream is a terminal."""
    return stream is not None and bool(stream.isatty())


def open_streams() -> None:
    """Open the null device for closed standard streams, so that no other file gets their descriptors."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one


def settle(stream: IO[str] | None) -> None:
    """Flush the stream; if that fails, redirect it to the null device so that Python exits silently."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
