"""Text for a terminal or a log: control characters are escaped, lost streams are reported."""

from __future__ import annotations

import base64
import errno
import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

# Characters that control a terminal or reorder or end a line: controls except tab and line feed, line and paragraph
# separators, bidirectional overrides and isolates, lone surrogates.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# errors of a stream whose reader is gone: a broken pipe, or a closed terminal
_GONE = (errno.EPIPE, errno.EIO)
WIDEST = 160  # maximum line width in a repr


@dataclass
class Speech:
    """Settings of answers and progress. The command line sets them; in Python, progress is text on stdout."""

    data: bool = False  # the answer is JSON
    stderr: bool = False  # progress goes to standard error
    json: bool = False  # progress is JSON lines
    quiet: bool = False  # no progress


SPEECH = Speech()


class OutputLost(Exception):
    """Failure to write an output stream; `quiet` if the reader closed the stream, so that no message is needed."""

    def __init__(self, reason: str, quiet: bool = False) -> None:
        super().__init__(f"the output cannot be written: {reason}")
        self.quiet = quiet


def printable(text: str) -> str:
    r"""Return `text` with control characters escaped (\x1b, \u202e); tabs and line feeds are kept."""
    return _ACTING.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def json_line(data: object, indent: int | None = None) -> str:
    r"""Format `data` as JSON that is safe to print and parses to equal data: control characters become \u escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def event(text: str, kind: str = "message", **facts: object) -> str:
    """Return a line of progress: the text, or a JSON object with its facts."""
    return answer_line({"event": kind, "text": text, **facts}) if SPEECH.json else printable(text)


def answer_line(data: object, indent: int | None = None) -> str:
    """Format an answer as `json_line` does, with null for NaN and infinity, which JSON does not have."""
    return json_line(json.loads(json.dumps(data), parse_constant=lambda _: None), indent)


def some(texts: Iterable[str], most: int = 4) -> str:
    """Join the first few of `texts` and count the rest."""
    listed = list(texts)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def block(title: str, lines: Iterable[str]) -> str:
    """Format a multi-line repr. Long lines are truncated; line feeds within a line become spaces."""
    shown = [" ".join(printable(line).split("\n")) for line in (title, *lines)]
    cut = [line if len(line) <= WIDEST else f"{line[: WIDEST - 3]}..." for line in shown]
    return f"<{cut[0]}{''.join(f'{chr(10)}  {line}' for line in cut[1:])}>"


def block_as_html(text: str, svg: bytes = b"") -> str:
    """Format a repr as escaped HTML for notebooks, followed by an image whose scripts cannot run."""
    source = base64.b64encode(svg).decode("ascii")
    image = f'<img alt="" src="data:image/svg+xml;base64,{source}">' if svg else ""
    return f"<pre>{html.escape(printable(text))}</pre>{image}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: 1 example, 2,000 examples."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def encodable(text: str, stream: IO[str]) -> str:
    r"""Return `text` with characters that the stream cannot encode escaped (\xfc)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def emit(text: str, stream: IO[str] | None) -> None:
    """Write `text` and flush. Raise OutputLost if the stream is closed, full or has no reader."""
    if stream is None:
        raise OutputLost("the stream is closed")
    try:
        stream.write(encodable(text, stream))
        stream.flush()
    except (OSError, ValueError) as error:  # ValueError: the stream was closed by Python code
        raise lost(error) from None


def lost(error: OSError | ValueError) -> OutputLost:
    """Convert a stream's error to OutputLost."""
    number = getattr(error, "errno", None)
    return OutputLost(getattr(error, "strerror", None) or str(error), quiet=number in _GONE)
