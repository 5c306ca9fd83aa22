"""Token streaming: the search runs in a separate thread and can be abandoned at any time."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import replace
from queue import SimpleQueue

from tfkit.core.errors import UsageError
from tfkit.generation.search import Candidate, Search
from tfkit.generation.strategy import Strategy
from tfkit.generation.texts import find


class _Left(BaseException):
    """Raised in the search thread after the consumer has closed the stream."""


def check_stream(strategy: Strategy, search: Search) -> None:
    """Raise UsageError if the strategy does not produce final tokens one by one."""
    strategy.check(search)
    if not strategy.streams:
        raise UsageError(
            f"generate.strategy: {strategy.part_name} cannot stream, because its text is only known at the end; "
            "generate without streaming, or use greedy or sample"
        )
    if strategy.texts_returned != 1:
        raise UsageError(f"generate.strategy: n_best is {strategy.texts_returned}; streaming needs n_best 1")


def final_tokens(strategy: Strategy, search: Search) -> Generator[int | Candidate, None, None]:
    """Yield the tokens of a search with one prompt as they become final, then the candidate.

    Exceptions of the search are raised here. Closing the generator stops the search at the next token.
    """
    queue: SimpleQueue[int | Candidate | BaseException] = SimpleQueue()
    left = threading.Event()

    def listen(row: int, token: int) -> None:
        if left.is_set():
            raise _Left
        queue.put(token)

    def work() -> None:
        try:
            queue.put(find(strategy, replace(search, on_token=listen))[0][0])
        except BaseException as error:
            queue.put(error)

    thread = threading.Thread(target=work, name="tfkit stream", daemon=True)
    thread.start()
    try:
        while True:
            item = queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, Candidate):
                return
    finally:
        left.set()
        thread.join()
