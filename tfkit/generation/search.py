"""A search task (prompts, model and rules) and the candidates that it returns."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.prompts import Ids, PromptError, Source
from tfkit.generation.rules import Rules
from tfkit.generation.stepper import Stepper, check_ids, most_positions
from tfkit.models import Model
from tfkit.models.static import Step, compiled_step, decode_step
from tfkit.recipe.settings.sections import Generate

IMPOSSIBLE = -math.inf  # log-probability of excluded tokens


@dataclass(frozen=True)
class Candidate:
    """One text for a prompt: the new `ids`, and the sum of their log-probabilities under the rules.

    `score` orders the candidates of a prompt: the log-probability, which beam search normalizes by length.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float


@dataclass
class Search:
    """A search task: at most `room` new tokens after each prompt, within `rules`.

    In an encoder-decoder, `sources` are encoded and prompts are target prefixes. `on_token(row, token)` is called for
    each final token. With `scored=False`, strategies may skip computing log-probabilities.
    """

    model: Model
    prompts: Sequence[Ids]
    room: Sequence[int]
    rules: Rules = field(default_factory=Rules)
    sources: Sequence[Source] | None = None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)  # extra inputs of the prompts, [prompts width]
    streams: Sequence[random.Random] = ()  # RNG of each prompt
    numbers: Sequence[int] = ()  # 1-based prompt numbers within the call
    use_cache: bool = True
    step: Step | None = None  # decodes from a static cache; None: from a growing one
    scored: bool = False
    invariant: bool = False  # decode each prompt by itself
    decoder: StepDecoder | None = None  # None: built for this search
    on_token: Callable[[int, int], None] | None = None
    began: float = field(default_factory=lambda: time.monotonic())

    def stepper(self, rows: Sequence[int] | None = None) -> Stepper:
        """Build a stepper for all prompts, or for the selected `rows`, which may repeat."""
        chosen = range(len(self.prompts)) if rows is None else rows
        sources = None if self.sources is None else [self.sources[row] for row in chosen]
        rooms = [self.most(row) for row in chosen]
        prompts, inputs = [self.prompts[row] for row in chosen], self.inputs_of(self.model, chosen)
        return Stepper(self.model, prompts, sources, self.use_cache, rooms, self.step, inputs)

    def inputs_of(self, model: Model, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the extra inputs of some prompts that `model` reads, such as a draft model."""
        return {name: one[list(rows)] for name, one in self.inputs.items() if name in model.extra_inputs}

    def most(self, row: int) -> int:
        """Return the maximum number of new tokens for a prompt, including the limits of stop rules."""
        return min([self.room[row], *self.rules.bounds])

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def ends(self, row: int, ids: Sequence[int], seconds: float) -> bool:
        """True if the text of a prompt ends after the new `ids` and `seconds` of search."""
        return len(ids) >= self.room[row] or self.rules.done(self.prompts[row], ids, seconds)

    def not_finite(self, row: int, written: int) -> PromptError:
        """Return the error for non-finite scores after `written` new tokens of a prompt."""
        return PromptError(
            "prompt" if self.sources is None else "source",
            self.numbers[row] if self.numbers else row + 1,
            f"produced non-finite logits after {written} new tokens: the model has non-finite weights, or weights "
            "too large for their dtype",
        )

    def notify(self, row: int, token: int) -> None:
        """Pass a final token to the listener, if any."""
        if self.on_token is not None:
            self.on_token(row, token)

    def candidate(self, ids: Sequence[int], log_probability: float, score: float | None = None) -> Candidate:
        """Build a candidate, without tokens cut off by stop rules."""
        return Candidate(tuple(self.rules.cut(ids)), log_probability, log_probability if score is None else score)

    def of(self, rows: Sequence[int]) -> Search:
        """Return the search restricted to some of the prompts."""
        listener = self.on_token
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            room=[self.room[row] for row in rows],
            sources=None if self.sources is None else [self.sources[row] for row in rows],
            inputs=self.inputs_of(self.model, rows),
            streams=[self.streams[row] for row in rows],
            numbers=[self.numbers[row] for row in rows],
            on_token=None if listener is None else lambda row, token: listener(rows[row], token),
        )


def step_of(settings: Generate) -> Step | None:
    """Return the step for a static cache, or None for a growing one. Raise UsageError if that is to be compiled."""
    if settings.cache == "growing" and settings.compile:
        raise UsageError("generate.compile: needs buffers of full size; set generate.cache: static too")
    return None if settings.cache == "growing" else compiled_step if settings.compile else decode_step


def prepare(
    model: Model,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    rules: Rules | None = None,
    *,
    sources: Sequence[Source] | None = None,
    inputs: Mapping[str, Tensor] | None = None,
    seed: int | None = None,
    **how: Any,
) -> Search:
    """Build and check a Search; `most` is the maximum number of new tokens, or one maximum per prompt.

    Raise UsageError for invalid input before anything is computed.
    """
    check_ids(model, prompts, sources)
    room = room_for(model, prompts, most)
    streams, numbers = streams_for(seed, prompts, sources), range(1, len(prompts) + 1)
    extra = model.extra(inputs, len(prompts))
    search = Search(model, prompts, room, rules or Rules(), sources, extra, streams, numbers, **how)
    search.rules.check(prompts, [search.most(row) for row in range(len(prompts))])
    return search


def streams_for(seed: int | None, prompts: Sequence[Ids], sources: Sequence[Source] | None) -> list[random.Random]:
    """Derive an RNG per prompt from the seed, independent of other prompts; equal prompts get different RNGs."""
    base = random.SystemRandom().getrandbits(63) if seed is None else seed
    seen: Counter[str] = Counter()
    streams = []
    for row, prompt in enumerate(prompts):
        text = f"{base} {_named([] if sources is None else sources[row])} {[int(token) for token in prompt]}"
        digest = hashlib.blake2b(f"{text} {seen[text]}".encode(), digest_size=16).digest()
        streams.append(random.Random(digest))
        seen[text] += 1
    return streams


def _named(source: Source) -> str:
    """Serialize a source for hashing."""
    if isinstance(source, np.ndarray):
        return f"{source.shape} {source.tobytes().hex()}"
    return str([int(token) for token in source])


def room_for(model: Model, prompts: Sequence[Ids], most: int | Sequence[int]) -> list[int]:
    """Return the maximum number of new tokens for each prompt, capped by the positions left in the model."""
    limits = [most] * len(prompts) if isinstance(most, int) else list(most)
    if len(limits) != len(prompts) or min(limits, default=0) < 0:
        raise UsageError(f"max_new_tokens must be a number from 0, or one per prompt ({len(prompts)}), got {most}")
    bound = most_positions(model, model.blueprint.last.side)
    if bound is None:
        return limits
    # the last token is never fed to the model and needs no position
    return [min(number, bound - len(prompt) + 1) for number, prompt in zip(limits, prompts, strict=True)]
