"""Searches in batches that fit into memory, results in the order of the prompts; streaming and tokens per second."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import groupby
from queue import SimpleQueue

import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.generation.decoder import Quantize, StepDecoder
from tfkit.generation.search import Candidate, Search, prepare
from tfkit.generation.stepper import evaluating
from tfkit.generation.strategy import Strategy
from tfkit.generation.strategy.rows import Greedy
from tfkit.models import Model
from tfkit.models.static import Step, compiled_step

COPIES = 4  # minimum number of float32 tensors of vocabulary size per text: logits, log-probabilities, totals, order
TEXT = 1000  # minimum bytes of other data per text


def check_room(strategy: Strategy, model: Model, prompts: int) -> None:
    """Raise UsageError if a batch of `prompts` needs more memory than is free on the device."""
    weight: Tensor = next(model.parameters())
    each = COPIES * 4 * (model.blueprint.last.vocab_size or 0) + TEXT
    needed, free = prompts * strategy.texts_at_once * each, free_memory(weight.device)
    if free is None or needed <= free:
        return
    what = f"{prompts:,} prompts" if prompts > 1 else "a prompt"
    if strategy.texts_at_once > 1:
        what += f" with {strategy.texts_at_once:,} texts" + " each" * (prompts > 1)
    raise UsageError(
        f"{what} need at least {readable_bytes(needed)} of memory, but only {readable_bytes(free)} are free; "
        f"at most {free // each:,} texts fit at once"
    )


def check_invariant(weight: Tensor, quantize: Quantize | None, step: Step | None) -> None:
    """Raise UsageError if `generate.invariant` does not support the model's device or dtype, or another option."""
    fault = None
    if weight.device.type != "cpu":
        fault = f"runs only on a CPU, but this model is on {weight.device.type}; use the device cpu"
    elif quantize is not None:
        fault = f"needs float32 weights, but quantize is {quantize}; use one of the two"
    elif weight.dtype != torch.float32:
        kind = str(weight.dtype).removeprefix("torch.")
        fault = f"needs float32 weights, but those of this model are {kind}; convert it with model.float()"
    elif step is compiled_step:
        fault = "cannot use a compiled step, which depends on earlier shapes; set generate.compile: false"
    if fault is not None:
        raise UsageError(f"generate.invariant: {fault}")


def find(strategy: Strategy, search: Search, batch_size: int = 64) -> list[list[Candidate]]:
    """Return the candidates of each prompt, best first, computed in batches of `batch_size`.

    Raise UsageError for incompatible settings before anything is computed, and PromptError for non-finite logits.
    """
    strategy.check(search)
    decoder, compiled = search.decoder or StepDecoder(search.model), search.step is compiled_step
    if search.invariant:
        check_invariant(next(search.model.parameters()), decoder.quantize, search.step)
        batch_size = 1  # kernels choose by the number of rows, and padding shifts the order of sums
    check_room(strategy, search.model, min(batch_size, len(search.prompts)))
    if compiled and decoder.quantize is not None:
        raise UsageError(f"generate.compile: a compiled step cannot use {decoder.quantize} weights; use one of the two")
    results: list[list[Candidate]] = [[] for _ in search.prompts]
    with evaluating(search.model):
        plain = compiled or (search.invariant and not decoder.has_room)  # the compiler packs weights itself
        search = search if plain else replace(search, model=decoder.current())
        for rows in _batches(search, batch_size):
            batch = replace(search.of(rows), began=time.monotonic())  # the clock restarts with each batch
            for row, candidates in zip(rows, strategy.search(batch), strict=True):
                results[row] = candidates
    return results


def _batches(search: Search, batch_size: int) -> Iterator[list[int]]:
    """Yield batches of rows sorted by length; if a part does not support padding, a batch has only equal lengths."""
    read = search.prompts if search.sources is None else search.sources
    order = sorted(range(len(read)), key=lambda index: len(read[index]))
    alone = any(plan.without("padding") for plan in search.model.blueprint.stacks())
    for _, group in groupby(order, key=lambda row: (len(read[row]), len(search.prompts[row])) if alone else None):
        rows = list(group)
        for start in range(0, len(rows), batch_size):
            yield rows[start : start + batch_size]


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
    inputs = {name: torch.zeros(batch, one.width) for name, one in decoder.model.extra_inputs.items()}
    seconds = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        search = prepare(decoder.model, prompts, new, sources=sources, inputs=inputs, decoder=decoder)
        find(Greedy(Greedy.Config()), search, batch)
        seconds.append(time.perf_counter() - began)
    return batch * new / statistics.median(seconds[1:])
