"""Base classes of the heads, which map the last stack's hidden states to the model's output."""

# Axes: batch, time, n (positions), width (input channels of the output projection), vocab, d_model.

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tfkit.core.component import Shape
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeConfig
from tfkit.core.inputs import TOKENWISE
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.slots import HeadFacts
from tfkit.functional.dropout import Dropout
from tfkit.functional.loss import cross_entropy, linear_cross_entropy


class Head(HeadFacts, nn.Module):
    """Maps hidden states [batch time d_model] to logits."""

    class Config(HeadFacts.Config, RecipeConfig):
        dropout: DropoutRate = Field(0.0, description="dropout of the hidden states")

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape, embedding: nn.Module | None = None) -> None:
        """Build the head; `embedding` is the token embedding of its stack, for tied heads."""
        super().__init__()
        self.config = config
        self.shape = shape
        self.dropout = Dropout(config.dropout)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Map [batch time d_model] to logits; `real` [batch time] marks real tokens, if padding matters."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


class TokenHead(Head):
    """A head with logits over the vocabulary at each requested position.

    logits = finish(output(features(hidden))); subclasses define the features.
    """

    class Config(Head.Config):
        tied: bool = Field(False, description="use the token table of the stack as output weights")

        def is_tied(self) -> bool:
            return self.tied

    config: Config
    output: nn.Linear

    def features(self, hidden: Tensor) -> Tensor:
        """Compute the input of the output projection, [... d_model] -> [... width]."""
        out: Tensor = self.dropout(hidden)
        return out

    @property
    def plain(self) -> bool:
        """True if `finish` is the identity, so that projection and loss can be fused."""
        return type(self).finish is TokenHead.finish

    def finish(self, logits: Tensor) -> Tensor:
        """Postprocess the projected logits."""
        return logits

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        return self.finish(self.output(self.features(hidden)))  # [batch time vocab]

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Sum the cross-entropies (nats) at the given positions: `hidden` [n d_model], `targets` [n].

        Projection and loss are fused, without materializing all logits, unless `finish`, a hook or an own `forward`
        changes the logits.
        """
        if type(self).forward is not TokenHead.forward:
            return cross_entropy(self(hidden[None])[0], targets, smoothing)
        features = self.features(hidden)
        if self.plain and torch.is_grad_enabled() and not self.output._forward_hooks:
            return linear_cross_entropy(features, self.output.weight, self.output.bias, targets, smoothing)
        return cross_entropy(self.finish(self.output(features)), targets, smoothing)

    def _target(self, embedding: nn.Module | None) -> tuple[int, int, nn.Module | None]:
        """Return the input width and vocabulary size of the output projection, and the tied embedding, if any."""
        if not self.config.tied:
            if self.shape.vocab_size is None:
                raise UsageError(f"the head '{self.part_name}' needs a vocab_size in its shape")
            return self.shape.d_model, self.shape.vocab_size, None
        if embedding is None:
            raise UsageError(f"the head '{self.part_name}' is tied, but its stack has no token table; set tied: false")
        return embedding.tokens.embedding_dim, embedding.tokens.num_embeddings, embedding  # type: ignore[union-attr,return-value]

    def _tie(
        self, width: int, vocab_size: int, bias: bool | Literal["frozen"], embedding: nn.Module | None
    ) -> nn.Linear:
        """Build the output projection, with the table of `embedding` as its weight if tied."""
        output = nn.Linear(width, vocab_size, bias=bias is True, device="meta" if embedding is not None else None)
        if embedding is not None:
            output.weight = embedding.tokens.weight  # type: ignore[assignment,union-attr]
            if bias is True:
                output.bias = nn.Parameter(torch.zeros(vocab_size, device=output.weight.device))
        if bias == "frozen":  # a saved constant, not a parameter
            del output.bias
            output.register_buffer("bias", torch.zeros(vocab_size, device=output.weight.device))
        return output
