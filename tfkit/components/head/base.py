"""Base classes of the heads, which map the last stack's hidden states to the model's output."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.core.capabilities import TOKENWISE
from tfkit.core.errors import UsageError
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.shape import Shape
from tfkit.core.slots import HeadFacts
from tfkit.functional.dropout import Dropout
from tfkit.functional.loss import cross_entropy, linear_cross_entropy


class Head(HeadFacts, nn.Module):
    """Maps hidden states [batch time d_model] to logits."""

    class Config(HeadFacts.Config):
        dropout: DropoutRate = Field(0.0, description="dropout of its input")

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        """`embedding` is the token embedding of the head's own stack, for heads that can be tied to its table."""
        super().__init__()
        self.config = config
        self.shape = shape
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """[batch time d_model], with `real` [batch time] where padding matters, -> logits."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


class TokenHead(Head):
    """A head that gives a logit for each token of the vocabulary at each position it is asked for.

    logits = finish(output(features(hidden))); subclasses say what the features are.
    """

    class Config(Head.Config):
        tied: bool = Field(False, description="use the token table of the head's own stack as output weights")

        def is_tied(self) -> bool:
            return self.tied

    config: Config
    output: nn.Linear

    def features(self, hidden: Tensor) -> Tensor:
        """[... d_model] -> what the output projection reads, [... width]."""
        out: Tensor = self.dropout(hidden)
        return out

    @property
    def plain(self) -> bool:
        """Whether `finish` returns the logits as they are, so that projection and loss can be one step."""
        return type(self).finish is TokenHead.finish

    def finish(self, logits: Tensor) -> Tensor:
        """What happens to the logits after the projection."""
        return logits

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        return self.finish(self.output(self.features(hidden)))

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Sum of the cross-entropies (nats) at the given positions: `hidden` [n d_model], `targets` [n].

        The logits of all positions never exist together: projection and loss are one step, unless `finish` changes the
        logits.
        """
        features = self.features(hidden)
        if self.plain and torch.is_grad_enabled():
            return linear_cross_entropy(features, self.output.weight, self.output.bias, targets, smoothing)
        return cross_entropy(self.finish(self.output(features)), targets, smoothing)

    def _target(self, embedding: nn.Module | None) -> tuple[int, int, nn.Module | None]:
        """What the output projection reads and gives: its width, the vocabulary, and the embedding it is tied to."""
        if not self.config.tied:
            if self.shape.vocab_size is None:
                raise UsageError(f"the head '{self.part_name}' needs a vocab_size in its shape")
            return self.shape.d_model, self.shape.vocab_size, None
        if embedding is None:
            raise UsageError(f"the head '{self.part_name}' is tied, but its stack has no token table")
        return embedding.tokens.embedding_dim, embedding.tokens.num_embeddings, embedding  # type: ignore[union-attr,return-value]

    def _tie(
        self, width: int, vocab_size: int, bias: bool | Literal["frozen"], embedding: nn.Module | None
    ) -> nn.Linear:
        """The output projection, its weight the table of `embedding` when the head is tied."""
        output = nn.Linear(width, vocab_size, bias=bias is True, device="meta" if embedding is not None else None)
        if embedding is not None:
            output.weight = embedding.tokens.weight  # type: ignore[assignment,union-attr]
            if bias is True:
                output.bias = nn.Parameter(torch.zeros(vocab_size, device=output.weight.device))
        if bias == "frozen":  # a constant that is saved, no parameter
            del output.bias
            output.register_buffer("bias", torch.zeros(vocab_size, device=output.weight.device))
        return output
