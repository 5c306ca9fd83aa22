"""my_part: a custom strategy, which chooses the next token."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

import tfkit
from tfkit.generation.search import Candidate, Search
from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.rows import write_rows


@tfkit.register("strategy", "my_part")
class MyPart(Strategy):
    """Draws one of the most likely tokens, each as likely as the others."""

    draws = True  # so that temperature, top_p and the like may be listed beside it

    # The options of the part, as a recipe writes them: {type: my_part, among: 5}. Add yours here.
    class Config(Strategy.Config):
        among: int = Field(3, ge=1, description="number of most likely tokens to sample from")

    config: Config

    def search(self, search: Search) -> list[list[Candidate]]:
        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            # Change this: a token for each row, from its scores [rows vocab], which are -inf where a rule forbids the
            # token. Row i continues the prompt rows[i]; each prompt has random numbers of its own to draw from.
            best = scores.topk(min(self.config.among, scores.shape[1]))
            counts = (best.values > float("-inf")).sum(dim=1).clamp(min=1).tolist()
            drawn = [search.streams[row].randrange(count) for row, count in zip(rows, counts, strict=True)]
            return best.indices.gather(1, torch.tensor(drawn, device=scores.device)[:, None])[:, 0]

        # One text for each prompt; a strategy that keeps several has its own loop: see tfkit/generation/strategy.
        return [[candidate] for candidate in write_rows(search, choose)]
