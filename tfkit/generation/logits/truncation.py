"""Rules that shape the distribution from which tokens are drawn, and rules against repetition."""

# Axes: rows (texts), time, grams (n-grams of a text), size (tokens of an n-gram), vocab. Each forward maps [rows
# vocab] to the same shape.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Number, PositiveFloat, PositiveInt
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.view import topk
from tfkit.generation.logits.base import NEVER, PADDING, LogitsRule, counts, written


@register("logits", "repetition_penalty")
class RepetitionPenalty(LogitsRule):
    """logit / penalty for tokens of the text; logit * penalty if negative (Keskar et al. 2019, arXiv 1909.05858, 4.1).

    The paper always divides, which rewards repetition of tokens with negative logits.
    """

    class Config(LogitsRule.Config):
        penalty: PositiveFloat = Field(
            description="above 1 discourages repetition (the paper: 1.2), below 1 encourages it"
        )
        prompt: bool = Field(True, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        seen = counts(ids if self.config.prompt else written(ids, new), logits.shape[1]) > 0
        penalty = self.config.penalty
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


@register("logits", "frequency_penalty")
class FrequencyPenalty(LogitsRule):
    """logit - penalty * count (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        penalty: Number = Field(description="subtracted once per occurrence of the token")
        prompt: bool = Field(False, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        occurrences = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * occurrences.to(logits.dtype)


@register("logits", "presence_penalty")
class PresencePenalty(LogitsRule):
    """logit - penalty * [count > 0] (OpenAI's API, platform.openai.com/docs/api-reference/completions)."""

    class Config(LogitsRule.Config):
        penalty: Number = Field(description="subtracted once if the token has appeared")
        prompt: bool = Field(False, description="count the tokens of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        occurrences = counts(ids if self.config.prompt else written(ids, new), logits.shape[1])
        return logits - self.config.penalty * (occurrences > 0).to(logits.dtype)


@register("logits", "no_repeat_ngram")
class NoRepeatNgram(LogitsRule):
    """logit = -inf for tokens that repeat an n-gram of the text (Paulus et al. 2017, arXiv 1705.04304, 2.5)."""

    class Config(LogitsRule.Config):
        size: PositiveInt = Field(description="length of an n-gram in tokens (the paper: 3)")
        prompt: bool = Field(True, description="forbid the n-grams of the prompt, too")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        size = self.config.size
        text = ids if self.config.prompt else written(ids, new)
        if text.shape[1] < size:
            return logits
        grams = text.unfold(1, size, 1)  # [rows grams size]
        prefix = text[:, text.shape[1] - size + 1 :]  # [rows size-1], the tokens before the next one
        again = (grams[..., :-1] == prefix[:, None]).all(dim=2) & (prefix != PADDING).all(dim=1)[
            :, None
        ]  # [rows grams]
        ends = grams[..., -1].masked_fill(~again, PADDING)  # [rows grams]
        return logits.masked_fill(counts(ends, logits.shape[1]) > 0, NEVER)


LEAST = 1e-6  # smaller temperatures overflow float32


def _warm(value: float) -> float:
    if value < LEAST:
        raise ValueError(
            f"temperature must be at least {LEAST:g}, got {value:g}; "
            "for the most likely tokens use generate.strategy: greedy"
        )
    return value


Heat = Annotated[Number, AfterValidator(_warm), Field(json_schema_extra={"minimum": LEAST})]


@register("logits", "temperature")
class Temperature(LogitsRule):
    """logit / temperature (Ackley et al. 1985, A Learning Algorithm for Boltzmann Machines)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        temperature: Heat = Field(description="below 1 favours likely tokens, above 1 unlikely ones")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        return logits / self.config.temperature


@register("logits", "top_k")
class TopK(LogitsRule):
    """logit = -inf except for the k most likely tokens and ties (Fan et al. 2018, arXiv 1805.04833)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        k: PositiveInt = Field(description="number of tokens to keep (GPT-2's samples: 40)")

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from super().check_recipe(facts)
            size = min((size for size in (facts.vocab_size, facts.most_tokens) if size is not None), default=None)
            if size is not None and self.k > size:
                yield Problem("k", f"{self.k} exceeds the vocabulary of {size} tokens")

    config: Config

    def bind(self, tokenizer: Tokenizer) -> None:
        if self.config.k > tokenizer.vocab_size:
            raise UsageError(f"k: {self.config.k} exceeds the vocabulary of {tokenizer.vocab_size} tokens")

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        least = topk(logits, self.config.k)[0][:, -1:]  # [rows 1]
        return logits.masked_fill(logits < least, NEVER)


@register("logits", "top_p")
class TopP(LogitsRule):
    """logit = -inf except for the fewest tokens with total probability p (Holtzman et al. 2020, arXiv 1904.09751)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        p: float = Field(gt=0, le=1, description="cumulative probability to keep (the paper: 0.95)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        ascending, order = logits.sort(dim=-1)
        tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.config.p
        tail[:, -1] = False  # the most likely token is kept despite rounding
        return logits.masked_fill(tail.scatter(1, order, tail), NEVER)


@register("logits", "min_p")
class MinP(LogitsRule):
    """logit = -inf if probability < p * largest probability (Nguyen et al. 2024, arXiv 2407.01082)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        p: float = Field(
            gt=0, le=1, description="threshold relative to the largest probability (the paper: 0.05 to 0.1)"
        )

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        probabilities = logits.softmax(dim=-1)
        least = self.config.p * probabilities.amax(dim=-1, keepdim=True)  # [rows 1]
        return logits.masked_fill(probabilities < least, NEVER)


@register("logits", "typical")
class Typical(LogitsRule):
    """logit = -inf except for the most typical tokens with total probability p (Meister et al. 2022, arXiv 2202.00666).

    Tokens are more typical the smaller |-log probability - entropy| is; ties are kept.
    """

    of_sampling = True

    class Config(LogitsRule.Config):
        p: float = Field(gt=0, le=1, description="cumulative probability to keep (the paper: 0.2 to 0.95)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        logs = logits.log_softmax(dim=-1)
        entropy = -(logs * logs.exp()).nansum(dim=-1, keepdim=True)  # [rows 1]
        distance = (-logs - entropy).abs()
        ascending, order = distance.sort(dim=-1)
        held = logits.gather(1, order).softmax(dim=-1).cumsum(dim=-1)
        last = (held < self.config.p).sum(dim=-1, keepdim=True).clamp(max=logits.shape[1] - 1)  # [rows 1]
        return logits.masked_fill(distance > ascending.gather(1, last), NEVER)


@register("logits", "epsilon")
class Epsilon(LogitsRule):
    """logit = -inf if probability < epsilon, except for the maximum (Hewitt et al. 2022, arXiv 2210.15191, 4.1)."""

    of_sampling = True

    class Config(LogitsRule.Config):
        epsilon: float = Field(gt=0, lt=1, description="minimum probability (the paper: 0.0003 to 0.0009)")

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        unlikely = logits.softmax(dim=-1) < self.config.epsilon
        return logits.masked_fill(unlikely & (logits < logits.amax(dim=-1, keepdim=True)), NEVER)


@register("logits", "eta")
class Eta(LogitsRule):
    """logit = -inf if probability < min(epsilon, sqrt(epsilon) * exp(-entropy)), except for the maximum.

    Hewitt et al. 2022, arXiv 2210.15191, section 4.2.
    """

    of_sampling = True

    class Config(LogitsRule.Config):
        epsilon: float = Field(
            gt=0, lt=1, description="minimum probability at low entropy (the paper: 0.0003 to 0.004)"
        )

    config: Config

    def forward(self, logits: Tensor, ids: Tensor, new: Tensor) -> Tensor:
        logs = logits.log_softmax(dim=-1)
        probabilities = logs.exp()
        entropy = -(logs * probabilities).nansum(dim=-1, keepdim=True)  # [rows 1]
        least = (math.sqrt(self.config.epsilon) * (-entropy).exp()).clamp(max=self.config.epsilon)
        unlikely = probabilities < least
        return logits.masked_fill(unlikely & (logits < logits.amax(dim=-1, keepdim=True)), NEVER)
