"""Contrastive search: likely tokens whose hidden states differ from all earlier hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import TextCount
from tfkit.core.registry import register
from tfkit.functional.largest import topk
from tfkit.functional.precision import wide
from tfkit.generation.search import IMPOSSIBLE, Candidate, Search
from tfkit.generation.stepper import Stepper
from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.rows import Texts, gains_of


@register("strategy", "contrastive")
class Contrastive(Strategy):
    """next = argmax of (1 - alpha) p(v) - alpha max_j cos(h_v, h_j) over top k (Su et al. 2022, arXiv 2202.06417).

    h_v is the last hidden state of token v appended to the text; h_j are the hidden states of the text so far (of the
    target, in an encoder-decoder). Each step computes k rows per text.
    """

    class Config(Strategy.Config):
        k: TextCount = Field(4, description="candidate tokens per step (the paper: 3 to 8)")
        alpha: Annotated[float, Field(ge=0, le=1)] = Field(
            0.6, description="weight of the similarity penalty; 0 is greedy search (the paper: 0.6)"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            if facts.vocab_size is not None and self.k > facts.vocab_size:
                yield Problem("k", f"{self.k} exceeds the vocabulary of {facts.vocab_size} tokens")

    config: Config

    @property
    def texts_at_once(self) -> int:
        return self.config.k

    def check(self, search: Search) -> None:
        super().check(search)
        size = search.model.blueprint.last.vocab_size
        if size is not None and self.config.k > size:
            raise UsageError(f"generate.strategy.k: {self.config.k} exceeds the vocabulary of {size} tokens")

    def search(self, search: Search) -> list[list[Candidate]]:
        texts = Texts(search)
        if texts.open:
            self._write(search, texts)
        return [[candidate] for candidate in texts.candidates()]

    def _write(self, search: Search, texts: Texts) -> None:
        k = self.config.k
        stepper = search.stepper()
        logits, before = stepper.logits(), directions(stepper)
        while True:
            scores = search.rules.scores(logits, stepper.tokens(), stepper.written(), stepper.left())
            values, tokens = topk(scores, k)
            rows = torch.arange(len(scores), device=scores.device)
            stepper.keep(rows.repeat_interleave(k))
            stepper.append(tokens.flatten())
            logits, own = stepper.logits(), directions(stepper)[:, -1]
            worth = self.worth(scores.softmax(dim=-1).gather(1, tokens), own.view(-1, k, own.shape[1]), before)
            best = worth.where(values != IMPOSSIBLE, IMPOSSIBLE).argmax(dim=1)
            chosen = tokens.gather(1, best[:, None])[:, 0]
            texts.add(chosen, gains_of(scores, chosen, search.scored))
            if not texts.open:
                return
            stay = texts.leavers()
            kept = rows if stay is None else torch.tensor(stay, device=rows.device)
            taken = kept * k + best[kept]  # index into the candidate rows
            stepper.keep(taken)
            logits, before = logits[taken], torch.cat((before[kept], own[taken, None]), dim=1)

    def worth(self, likely: Tensor, own: Tensor, before: Tensor) -> Tensor:
        """Return the score of each candidate token, [rows k].

        `likely` [rows k] has probabilities. `own` [rows k d_model] and `before` [rows time d_model] have the normalized
        hidden states of candidates and of the text, which are 0 for padding.
        """
        similarity = torch.einsum("r k d, r t d -> r k t", own, before).masked_fill(~before.any(dim=2)[:, None], -1.0)
        return (1 - self.config.alpha) * likely - self.config.alpha * similarity.amax(dim=2)


def directions(stepper: Stepper) -> Tensor:
    """Return the normalized hidden states of the tokens computed last, [rows new d_model]; 0 for padding."""
    last: Tensor = stepper.hidden  # type: ignore[assignment]  # set by logits()
    hidden = torch.nn.functional.normalize(wide(last), dim=-1)
    if stepper.real is None:
        return hidden
    return hidden * stepper.real[:, -hidden.shape[1] :, None]
