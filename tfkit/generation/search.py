"""What a strategy searches: prompts, the model, the rules; and what it finds."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfkit.core.errors import UsageError
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.prompts import Ids, PromptError, Source
from tfkit.generation.rules import Rules
from tfkit.generation.stepper import Stepper, check_ids, most_positions
from tfkit.models import Model

IMPOSSIBLE = -math.inf  # the log-probability of what cannot come


@dataclass(frozen=True)
class Candidate:
    """One text for a prompt: the new `ids`, and the sum of the log-probabilities that the rules left them.

    `score` is what candidates of one prompt are ordered by; a beam search divides by a length, others do not.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float


@dataclass
class Search:
    """What is to be written: after each prompt at most `room` new tokens, within `rules`.

    In an encoder-decoder `sources` are read, and a prompt is what the target begins with. `on_token(row, token)` is
    told each token as soon as it is certain. `scored=False` says that nobody will ask for probabilities.
    """

    model: Model
    prompts: Sequence[Ids]
    room: Sequence[int]
    rules: Rules = field(default_factory=Rules)
    sources: Sequence[Source] | None = None
    streams: Sequence[random.Random] = ()  # what to draw from, for each prompt
    numbers: Sequence[int] = ()  # of the prompts within the call, from 1
    use_cache: bool = True
    scored: bool = False
    decoder: StepDecoder | None = None  # what computes as the model does; None: one is made for this search
    on_token: Callable[[int, int], None] | None = None
    began: float = field(default_factory=lambda: time.monotonic())

    def stepper(self, rows: Sequence[int] | None = None) -> Stepper:
        """The model's logits after the prompts, or after those of some `rows` (one may come several times)."""
        chosen = range(len(self.prompts)) if rows is None else rows
        sources = None if self.sources is None else [self.sources[row] for row in chosen]
        rooms = [self.most(row) for row in chosen]
        return Stepper(self.model, [self.prompts[row] for row in chosen], sources, self.use_cache, rooms)

    def most(self, row: int) -> int:
        """How many tokens will be written after a prompt at most, by a stop rule that counts them too."""
        return min([self.room[row], *self.rules.bounds])

    def seconds(self) -> float:
        """How long the search has been going on."""
        return time.monotonic() - self.began

    def ends(self, row: int, ids: Sequence[int], seconds: float) -> bool:
        """Whether the text of a prompt ends with the last of the new `ids`, which was written after so many seconds."""
        return len(ids) >= self.room[row] or self.rules.done(self.prompts[row], ids, seconds)

    def not_finite(self, row: int, written: int) -> PromptError:
        """What to raise where the token after the `written` ones of a prompt has a score that is no number."""
        return PromptError(
            "prompt" if self.sources is None else "source",
            self.numbers[row] if self.numbers else row + 1,
            f"gives logits that are not finite after {written} new tokens: weights of this model are not finite, or "
            "too large for their type",
        )

    def tell(self, row: int, token: int) -> None:
        """Hand a token that is certain to whoever listens."""
        if self.on_token is not None:
            self.on_token(row, token)

    def candidate(self, ids: Sequence[int], log_probability: float, score: float | None = None) -> Candidate:
        """What was found, without what the stop rules cut off."""
        return Candidate(tuple(self.rules.cut(ids)), log_probability, log_probability if score is None else score)

    def of(self, rows: Sequence[int]) -> Search:
        """The same for some of the prompts."""
        listener = self.on_token
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            room=[self.room[row] for row in rows],
            sources=None if self.sources is None else [self.sources[row] for row in rows],
            streams=[self.streams[row] for row in rows],
            numbers=[self.numbers[row] for row in rows],
            on_token=None if listener is None else lambda row, token: listener(rows[row], token),
        )


def prepare(
    model: Model,
    prompts: Sequence[Ids],
    most: int | Sequence[int],
    rules: Rules | None = None,
    *,
    sources: Sequence[Source] | None = None,
    seed: int | None = None,
    **how: Any,
) -> Search:
    """A Search, checked: at most `most` new tokens, one number or one for each prompt, drawn with `seed`.

    Raises UsageError for what the model cannot read, before anything is computed.
    """
    check_ids(model, prompts, sources)
    room = room_for(model, prompts, most)
    streams, numbers = streams_for(seed, prompts, sources), range(1, len(prompts) + 1)
    search = Search(model, prompts, room, rules or Rules(), sources, streams, numbers, **how)
    search.rules.check(prompts, [search.most(row) for row in range(len(prompts))])
    return search


def streams_for(seed: int | None, prompts: Sequence[Ids], sources: Sequence[Source] | None) -> list[random.Random]:
    """A random stream for each prompt, its own whatever stands beside it; equal prompts have different ones."""
    base = random.SystemRandom().getrandbits(63) if seed is None else seed
    seen: Counter[str] = Counter()
    found = []
    for row, prompt in enumerate(prompts):
        text = f"{base} {_named([] if sources is None else sources[row])} {[int(token) for token in prompt]}"
        digest = hashlib.blake2b(f"{text} {seen[text]}".encode(), digest_size=16).digest()
        found.append(random.Random(digest))
        seen[text] += 1
    return found


def _named(source: Source) -> str:
    """A source as a text that only equal ones have."""
    if isinstance(source, np.ndarray):
        return f"{source.shape} {source.tobytes().hex()}"
    return str([int(token) for token in source])


def room_for(model: Model, prompts: Sequence[Ids], most: int | Sequence[int]) -> list[int]:
    """How many tokens each row may write: as many as asked for, and no more than its positions hold."""
    asked = [most] * len(prompts) if isinstance(most, int) else list(most)
    if len(asked) != len(prompts) or min(asked, default=0) < 0:
        raise UsageError(f"max_new_tokens is a number from 0 on, or one for each of {len(prompts)} prompts, got {most}")
    bound = most_positions(model, model.blueprint.last.side)
    if bound is None:
        return asked
    # the last token written is never read again, so it needs no position
    return [min(number, bound - len(prompt) + 1) for number, prompt in zip(asked, prompts, strict=True)]
