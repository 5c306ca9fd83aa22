"""Strategies that write each text by itself: the likeliest token, or a drawn one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.options import TextCount
from tfkit.core.registry import register
from tfkit.functional.largest import argmax
from tfkit.generation.search import IMPOSSIBLE, Candidate, Search
from tfkit.generation.stepper import Stepper
from tfkit.generation.strategy.base import Strategy

DROP_SHARE = 0.25  # so many finished rows leave the batch: copying the state then costs less than computing them

# scores [rows vocab], and the text that each row writes on -> a token for each row
Choose = Callable[[Tensor, list[int]], Tensor]


class Texts:
    """What is written of each text: text i continues the prompt `prompts[i]`, and `rows` are those being written.

    A text ends where a stop rule or its room says so, and where the rules leave no token.
    """

    def __init__(self, search: Search, prompts: Sequence[int] | None = None) -> None:
        self.search = search
        self.prompts = list(range(len(search.prompts)) if prompts is None else prompts)
        self.written: list[list[int]] = [[] for _ in self.prompts]
        self.sums = [0.0] * len(self.prompts)
        self.rows = list(range(len(self.prompts)))  # which text each row of the stepper writes on
        self.done = {row for row, prompt in enumerate(self.prompts) if search.room[prompt] == 0}

    @property
    def open(self) -> bool:
        """Whether some text goes on."""
        return len(self.done) < len(self.prompts)

    def add(self, tokens: Tensor, gains: Tensor) -> None:
        """A token for each row, [rows], and its log-probability, IMPOSSIBLE where there was no token to choose."""
        seconds = self.search.seconds()
        for row, token, gain in zip(self.rows, tokens.tolist(), gains.tolist(), strict=True):
            if row not in self.done:
                self.add_to(row, token, gain, seconds)

    def add_to(self, row: int, token: int, gain: float, seconds: float) -> None:
        """A token for one text; raises PromptError where its log-probability is no number."""
        if gain == IMPOSSIBLE:
            self.done.add(row)
            return
        if not math.isfinite(gain):
            raise self.search.not_finite(self.prompts[row], len(self.written[row]))
        self.written[row].append(token)
        self.sums[row] += gain
        self.search.tell(self.prompts[row], token)
        if self.search.ends(self.prompts[row], self.written[row], seconds):
            self.done.add(row)

    def leavers(self) -> list[int] | None:
        """The places of the rows that stay, where enough others have ended for them to leave."""
        alive = [place for place, row in enumerate(self.rows) if row not in self.done]
        if len(alive) > (1 - DROP_SHARE) * len(self.rows):
            return None
        self.rows = [self.rows[place] for place in alive]
        return alive

    def candidates(self) -> list[Candidate]:
        """One for each text."""
        return [self.search.candidate(ids, total) for ids, total in zip(self.written, self.sums, strict=True)]


def started(search: Search, prompts: Sequence[int]) -> tuple[Stepper, Tensor]:
    """A stepper with a row for each of `prompts`, and its first logits; a prompt that comes several times is read once.

    Gives the stepper and [rows vocab].
    """
    stepper = search.stepper()
    logits = stepper.logits()
    if list(prompts) == list(range(len(search.prompts))):
        return stepper, logits
    copies = torch.tensor(prompts, device=logits.device)
    stepper.keep(copies)
    return stepper, logits.index_select(0, copies)


def write_rows(search: Search, choose: Choose, prompts: Sequence[int] | None = None) -> list[Candidate]:
    """One text for each prompt, or for each entry of `prompts`, which says what prompt it continues."""
    texts = Texts(search, prompts)
    if not texts.open:
        return texts.candidates()
    stepper, logits = started(search, texts.prompts)
    while True:
        scores = search.rules.scores(logits, stepper.tokens(), stepper.written(), stepper.left())
        chosen = choose(scores, texts.rows)
        texts.add(chosen, gains_of(scores, chosen, search.scored))
        if not texts.open:
            return texts.candidates()
        stepper.append(chosen)
        stay = texts.leavers()
        if stay is not None:
            stepper.keep(torch.tensor(stay, device=chosen.device))
        logits = stepper.logits()


def gains_of(scores: Tensor, chosen: Tensor, scored: bool = True) -> Tensor:
    """Log-probabilities of the chosen tokens, [rows]; where nobody asks, only whether they are possible."""
    raw = scores.gather(1, chosen[:, None])[:, 0]
    return (raw - scores.logsumexp(dim=-1)).where(raw != IMPOSSIBLE, IMPOSSIBLE) if scored else raw


@register("strategy", "greedy")
class Greedy(Strategy):
    """next = argmax p(token | prompt, what was written)."""

    def search(self, search: Search) -> list[list[Candidate]]:
        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            return argmax(scores)

        return [[candidate] for candidate in write_rows(search, choose)]


@register("strategy", "sample")
class Sample(Strategy):
    """next ~ p(token | prompt, what was written), as the logits rules leave it.

    Each text has its own random stream, one number per token: a draw depends on the seed and the prompt, not on the
    other texts of the batch.
    """

    draws = True

    class Config(Strategy.Config):
        """Options of sample."""

        n_best: TextCount = Field(1, description="texts drawn for each prompt, the most likely first")

    config: Config

    @property
    def texts_returned(self) -> int:
        return self.config.n_best

    @property
    def texts_at_once(self) -> int:
        return self.config.n_best

    def search(self, search: Search) -> list[list[Candidate]]:
        count = self.config.n_best
        # a probability that is no number shows in the sum of all alone; and tokens of several texts would come mixed
        search = replace(search, scored=True, on_token=search.on_token if count == 1 else None)
        prompts = [row for row in range(len(search.prompts)) for _ in range(count)]
        streams = [random.Random(search.streams[row].getrandbits(128)) for row in prompts]

        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            return draw(scores.softmax(dim=-1), [streams[row] for row in rows])

        texts = write_rows(search, choose, prompts)
        return [
            sorted(texts[start : start + count], key=lambda text: text.score, reverse=True)
            for start in range(0, len(texts), count)
        ]


def draw(probabilities: Tensor, streams: Sequence[random.Random]) -> Tensor:
    """A token for each row of `probabilities` [rows vocab], [rows], by one number of the row's stream.

    That is the first token whose cumulative probability reaches the number, which is above 0: one that cannot come is
    never drawn while another can. The probabilities of a row may have any sum.
    """
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    numbers = torch.tensor([1 - stream.random() for stream in streams], dtype=torch.float64, device=cumulative.device)
    wanted = numbers * cumulative[:, -1]
    return torch.searchsorted(cumulative, wanted[:, None])[:, 0].clamp(max=cumulative.shape[1] - 1)
