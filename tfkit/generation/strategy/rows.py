"""Batched decoding with one hypothesis per row, shared by greedy and sampling."""

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
from tfkit.functional.view import argmax
from tfkit.generation.search import IMPOSSIBLE, Candidate, Search
from tfkit.generation.stepper import Stepper
from tfkit.generation.strategy.base import Strategy

DROP_SHARE = 0.25  # drop finished rows once they are this share of the batch; dropping them copies the decode state

# (scores [rows vocab], index of each row's text) -> a token per row
Choose = Callable[[Tensor, list[int]], Tensor]


class Texts:
    """Texts being written: text i continues prompt `prompts[i]`, `rows` are the texts still in the batch.

    A text ends by a stop rule, at its maximum length, or when the rules allow no token.
    """

    def __init__(self, search: Search, prompts: Sequence[int] | None = None) -> None:
        self.search = search
        self.prompts = list(range(len(search.prompts)) if prompts is None else prompts)
        self.written: list[list[int]] = [[] for _ in self.prompts]
        self.sums = [0.0] * len(self.prompts)
        self.rows = list(range(len(self.prompts)))  # text of each stepper row
        self.done = {row for row, prompt in enumerate(self.prompts) if search.room[prompt] == 0}

    @property
    def open(self) -> bool:
        return len(self.done) < len(self.prompts)

    def add(self, tokens: Tensor, gains: Tensor) -> None:
        """Append tokens [rows] with log-probabilities [rows]; IMPOSSIBLE ends a text without a token."""
        seconds = self.search.seconds()
        found = torch.stack((tokens.double(), gains.double())).tolist()  # one wait for the device
        for row, token, gain in zip(self.rows, *found, strict=True):
            if row not in self.done:
                self.add_to(row, int(token), gain, seconds)

    def add_to(self, row: int, token: int, gain: float, seconds: float) -> None:
        """Append a token to one text. Raise PromptError if its log-probability is not finite."""
        if gain == IMPOSSIBLE:
            self.done.add(row)
            return
        if not math.isfinite(gain):
            raise self.search.not_finite(self.prompts[row], len(self.written[row]))
        self.written[row].append(token)
        self.sums[row] += gain
        self.search.notify(self.prompts[row], token)
        if self.search.ends(self.prompts[row], self.written[row], seconds):
            self.done.add(row)

    def leavers(self) -> list[int] | None:
        """Return the batch indices of unfinished rows if enough other rows can be dropped, else None."""
        alive = [place for place, row in enumerate(self.rows) if row not in self.done]
        if len(alive) > (1 - DROP_SHARE) * len(self.rows):
            return None
        self.rows = [self.rows[place] for place in alive]
        return alive

    def candidates(self) -> list[Candidate]:
        return [self.search.candidate(ids, total) for ids, total in zip(self.written, self.sums, strict=True)]


def started(search: Search, prompts: Sequence[int]) -> tuple[Stepper, Tensor]:
    """Return a stepper with a row for each index in `prompts`, and the first logits [rows vocab].

    Repeated prompts are computed once.
    """
    stepper = search.stepper()
    logits = stepper.logits()
    if list(prompts) == list(range(len(search.prompts))):
        return stepper, logits
    copies = torch.tensor(prompts, device=logits.device)
    stepper.keep(copies)
    return stepper, logits.index_select(0, copies)


def write_rows(search: Search, choose: Choose, prompts: Sequence[int] | None = None) -> list[Candidate]:
    """Write one text per prompt, or per index in `prompts`."""
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
        stay = None if search.step is not None else texts.leavers()  # one graph has one number of rows
        if stay is not None:
            stepper.keep(torch.tensor(stay, device=chosen.device))
        logits = stepper.logits()


def gains_of(scores: Tensor, chosen: Tensor, scored: bool = True) -> Tensor:
    """Return the log-probabilities of the chosen tokens, [rows]; raw scores if not `scored`."""
    raw = scores.gather(1, chosen[:, None])[:, 0]
    return (raw - scores.logsumexp(dim=-1)).where(raw != IMPOSSIBLE, IMPOSSIBLE) if scored else raw


@register("strategy", "greedy")
class Greedy(Strategy):
    """next = argmax p(token | prompt, written tokens)."""

    steady = True

    def search(self, search: Search) -> list[list[Candidate]]:
        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            return argmax(scores)

        return [[candidate] for candidate in write_rows(search, choose)]


@register("strategy", "sample")
class Sample(Strategy):
    """next ~ p(token | prompt, written tokens), after the logits rules.

    Each text has its own RNG and uses one random number per token, so that draws depend on the seed and the prompt, not
    on other texts in the batch.
    """

    draws = True
    steady = True

    class Config(Strategy.Config):
        n_best: TextCount = Field(1, description="texts drawn per prompt, most likely first")

    config: Config

    @property
    def texts_returned(self) -> int:
        return self.config.n_best

    @property
    def texts_at_once(self) -> int:
        return self.config.n_best

    def search(self, search: Search) -> list[list[Candidate]]:
        count = self.config.n_best
        # log-probabilities reveal NaN; several texts cannot be streamed, as their tokens would be interleaved
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
    """Draw a token [rows] for each row of `probabilities` [rows vocab], with the row's RNG.

    Inverse transform sampling: take the first token whose cumulative probability reaches a random number. The number
    is above 0, so that excluded tokens are never drawn. Rows need not be normalized.
    """
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    numbers = torch.tensor([1 - stream.random() for stream in streams], dtype=torch.float64, device=cumulative.device)
    thresholds = numbers * cumulative[:, -1]
    return torch.searchsorted(cumulative, thresholds[:, None])[:, 0].clamp(max=cumulative.shape[1] - 1)
