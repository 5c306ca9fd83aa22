"""One of some texts."""

from __future__ import annotations

from pydantic import Field, field_validator

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.constraint.automaton import Automaton, automaton_of_texts
from tfkit.generation.logits.guided import Guided
from tfkit.generation.tokens import Texts


@register("logits", "choices")
class Choices(Guided):
    """logit = -inf for what leads to none of the texts (a trie of them: De Cao et al. 2021, arXiv 2010.00904)."""

    class Config(Guided.Config):
        """Options of choices."""

        choices: Texts = Field(description="the texts, of which each output is one, as they stand after the prompt")

        @field_validator("choices")
        @classmethod
        def _compile(cls, choices: tuple[str, ...]) -> tuple[str, ...]:
            automaton_of_texts(choices)
            return choices

    config: Config

    def automaton(self) -> Automaton:
        return automaton_of_texts(self.config.choices)

    def bind(self, tokenizer: Tokenizer) -> None:
        super().bind(tokenizer)
        self.missing = {first: self._missing(first) for first in (True, False)}
        nowhere = [text for text in self.missing[True] if text in self.missing[False]]
        if nowhere:
            raise UsageError(f"{nowhere[0]!r} cannot be written with the tokens of this vocabulary")

    def _missing(self, first: bool) -> list[str]:
        return [text for text in self.config.choices if not self.guide.writes(text, first)]

    def check_begin(self, first: bool) -> None:
        if self.missing[first]:
            raise self.unwritable(f"the choice {self.missing[first][0]!r} cannot", first)
