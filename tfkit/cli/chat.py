"""Conversation with a run in the terminal: each text is a message, and replies depend on all earlier messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tfkit.cli.terminal import echo, echo_text
from tfkit.generation.shorthands import WriteOptions

if TYPE_CHECKING:
    from tfkit.run import Run


def replying(run: Run, options: WriteOptions) -> Callable[[str], None]:
    """Return a function that prints the reply to a message and remembers both.

    A message that got no reply is removed from the conversation. If Ctrl-C interrupts a reply, the printed part is
    kept.
    """
    messages: list[dict[str, str]] = []
    streams = run.writer(**options).strategy.streams

    def answer(text: str) -> None:
        message, reply = {"role": "user", "content": text}, ""
        ids = run.read_chat([*messages, message])
        try:
            for piece in run.stream(ids, **options) if streams else run.generate([ids], **options):
                echo_text(piece, end="")
                reply += piece
        finally:
            echo()
            if reply.strip():
                messages.extend((message, {"role": "assistant", "content": reply}))

    return answer
