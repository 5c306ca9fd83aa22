"""A prompt on the terminal: a text is typed, and answered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tfkit.cli.terminal import echo, warn

SIGN = "> "


def converse(answer: Callable[[str], None]) -> None:
    """Ask for a text and answer it, until Ctrl-D or Ctrl-C; Ctrl-C in an answer ends that answer.

    A text without an answer is reported, and the next one is read. Lines typed before come back with the arrow keys,
    where Python has readline.
    """
    from tfkit.cli.main import complain

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() has a history as soon as it is imported
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
    """A line from the terminal; None when there are to be no more."""
    try:
        return input(SIGN)
    except UnicodeDecodeError:
        warn("tfkit: that is not UTF-8 text")
        return ""
    except (EOFError, KeyboardInterrupt):
        echo()
        return None
