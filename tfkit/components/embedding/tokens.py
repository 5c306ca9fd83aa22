"""Token embeddings, also with dropout of whole tokens."""

# Axes: batch, time, width (channels of the sum), d_model.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from einops import rearrange, reduce
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.embedding.base import Embedding
from tfkit.core.component import Problem, Shape
from tfkit.core.context import Placement
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.inputs import TOKENWISE, Inputs
from tfkit.core.options import Dropout as DropoutRate
from tfkit.core.options import NonNegativeInt, Norm, RecipePath, Scale, Width, check_norm, scale_factor
from tfkit.core.registry import register
from tfkit.functional.dropout import Dropout
from tfkit.functional.view import wide_dtype


@register("embedding", "tokens")
class Tokens(Embedding):
    """dropout(norm(scale * tokens[id] + segments[type] + position)) (Vaswani et al. 2017, arXiv 1706.03762).

    With `d_embedding`, everything is computed at that width and projected at the end (Lan et al. 2019, ALBERT, arXiv
    1909.11942); with `project_tokens`, only token vectors have that width and are projected first (Zhang et al. 2022,
    OPT, arXiv 2205.01068).
    """

    class Config(Embedding.Config):
        scale: Scale = Field(None, description="factor on the token vectors, before anything is added")
        segments: NonNegativeInt = Field(0, description="rows of the token type table; 0: none (BERT: 2)")
        norm: Norm | None = Field(None, description="norm of the sum")
        dropout: DropoutRate = Field(0.0, description="dropout of the sum, after the norm")
        d_embedding: Width | None = Field(None, description="width of the tables, projected to d_model; none: d_model")
        project_tokens: bool = Field(
            False, description="apply d_embedding to the token vectors alone, and project them first (OPT-350m)"
        )
        projection_bias: bool = Field(True, description="add a bias to the projection of d_embedding")
        norm_after_projection: bool = Field(False, description="apply norm and dropout after the projection (DeBERTa)")
        norm_before_positions: bool = Field(
            False, description="apply the norm to the token vectors, before anything is added (Blenderbot, small)"
        )
        shared: bool = Field(False, description="share one token table between encoder and decoder")
        vectors: RecipePath | None = Field(
            None, description="file of pretrained vectors: word2vec or GloVe text, or word2vec .bin"
        )
        frozen: bool = Field(False, description="do not train the token table")

        def num_segments(self) -> int:
            return self.segments

        def vectors_file(self) -> str | None:
            return self.vectors

        def is_shared(self) -> bool:
            return self.shared

        def width(self, shape: Shape) -> int:
            return shape.d_model if self.project_tokens else self.table_width(shape)

        def table_width(self, shape: Shape) -> int:
            return self.d_embedding or shape.d_model

        def check(self, shape: Shape) -> Iterator[Problem]:
            if shape.vocab_size is None:
                yield Problem("", "tokens needs a vocab_size in the model: a number or `tokenizer`")
            for option in ("project_tokens", "norm_after_projection"):
                if getattr(self, option) and self.d_embedding is None:
                    yield Problem(option, "has no effect without d_embedding, which adds the projection")
            if not self.projection_bias and self.d_embedding is None:
                yield Problem("projection_bias", "has no effect without d_embedding, which adds the projection")
            if self.project_tokens and self.norm_after_projection:
                yield Problem(
                    "norm_after_projection",
                    "has no effect with project_tokens: the norm already follows the projection",
                )
            if self.norm_after_projection and self.norm is None:
                yield Problem("norm_after_projection", "has no effect without norm; set norm too")
            if self.norm_before_positions and self.norm is None:
                yield Problem("norm_before_positions", "has no effect without norm; set norm too")
            elif self.norm_before_positions and self.norm_after_projection:
                yield Problem("norm_before_positions", "cannot be combined with norm_after_projection; use one of them")
            yield from check_norm("norm", self.norm, shape.d_model if self.norm_after_projection else self.width(shape))

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        if shape.vocab_size is None:
            raise UsageError("the embedding 'tokens' needs a vocab_size in its shape")
        self.scale = scale_factor(config.scale, shape.d_model)
        table = config.table_width(shape)
        self.tokens = nn.Embedding(shape.vocab_size, table)
        self.tokens.weight.requires_grad_(not config.frozen)
        self.segments = nn.Embedding(config.segments, self.width) if config.segments else None
        normed = shape if config.norm_after_projection else replace(shape, d_model=self.width)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(normed)
        bias = config.projection_bias
        self.projection = nn.Identity() if config.d_embedding is None else nn.Linear(table, shape.d_model, bias=bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, inputs: Inputs, placement: Placement, vectors: Tensor | None = None) -> Tensor:
        x = self._look_up(inputs, vectors)  # [batch time width]
        x = x if self.scale == 1.0 else x * self.scale
        x = self.projection(x) if self.config.project_tokens else x  # [batch time width]
        x = self.norm(x) if self.config.norm_before_positions else x
        segment, position = self._segment(inputs), placement.embed()
        x = x if segment is None else x + segment
        x = x if position is None else x + position.to(x.dtype)
        return self._finish(x)  # [batch time d_model]

    def _finish(self, x: Tensor) -> Tensor:
        """Apply norm, dropout and projection in the configured order."""
        out: Tensor
        x = x if self.config.norm_before_positions or self.config.norm_after_projection else self.norm(x)
        if self.config.project_tokens:
            out = self.dropout(x)
        elif self.config.norm_after_projection:
            out = self.dropout(self.norm(self.projection(x)))
        else:
            out = self.projection(self.dropout(x))
        return out

    def _look_up(self, inputs: Inputs, vectors: Tensor | None) -> Tensor:
        """Look up the token table, [batch time width], or return the given `vectors`."""
        if (inputs.input_ids is None) == (vectors is None):
            raise UsageError("pass either input_ids or vectors" + (", not both" if vectors is not None else ""))
        rows: Tensor = self.tokens(inputs.input_ids) if vectors is None else vectors
        if rows.shape[-1] != self.tokens.embedding_dim:
            raise UsageError(f"vectors must have width {self.tokens.embedding_dim}, got {rows.shape[-1]}")
        return rows

    def _segment(self, inputs: Inputs) -> Tensor | None:
        """Return the token type embeddings [batch time width]; row 0 [width] if the call passes no types."""
        if self.segments is None:
            if inputs.token_type_ids is not None:
                raise UsageError("the embedding has no segments; omit token_type_ids")
            return None
        if inputs.token_type_ids is None:
            return self.segments.weight[0]
        out: Tensor = self.segments(inputs.token_type_ids)
        return out


