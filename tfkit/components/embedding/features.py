"""Vectors instead of tokens: images, audio, or another model's outputs."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field
from torch import Tensor, nn

from tfkit.components.embedding.base import Embedding
from tfkit.core.component import Problem
from tfkit.core.context import Inputs, Placement
from tfkit.core.errors import UsageError
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.options import Norm, Scale, Width, check_norm, scale_factor
from tfkit.core.registry import register
from tfkit.core.shape import Shape
from tfkit.functional.dropout import Dropout


@register("embedding", "features")
class Features(Embedding):
    """dropout(norm(scale * projection(vectors) + position)): `inputs_embeds` of the call, and no ids.

    As an image's patches enter a Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929), and a latent's channels.
    """

    class Config(Embedding.Config):
        d_input: Width | None = Field(
            None, description="width of the vectors, projected to d_model; none: d_model, as they come"
        )
        bias: bool = Field(True, description="a bias of the projection")
        scale: Scale = Field(None, description="factor on the vectors, before anything is added")
        norm: Norm | None = Field(None, description="norm of the sum")
        dropout: DropoutRate = Field(0.0, description="dropout of the sum, after the norm")

        def reads(self, shape: Shape) -> int:
            return self.d_input or shape.d_model

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_norm("norm", self.norm, shape.d_model)

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.d_input = config.reads(shape)
        projected = config.d_input is not None
        self.projection = nn.Linear(self.d_input, shape.d_model, bias=config.bias) if projected else nn.Identity()
        self.scale = scale_factor(config.scale, shape.d_model)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(shape)
        self.dropout = Dropout(config.dropout)

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        if vectors is None or inputs.input_ids is not None:
            raise UsageError("the embedding 'features' reads vectors: give inputs_embeds, and no input_ids")
        if vectors.dim() != 3 or vectors.shape[-1] != self.d_input:
            raise UsageError(f"inputs_embeds is [batch time {self.d_input}], got shape {list(vectors.shape)}")
        if inputs.token_type_ids is not None:
            raise UsageError("token_type_ids were given, but the embedding has no segments")
        x, position = self.projection(vectors) * self.scale, placement.embed()
        x = x if position is None else x + position.to(x.dtype)
        out: Tensor = self.dropout(self.norm(x))
        return out
