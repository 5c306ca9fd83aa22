"""Token ids in compact arrays, and encoding of many texts in several processes.

Each process runs this module. It reads the tokenizer, then batches of texts as lines of JSON, and writes arrays of ids.
It exits at the end of its input, and therefore also when its parent process exits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tfkit.core.errors import DataError
from tfkit.data.tokenizer import Tokenizer

Ids = NDArray[np.int32]


class TokenIds:
    """A sequence of texts as ids: text n is `tokens[offsets[n] : offsets[n + 1]]`."""

    def __init__(self, tokens: NDArray[np.integer], offsets: NDArray[np.int64]) -> None:
        self.tokens, self.offsets = tokens, offsets

    @classmethod
    def of(cls, texts: Iterable[Sequence[int] | Ids]) -> TokenIds:
        """Build from lists of ids, which are copied."""
        arrays = [np.asarray(text, dtype=np.int32) for text in texts]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate([np.zeros(0, np.int32), *arrays]), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Ids:
        return self.between(int(self.offsets[number]), int(self.offsets[number + 1]))

    def between(self, start: int, stop: int) -> Ids:
        """Return the ids from `start` up to `stop` of all texts concatenated."""
        return np.asarray(self.tokens[start:stop], dtype=np.int32)


class Stream:
    """The non-empty texts concatenated into one sequence of ids, with `end` (unless None) between texts."""

    def __init__(self, texts: TokenIds, end: int | None) -> None:
        self.texts, self.end = texts, end
        self.full: NDArray[np.int64] = np.flatnonzero(texts.lengths)
        between = 0 if end is None else 1
        self._starts = texts.offsets[self.full] + between * np.arange(len(self.full))
        self._size = int(texts.offsets[-1]) + between * max(0, len(self.full) - 1)

    def __len__(self) -> int:
        return self._size

    def between(self, start: int, stop: int) -> Ids:
        if self.end is None:
            return self.texts.between(start, min(stop, self._size))
        first, last = (int(at) for at in np.searchsorted(self._starts, [start, stop - 1], side="right") - 1)
        found = np.full(min(stop, self._size) - start, self.end, dtype=np.int32)
        for place in range(first, last + 1):
            text, begin = self.texts[self.full[place]], int(self._starts[place]) - start
            cut = text[max(0, -begin) : max(0, len(found) - begin)]
            found[max(0, begin) : max(0, begin) + len(cut)] = cut
        return found


AHEAD = 2  # queued batches per process


def encoded(batches: Iterable[Sequence[str]], tokenizer: Tokenizer, processes: int) -> Iterator[TokenIds]:
    """Yield the ids of each batch in order. Raise DataError for a text that cannot be encoded.

    If `processes` is 1, texts are encoded in the current process.
    """
    if processes < 2:
        for batch in batches:
            yield TokenIds.of(tokenizer.encode_batch(batch))
        return
    with ExitStack() as stack:
        workers: SimpleQueue[_Worker] = SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        for _ in range(processes):  # on exit, workers are killed before the pool joins the threads that wait for them
            workers.put(stack.enter_context(_Worker(tokenizer)))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        waiting: deque[Future[TokenIds]] = deque()
        for batch in batches:
            waiting.append(pool.submit(_encode, workers, batch))
            if len(waiting) > processes * AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Worker:
    """A subprocess that encodes texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfkit.data.encoder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._send(tokenizer.to_json())

    def encode(self, batch: Sequence[str]) -> TokenIds:
        """Encode texts in the subprocess. Raise DataError if a text cannot be encoded."""
        self._send(list(batch))
        answer = self.process.stdout
        line = answer.readline() if answer is not None else b""
        if not line or answer is None:
            raise DataError("a process that encodes texts has died; run the command again")
        sizes = json.loads(line)
        if isinstance(sizes, str):
            raise DataError(sizes)
        tokens = np.frombuffer(answer.read(4 * sizes[0]), np.int32)
        return TokenIds(tokens, np.frombuffer(answer.read(8 * sizes[1]), np.int64))

    def _send(self, value: str | list[str]) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.write(json.dumps(value).encode("ascii") + b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # `encode` reports the missing answer

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def _encode(workers: SimpleQueue[_Worker], batch: Sequence[str]) -> TokenIds:
    worker = workers.get()
    try:
        return worker.encode(batch)
    finally:
        workers.put(worker)


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Encode batches of texts until the end of the input."""
    tokenizer = Tokenizer.from_json(json.loads(requests.readline()))
    for line in requests:
        try:
            texts = TokenIds.of(tokenizer.encode_batch(json.loads(line)))
        except DataError as error:
            answers.write(json.dumps(str(error)).encode("ascii") + b"\n")
        else:
            sizes = [len(texts.tokens), len(texts.offsets)]
            answers.write(json.dumps(sizes).encode("ascii") + b"\n" + texts.tokens.tobytes() + texts.offsets.tobytes())
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
