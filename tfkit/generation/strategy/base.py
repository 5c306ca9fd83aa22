"""Base of the strategies: how the next tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tfkit.core.component import Component
from tfkit.core.component import Config as PartConfig
from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import Candidate, Search

# the decoder of another run, and its tokenizer, by the run's path; raises RunError
Load = Callable[[str], tuple[StepDecoder, Tokenizer]]


class Strategy(Component):
    """A strategy. It asks a Stepper for logits, the rules for scores, and decides.

    `draws` says whether it draws tokens at random, so that rules of sampling mean something; `streams` whether a token
    is certain as soon as it is written, so that a listener is told of it (else of none); `rewinds` whether it takes
    tokens back from the decode state.
    """

    draws: bool = False
    streams: bool = True
    rewinds: ClassVar[bool] = False

    class Config(PartConfig):
        """Options of every strategy."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def able(cls, config: PartConfig | None = None) -> frozenset[str]:
        """What it declares, and "draws" where it draws with these options, or with `sampled` where it has that."""
        draws = cls.draws or "sampled" in cls.Config.model_fields if config is None else config.build().draws
        return super().able(config) | {"draws"} if draws else super().able(config)

    def bind(self, tokenizer: Tokenizer, load: Load) -> None:
        """Take what it needs besides the model that writes, before the first search; raises UsageError, RunError."""

    @property
    def texts_at_once(self) -> int:
        """How many texts are computed side by side for each prompt."""
        return 1

    @property
    def texts_returned(self) -> int:
        """How many texts it returns for each prompt, at most."""
        return 1

    def check(self, search: Search) -> None:
        """Raise UsageError, before anything is computed, for a model or rules that it cannot work with."""
        way = "say sampled: true" if "sampled" in type(self.config).model_fields else "say generate.strategy: sample"
        for rule in search.rules.logits:
            if rule.of_sampling and not self.draws:
                raise UsageError(
                    f"generate.logits: {rule.part_name} shapes what is drawn, and {self.part_name} draws nothing; "
                    f"{way}, or leave the rule out"
                )

    def search(self, search: Search) -> list[list[Candidate]]:
        """The candidates of each prompt, the best first; at least one each. Called without gradients, in eval mode."""
        raise NotImplementedError(f"{type(self).__name__} has no search")
