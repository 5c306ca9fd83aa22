"""Mask rules. Limits are ANDed, openings ORed to them; padding and packed segments always apply.

| type | | choose it when |
|---|---|---|
| causal | limit | the model generates from left to right; the default of decoders |
| reverse_causal | limit | the model reads from right to left |
| window | limit | long texts: each token attends to its neighbours (Mistral, Gemma 2, ModernBERT, Longformer) |
| chunk | limit | long texts in chunks that cannot attend to each other (Llama 4) |
| dilated | limit | a window must reach further at the same cost (Longformer's upper layers) |
| prefix | opening | a generating model should read its prompt in both directions (prefix LM) |
| global_tokens | opening | a few tokens must connect the whole text, in addition to a window (Longformer) |
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor

from tfkit.core.component import Config, Problem, Shape
from tfkit.core.context import ALL
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.options import NonNegativeInt, PositiveInt
from tfkit.core.registry import register
from tfkit.core.slots import MaskFacts


class Mask(MaskFacts):
    """A mask rule. Limits are ANDed; openings are ORed to them; padding and packed segments always apply.

    A limit with a finite reach must also accept [batch|1 tile query 1] and [batch|1 tile 1 key].
    """

    def __init__(self, config: Config, shape: Shape) -> None:
        self.config = config
        self.shape = shape


@register("mask", "causal")
class Causal(Mask):
    """key <= query: the past and the present (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3)."""

    hides_future = True
    triangle = True

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key <= query

    def reach(self) -> tuple[int, int]:
        return ALL, 0


@register("mask", "reverse_causal")
class ReverseCausal(Mask):
    """key >= query: the present and the future, right to left (Peters et al. 2018, ELMo, arXiv 1802.05365)."""

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return key >= query

    def reach(self) -> tuple[int, int]:
        return 0, ALL


@register("mask", "window")
class Window(Mask):
    """query - before <= key <= query + after (Beltagy et al. 2020, Longformer, arXiv 2004.05150).

    causal, size 3      both ways, size 2
    1 . . . .           1 1 . . .
    1 1 . . .           1 1 1 . .
    1 1 1 . .           . 1 1 1 .
    . 1 1 1 .           . . 1 1 1
    . . 1 1 1           . . . 1 1
    """

    class Config(Mask.Config):
        size: PositiveInt | None = Field(
            None,
            description="visible keys; causal: the token and size - 1 before it; else the token and size // 2 per side",
        )
        before: NonNegativeInt | None = Field(None, description="number of visible keys before the token; none: all")
        after: NonNegativeInt | None = Field(None, description="number of visible keys after the token; none: all")

        def check(self, shape: Shape) -> Iterator[Problem]:
            if self.size is None and self.before is None and self.after is None:
                yield Problem("size", "a window needs size, or before or after")
            if self.size is not None and (self.before is not None or self.after is not None):
                yield Problem("size", "cannot be combined with before and after; remove size, or both of them")
            elif self.after and shape.causal:
                yield Problem("after", f"in a causal stack, keys after the token are hidden, got {self.after}; use 0")

        def reach(self, causal: bool) -> tuple[int, int]:
            """Return the number of keys visible before and after the query."""
            if self.size is None:
                return (ALL if self.before is None else self.before), (ALL if self.after is None else self.after)
            return (self.size - 1, 0) if causal else (self.size // 2, self.size // 2)

    solid = True

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.before, self.after = config.reach(shape.causal)

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        distance = key - query
        return (distance >= -self.before) & (distance <= self.after)

    def reach(self) -> tuple[int, int]:
        return self.before, self.after


@register("mask", "chunk")
class Chunk(Mask):
    """key // size = query // size, counted from the text's first token (Llama 4; Liu et al. 2018, arXiv 1801.10198).

    causal, size 2      both ways, size 2
    1 . . . .           1 1 . . .
    1 1 . . .           1 1 . . .
    . . 1 . .           . . 1 1 .
    . . 1 1 .           . . 1 1 .
    . . . . 1           . . . . 1
    """

    class Config(Mask.Config):
        size: PositiveInt = Field(description="number of tokens in a chunk")

    config: Config
    counts_texts = True

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.aligned = config.size

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return query // self.config.size == key // self.config.size

    def reach(self) -> tuple[int, int]:
        return self.config.size - 1, self.config.size - 1


@register("mask", "dilated")
class Dilated(Mask):
    """(query - key) mod dilation = 0: with a window, the same reach at lower cost (Beltagy et al. 2020, Longformer).

    causal, dilation 2  both ways, window 4, dilation 2
    1 . . . .           1 . 1 . .
    . 1 . . .           . 1 . 1 .
    1 . 1 . .           1 . 1 . 1
    . 1 . 1 .           . 1 . 1 .
    1 . 1 . 1           . . 1 . 1
    """

    class Config(Mask.Config):
        dilation: PositiveInt = Field(description="distance between visible tokens; 1: all are visible")

    config: Config

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        return (query - key) % self.config.dilation == 0

    def reach(self) -> tuple[int, int]:
        return ALL, ALL


@register("mask", "prefix")
class Prefix(Mask):
    """key < prefix_length: bidirectional in the prefix, causal after it (Liu et al. 2018, arXiv 1801.10198)."""

    opens = True
    needs = frozenset({"prefix_length"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        if inputs.prefix_length is None:
            raise UsageError("the mask 'prefix' needs prefix_length [batch], the number of tokens visible to all")
        return key < rearrange(inputs.prefix_length, "batch -> batch 1 1")


@register("mask", "global_tokens")
class GlobalTokens(Mask):
    """marked(query) or marked(key) (Beltagy et al. 2020, Longformer, arXiv 2004.05150)."""

    class Config(Mask.Config):
        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.causal:
                yield Problem("", "would show the future to a causal layer; use it in an encoder")

    opens = True
    marks = True
    needs = frozenset({"global_attention_mask"})

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        if inputs.global_attention_mask is None:
            raise UsageError(
                "the mask 'global_tokens' needs global_attention_mask [batch time], 1 = sees all and is visible to all"
            )
        marked = inputs.global_attention_mask.bool()
        row = rearrange(torch.arange(marked.shape[0], device=marked.device), "batch -> batch 1 1")
        return marked[row, query] | marked[row, key]
