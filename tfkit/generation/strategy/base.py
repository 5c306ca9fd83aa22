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
from tfkit.models.static import static_fault

# run path -> the run's decoder and tokenizer; raises RunError
Load = Callable[[str], tuple[StepDecoder, Tokenizer]]


class Strategy(Component):
    """A generation strategy, which chooses tokens by the logits of a Stepper and the rules."""

    draws: bool = False  # True if it samples, so that sampling rules have an effect
    streams: bool = True  # True if written tokens are final, so that they can be streamed
    rewinds: ClassVar[bool] = False  # True if it removes tokens from the decode state
    steady: ClassVar[bool] = False  # True if each row is one text from beginning to end, as a static cache requires

    class Config(RecipeConfig):
        """Options of every strategy."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @classmethod
    def able(cls, config: PartConfig | None = None) -> frozenset[str]:
        """Return the declared capabilities, with "draws" if the strategy samples under these options, and "steady"."""
        draws = cls.draws or "sampled" in cls.Config.model_fields if config is None else config.build().draws
        return super().able(config) | {name for name, has in (("draws", draws), ("steady", cls.steady)) if has}

    def bind(self, tokenizer: Tokenizer, load: Load) -> None:
        """Load other runs that the strategy needs, before the first search."""

    @property
    def texts_at_once(self) -> int:
        """Texts computed in parallel for each prompt."""
        return 1

    @property
    def texts_returned(self) -> int:
        """Maximum number of texts returned for each prompt."""
        return 1

    def check(self, search: Search) -> None:
        """Raise UsageError if the model or the rules are incompatible, before anything is computed."""
        way = "set sampled: true" if "sampled" in type(self.config).model_fields else "use generate.strategy: sample"
        for rule in search.rules.logits:
            if rule.of_sampling and not self.draws:
                raise UsageError(
                    f"generate.logits: {rule.part_name} affects sampling, but {self.part_name} does not sample; "
                    f"{way}, or remove the rule"
                )
        if search.step is None:
            return
        fault: str | None = f"{self.part_name} reorders or shortens texts; use generate.strategy: greedy or sample"
        if self.steady:
            fault = static_fault(search.model.stack(search.model.blueprint.last.side))
        if fault is not None:
            raise UsageError(f"generate.cache: static cannot be used: {fault}")

    def search(self, search: Search) -> list[list[Candidate]]:
        """Return at least one candidate per prompt, best first. Called in eval mode without gradients."""
        raise NotImplementedError(f"{type(self).__name__} has no search")
