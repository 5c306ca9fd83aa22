"""Text for a terminal or a log: control characters are escaped, and a closed stream is reported."""

from __future__ import annotations

import base64
import errno
import html
import json
import re
from collections.abc import Iterable
from typing import IO, Any

# What a terminal obeys, and what reorders or ends a line: controls but tab and line feed, separators of lines and
# paragraphs, overrides and isolates of the writing direction, halves of surrogate pairs.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# what a stream reports once nobody reads it: a closed pipe, a terminal that hung up
_GONE = (errno.EPIPE, errno.EIO)


WIDEST = 160  # characters of a line in a repr


class OutputLost(Exception):
    """A stream that accepts no more text; `quiet` where its reader has closed it, which needs no message."""

    def __init__(self, reason: str, quiet: bool = False) -> None:
        super().__init__(f"the output cannot be written: {reason}")
        self.quiet = quiet


def printable(text: str) -> str:
    r"""`text` with control characters spelled out (\x1b, \u202e); tabs and line feeds stay."""
    return _ACTING.sub(lambda found: _spelled(found[0]), text)


def _spelled(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def json_line(data: Any, indent: int | None = None) -> str:
    r"""`data` as JSON that is safe to print and equal when read: control characters in it are \u escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def some(texts: Iterable[str], most: int = 4) -> str:
    """The first few of `texts`, and how many more there are."""
    listed = list(texts)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def block(title: str, lines: Iterable[str]) -> str:
    """A repr of several lines, each of one line's length at most."""
    shown = [" ".join(printable(line).split("\n")) for line in (title, *lines)]
    cut = [line if len(line) <= WIDEST else f"{line[: WIDEST - 3]}..." for line in shown]
    return f"<{cut[0]}{''.join(f'{chr(10)}  {line}' for line in cut[1:])}>"


def block_as_html(text: str, svg: bytes = b"") -> str:
    """A repr for a notebook, escaped, with a picture below that cannot act on the page."""
    source = base64.b64encode(svg).decode("ascii")
    image = f'<img alt="" src="data:image/svg+xml;base64,{source}">' if svg else ""
    return f"<pre>{html.escape(printable(text))}</pre>{image}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 example, 2,000 examples."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def encodable(text: str, stream: IO[str]) -> str:
    r"""`text` with what the stream's encoding cannot write spelled out (\xfc)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def emit(text: str, stream: IO[str] | None) -> None:
    """Write `text` and flush; raises OutputLost for a stream that is closed, full, or has no reader."""
    if stream is None:
        raise OutputLost("the stream is closed")
    try:
        stream.write(encodable(text, stream))
        stream.flush()
    except (OSError, ValueError) as error:  # ValueError: closed within Python
        raise lost(error) from None


def lost(error: OSError | ValueError) -> OutputLost:
    """The loss that a stream's own error stands for."""
    number = getattr(error, "errno", None)
    return OutputLost(getattr(error, "strerror", None) or str(error), quiet=number in _GONE)