@register("embedding", "token_dropout")
class TokenDropout(Tokens):
    """`tokens` with masked tokens zeroed and all others scaled up to compensate (Rives et al. 2021, ESM, PNAS 118).

    Vectors are multiplied by (1 - mask_rate) / (1 - share of masked tokens in the text), so that their sum has the same
    scale as in training. Vectors passed instead of ids are unchanged.
    """

    class Config(Tokens.Config):
        mask_id: NonNegativeInt = Field(description="id of the mask token")
        mask_rate: DropoutRate = Field(0.12, description="share of tokens masked in training")

        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from super().check(shape)
            if shape.causal:
                yield Problem(
                    "",
                    "needs a bidirectional stack, since its scale reveals how many tokens of the whole text are masked",
                )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            known = facts.token_id("mask")
            if known is not None and known != self.mask_id and facts.objective is not None:
                yield Problem("mask_id", f"is {self.mask_id}, but the tokenizer's mask token has id {known}")

    # the share of masked tokens is defined for whole texts, one per row
    capabilities = TOKENWISE - {"causal", "cache", "packing"}
    config: Config

    def _look_up(self, inputs: Inputs, vectors: Tensor | None) -> Tensor:
        rows = super()._look_up(inputs, vectors)
        if inputs.input_ids is None:
            return rows
        masked = inputs.input_ids.eq(self.config.mask_id)
        real = torch.ones_like(masked) if inputs.real is None else inputs.real
        count, left = (reduce(tokens, "batch time -> batch 1 1", "sum") for tokens in (real, real & ~masked))
        factor = (1 - self.config.mask_rate) * count.to(wide_dtype(rows.dtype)) / left.clamp(min=1)
        return rows.masked_fill(rearrange(masked, "batch time -> batch time 1"), 0) * factor.to(rows.dtype)
