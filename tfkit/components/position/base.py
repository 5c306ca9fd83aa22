"""Base of the position parts: four hooks that do nothing by default."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.component import Component, Config
from tfkit.core.shape import Shape


class Position(Component, nn.Module):
    """Says where a token stands. A part overrides one of the hooks; which ones it does is how it is known.

    Positions are [batch|1 time] integers. Said in the stack it is one part for the stack, said in a layer that layer's.
    """

    capabilities = TOKENWISE
    # count real tokens only, from 0; padding stands at -1 (RoBERTa), where a call gives no positions itself
    skips_padding: bool = False

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def embed(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings, [batch|1 time d_model]."""
        return None

    def rotation(self, positions: Tensor, dim: int) -> Any | None:
        """A callable that turns queries and keys [batch heads time dim]."""
        return None

    def rotation_within(self, positions: Tensor, lengths: Tensor, dim: int) -> Any | None:
        """`rotation` of a part that `moves`; `lengths` [batch|1 time|1] are those of the texts of the tokens."""
        return self.rotation(positions, dim)

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor | None:
        """What is added to the scores, [batch|1 heads query key]."""
        return None

    def temperature(self, positions: Tensor) -> Tensor | None:
        """A factor on the scores of each query, [batch|1 query]."""
        return None

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """The hooks this part overrides, among embed, rotation, bias and temperature."""
        names = ("embed", "rotation", "bias", "temperature")
        return frozenset(name for name in names if getattr(cls, name) is not getattr(Position, name))

    @classmethod
    def asks(cls, config: Config) -> frozenset[str]:
        """The hooks that do something with these options; all that the part overrides, unless it knows better."""
        return cls.hooks()

    @classmethod
    def holds(cls, config: Config) -> int | None:
        """Longest text in tokens that a part with these options can serve; None: as its stack's max_length says."""
        return None

    @property
    def moves(self) -> bool:
        """Whether what is said of a place changes as the text grows, so that a past cannot keep it."""
        return False

    def regime(self, length: Tensor) -> Tensor:
        """A number for each text of `length` [rows] tokens; texts with the same one have the same said of a place."""
        return length if self.moves else torch.zeros_like(length)
