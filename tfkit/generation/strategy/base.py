"""Base class of the strategies, which choose the next tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tfkit.core.component import Component
from tfkit.core.component import Config as PartConfig
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeConfig
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import Candidate, Search

# run path -> the run's decoder and tokenizer; raises RunError
Load = Callable[[str], tuple[StepDecoder, Tokenizer]]


class Strategy(Component):
    """A generation strategy: takes logits from a Stepper and scores from the rules, and chooses tokens.

    `draws`: it samples, so that sampling rules have an effect. `streams`: tokens are final when written, so that
    listeners receive them. `rewinds`: it removes tokens from the decode state.
    """

    draws: bool = False
    streams: bool = True
    rewinds: ClassVar[bool] = False

    class Config(RecipeConfig):
        """Options of every strategy."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def able(cls, config: PartConfig | None = None) -> frozenset[str]:
        """Return its capabilities, with "draws" if it samples with these options."""
        draws = cls.draws or "sampled" in cls.Config.model_fields if config is None else config.build().draws
        return super().able(config) | {"draws"} if draws else super().able(config)

    def bind(self, tokenizer: Tokenizer, load: Load) -> None:
        """Load dependencies other than the model before the first search. Raise UsageError or RunError."""

    @property
    def texts_at_once(self) -> int:
        """Texts computed in parallel for each prompt."""
        return 1

    @property
    def texts_returned(self) -> int:
        """Maximum number of texts returned for each prompt."""
        return 1

    def check(self, search: Search) -> None:
        """Raise UsageError for an incompatible model or rules before anything is computed."""
        way = "set sampled: true" if "sampled" in type(self.config).model_fields else "use generate.strategy: sample"
        for rule in search.rules.logits:
            if rule.of_sampling and not self.draws:
                raise UsageError(
                    f"generate.logits: {rule.part_name} affects sampling, and {self.part_name} does not sample; "
                    f"{way}, or remove the rule"
                )

    def search(self, search: Search) -> list[list[Candidate]]:
        """Return the candidates of each prompt, at least one, best first. Called in eval mode without gradients."""
        raise NotImplementedError(f"{type(self).__name__} has no search")
