"""Benchmark of generation in tokens per second."""

from __future__ import annotations

import random
import statistics
import time

from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import prepare
from tfkit.generation.strategy.rows import Greedy
from tfkit.generation.texts import find

ROUNDS = 3  # timed rounds after one warm-up round; their median is returned


def generation_rate(decoder: StepDecoder, start: int | None, batch: int, prompt: int, new: int) -> float:
    """Return the tokens per second of greedy search, with `new` tokens after each of `batch` random prompts.

    In an encoder-decoder, `start` is the first target id and the random ids are sources. Raise UsageError if prompt
    and new tokens exceed the model's length limit.
    """
    stack = next(decoder.model.blueprint.stacks())
    draw = random.Random(0)
    ids = [[draw.randrange(stack.vocab_size or 1) for _ in range(prompt)] for _ in range(batch)]
    prompts, sources = (ids, None) if start is None else ([[start]] * batch, ids)
    seconds = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        find(Greedy(Greedy.Config()), prepare(decoder.model, prompts, new, sources=sources, decoder=decoder), batch)
        seconds.append(time.perf_counter() - began)
    return batch * new / statistics.median(seconds[1:])
