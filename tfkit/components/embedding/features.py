"""Embeddings of vectors: image patches, audio frames, or another model's outputs."""

# Axes: batch, time, d_input (channels of a vector), d_model; height, width, channels (of an image).

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.embedding.base import Embedding
from tfkit.core.bounds import WIDTH
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Placement
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.options import Norm, Scale, Width, check_norm, scale_factor
from tfkit.core.registry import register
from tfkit.functional.dropout import Dropout


class VectorEmbedding(Embedding):
    """Base class of embeddings that read `inputs_embeds` instead of ids."""

    class Config(Embedding.Config):
        bias: bool = Field(True, description="add a bias to the projection")
        scale: Scale = Field(None, description="factor on the vectors, before the positions are added")
        norm: Norm | None = Field(None, description="norm of the sum")
        dropout: DropoutRate = Field(0.0, description="dropout of the sum, after the norm")

        def reads(self, shape: Shape) -> int:
            return shape.d_model

        def is_projected(self) -> bool:
            """True if a linear layer maps the vectors to d_model."""
            return True

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from check_norm("norm", self.norm, shape.d_model)

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.d_input = config.reads(shape)
        projection = nn.Linear(self.d_input, shape.d_model, bias=config.bias) if config.is_projected() else None
        self.projection = nn.Identity() if projection is None else projection
        self.scale = scale_factor(config.scale, shape.d_model)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(shape)
        self.dropout = Dropout(config.dropout)

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        if vectors is None or inputs.input_ids is not None:
            name = self.config.part.part_name
            raise UsageError(f"the embedding '{name}' reads vectors; pass inputs_embeds, not input_ids")
        if vectors.dim() != 3 or vectors.shape[-1] != self.d_input:
            raise UsageError(f"inputs_embeds must be [batch time {self.d_input}], got shape {list(vectors.shape)}")
        if inputs.token_type_ids is not None:
            raise UsageError("the embedding has no segments; omit token_type_ids")
        x, position = self._projected(vectors, inputs.real) * self.scale, placement.embed()  # [batch time d_model]
        x = x if position is None else x + position.to(x.dtype)
        out: Tensor = self.dropout(self.norm(x))
        return out

    def _projected(self, vectors: Tensor, real: Tensor | None) -> Tensor:
        """Map [batch time d_input] to [batch time d_model]; `real` [batch time] marks real tokens."""
        out: Tensor = self.projection(vectors)
        return out


@register("embedding", "features")
class Features(VectorEmbedding):
    """dropout(norm(scale * projection(vectors) + position)), for audio frames, latents or measurements."""

    class Config(VectorEmbedding.Config):
        d_input: Width | None = Field(
            None, description="width of the vectors, which are projected to d_model; none: d_model, without projection"
        )

        def reads(self, shape: Shape) -> int:
            return self.d_input or shape.d_model

        def is_projected(self) -> bool:
            return self.d_input is not None

    config: Config


@register("embedding", "patches")
class Patches(VectorEmbedding):
    """dropout(norm(scale * [class; projection(patches)] + position)): ViT (Dosovitskiy et al. 2020: 2010.11929).

    `inputs_embeds` are images [batch height width channels], or patches as returned by `cut`.
    """

    class Config(VectorEmbedding.Config):
        size: Width = Field(description="height and width of a patch, in pixels")
        channels: Width = Field(3, description="channels of a pixel: 3 for colour, 1 for grey")
        class_token: bool = Field(
            False, description="prepend a learned vector to the patches, for a head with pool: first"
        )

        def reads(self, shape: Shape) -> int:
            return self.size * self.size * self.channels

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from super().check(shape)
            if self.reads(shape) > WIDTH.most:
                yield Problem("size", f"a patch has {self.reads(shape):,} values; the maximum is {WIDTH.most:,}")
            if self.class_token and shape.causal:
                text = "in a causal stack, the class token sees no patch; remove class_token and use pool: last"
                yield Problem("class_token", text)

        def length_of(self, sizes: Sequence[int], shape: Shape) -> int:
            if len(sizes) != 3 or sizes[2] != self.channels:
                raise ValueError(f"images must have the shape [height width {self.channels}], got {list(sizes)}")
            height, width, _ = sizes
            if height % self.size or width % self.size:
                text = f"patches of {self.size} x {self.size} do not tile an image of {height} x {width}"
                raise ValueError(f"{text}; use a patch size that divides both")
            return (height // self.size) * (width // self.size) + self.class_token

    reads_pictures = True
    capabilities = VectorEmbedding.capabilities - {"packing"}  # one image per row, starting with its class token
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.class_token = nn.Embedding(1, shape.d_model) if config.class_token else None

    def cut(self, vectors: Tensor) -> Tensor:
        """Cut images [batch height width channels] into patches, preceded by a row of zeros for the class token."""
        if vectors.dim() != 4:
            return vectors
        try:
            self.config.length_of(vectors.shape[1:], self.shape)
        except ValueError as error:
            raise UsageError(f"inputs_embeds: {error}") from None
        size = self.config.size
        pattern = "batch (height p1) (width p2) channels -> batch (height width) (p1 p2 channels)"
        patches = rearrange(vectors, pattern, p1=size, p2=size)  # [batch, time, d_input]
        return patches if self.class_token is None else torch.cat((torch.zeros_like(patches[:, :1]), patches), dim=1)

    def _projected(self, vectors: Tensor, real: Tensor | None) -> Tensor:
        x = super()._projected(vectors, real)  # [batch, time, d_model]
        if self.class_token is None:
            return x
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if real is None else real
        first = real & (real.cumsum(dim=1) == 1)  # [batch, time]
        return torch.where(rearrange(first, "batch time -> batch time 1"), self.class_token.weight.to(x.dtype), x)
