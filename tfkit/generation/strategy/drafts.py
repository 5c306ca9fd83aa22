"""Where the tokens come from that speculative decoding tries: a smaller model, or the text itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tfkit.generation.search import IMPOSSIBLE, Search
from tfkit.generation.stepper import most_positions
from tfkit.generation.strategy.sample import draw

LONGEST = 3  # tokens of an n-gram that is looked for: more are rarely found, fewer say less
Likely = Callable[[Tensor], Tensor]  # scores [... vocab] -> what is drawn from, [... vocab]


class Drafter(Protocol):
    """Tokens that the text may go on with."""

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        """At most `count` tokens, and what each was drawn from, [tokens vocab]."""
        ...

    def settle(self, kept: int, token: int) -> None:
        """Go on where only the first `kept` of the guesses were right, and `token` stands after them."""
        ...


class ModelDrafter:
    """A smaller model writes on. The search is one of that model, with one prompt."""

    def __init__(self, search: Search, likely: Likely, stream: random.Random) -> None:
        self.rules = search.rules
        self.stepper = search.stepper()
        self.likely = likely
        self.stream = stream
        self.bound = most_positions(search.model, search.model.blueprint.last.side)
        self.guessed = 0

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        found: list[Tensor] = []
        tokens: list[int] = []
        if self.bound is not None:  # it may read less than the model that it writes for
            count = min(count, self.bound - self.stepper.ids.shape[1] + 1)
        for _ in range(count):
            stepper = self.stepper
            scores = self.rules.scores(stepper.logits(), stepper.tokens(), stepper.written(), stepper.left())
            if float(scores.max()) == IMPOSSIBLE:
                break
            found.append(self.likely(scores))
            token = draw(found[-1], [self.stream])
            self.stepper.append(token)
            tokens.append(int(token))
        self.guessed = len(tokens)
        return tokens, torch.cat(found) if found else torch.empty(0, 0)

    def settle(self, kept: int, token: int) -> None:
        self.stepper.rewind(self.guessed - kept)
        self.stepper.append(torch.tensor([token], device=self.stepper.ids.device))


class LookupDrafter:
    """What followed the last tokens where they came before: texts repeat names, code, and what they are asked of.

    Yang et al. 2023, arXiv 2304.04487.
    """

    def __init__(self, search: Search) -> None:
        self.vocab_size = search.model.blueprint.last.vocab_size or 0
        self.device = next(search.model.parameters()).device
        self.text = torch.tensor(search.prompts[0])
        self.guesses = self.text[:0]

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        self.guesses = self._follows()[:count]
        certain = torch.nn.functional.one_hot(self.guesses, self.vocab_size).double()
        return self.guesses.tolist(), certain.to(self.device)

    def _follows(self) -> Tensor:
        """What follows the latest earlier place of the longest n-gram that the text ends with."""
        for size in range(LONGEST, 0, -1):
            if len(self.text) <= size:
                continue
            same = (self.text[:-1].unfold(0, size, 1) == self.text[-size:]).all(dim=1)
            if bool(same.any()):
                return self.text[int(same.nonzero()[-1]) + size :]
        return self.text[:0]

    def settle(self, kept: int, token: int) -> None:
        self.text = torch.cat((self.text, self.guesses[:kept], torch.tensor([token])))
