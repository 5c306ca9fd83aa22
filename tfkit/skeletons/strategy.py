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
    """Draws one of the most likely tokens uniformly."""

    draws = True  # allows logits rules that require sampling, such as temperature and top_p

    # Options of the part, as written in a recipe: {type: my_part, among: 5}. Add your own here.
    class Config(Strategy.Config):
        among: int = Field(3, ge=1, description="number of most likely tokens to sample from")

    config: Config

    def search(self, search: Search) -> list[list[Candidate]]:
        def choose(scores: Tensor, rows: list[int]) -> Tensor:
            # Change this: choose a token for each row from scores [rows vocab], which are -inf for tokens that a rule
            # excludes. Row i continues the prompt rows[i]; each prompt has its own random stream.
            best = scores.topk(min(self.config.among, scores.shape[1]))
            counts = (best.values > float("-inf")).sum(dim=1).clamp(min=1).tolist()
            drawn = [search.streams[row].randrange(count) for row, count in zip(rows, counts, strict=True)]
            return best.indices.gather(1, torch.tensor(drawn, device=scores.device)[:, None])[:, 0]

        # Return one text per prompt. For strategies with several hypotheses, see tfkit/generation/strategy.
        return [[candidate] for candidate in write_rows(search, choose)]
