"""Interactive prompt in the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tfkit.cli.terminal import echo, warn

SIGN = "> "


def converse(answer: Callable[[str], None]) -> None:
    """Read texts and answer them until Ctrl-D or Ctrl-C; Ctrl-C during an answer ends only that answer.

    Errors are reported, then the next text is read. The arrow keys recall earlier lines if readline is available.
    """
    from tfkit.cli.main import complain

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it gives input() a history
    while (text := _typed()) is not None:
        try:
            if text.strip():
                answer(text)
        except Exception as error:
            if not complain(error):
                raise
        except KeyboardInterrupt:
            echo()


def _typed() -> str | None:
    """Read a line from the terminal; None at the end of input."""
    try:
        return input(SIGN)
    except UnicodeDecodeError:
        warn("tfkit: the input is not UTF-8 text")
        return ""
    except (EOFError, KeyboardInterrupt):
        echo()
        return None
