"""Sampling: each token is drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.options import TextCount
from tfkit.core.registry import register
from tfkit.generation.search import Candidate, Search
from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.rows import write_rows


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
