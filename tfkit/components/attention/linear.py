"""Kernel attention at a cost linear in the length, with simple or random features."""

# Axes: batch, time, head, query and key (tokens), dim (channels of a head), feature, d_model.

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from einops import rearrange
from pydantic import Field
from torch import Tensor, nn

from tfkit.components.attention.base import Attention, PlainHeadsConfig
from tfkit.core.component import Problem, Shape, Unlearnable
from tfkit.core.context import Context
from tfkit.core.options import Width, has_bias
from tfkit.core.registry import register
from tfkit.functional.kernel import KernelSums, kernel_attention, read

PIECE = 2048  # maximum number of tokens whose features are in memory at once, in inference
SPLIT = "batch time (head dim) -> batch head time dim"


class KernelAttention(Attention):
    """sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j); subclasses define log phi.

    In causal layers j <= i, computed with prefix sums; the decode state holds the sums instead of keys and values.
    """

    class Config(PlainHeadsConfig):
        def check(self, shape: Shape) -> Iterator[Problem]:
            yield from super().check(shape)
            if self.num_features(shape) == 1:
                text = "with a single feature, the queries cancel out and are never trained; use more features"
                yield Unlearnable("", text)

        def num_features(self, shape: Shape) -> int:
            return self.width(shape)

    capabilities = frozenset({"causal", "bidirectional", "cross_attention", "cache", "padding", "compile", "export"})
    residual_outputs = ("output",)
    gain_scaled = ("value", "output")
    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.head_dim = config.width(shape)
        width = config.num_heads * self.head_dim
        self.query = nn.Linear(shape.d_model, width, bias=has_bias(config.bias, "query"))
        self.key = nn.Linear(shape.source_width, width, bias=has_bias(config.bias, "key"))
        self.value = nn.Linear(shape.source_width, width, bias=has_bias(config.bias, "value"))
        self.output = nn.Linear(width, shape.d_model, bias=has_bias(config.bias, "output"))
        self.causal = shape.causal and shape.memory_width is None

    def log_features(self, x: Tensor) -> Tensor:
        """Compute log phi of queries or keys, [batch head time dim] -> [batch head time feature]; -inf for phi = 0."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def new_state(self) -> KernelSums:  # type: ignore[override]
        return KernelSums()

    def forward(self, x: Tensor, context: Context) -> Tensor:
        past: KernelSums | None = context.state
        query = self._split(self.query(x))  # [batch head query dim]
        temperature = context.position.temperature()
        if temperature is not None:
            query = query * temperature[:, None, :, None]  # temperature [batch query]
        source = x if context.source is None else context.source
        plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling()  # neither gradients nor a graph
        if plain and past is None and not self.causal and max(x.shape[1], source.shape[1]) > PIECE:
            return self._merged(self._in_pieces(query, source, context.mask.real))
        query = self.log_features(query)  # [batch head query feature]
        if past is not None and context.source is not None and past.values is not None:
            out = read(query, past)  # [batch head query dim]; the sums of the memory are cached
        else:
            key = self.log_features(self._split(self.key(source)))  # [batch head key feature]
            value = self._split(self.value(source))  # [batch head key dim]
            real = context.mask.real
            real = None if real is None else real[:, -source.shape[1] :]  # `past` already excludes earlier padding
            out = kernel_attention(query, key, value, real, self.causal, past)  # [batch head query dim]
        return self._merged(out)  # [batch query d_model]

    def _in_pieces(self, query: Tensor, source: Tensor, real: Tensor | None) -> Tensor:
        """Attend in chunks to bound memory use: sum over all keys first, then apply the sums to the queries."""
        sums, no_query = KernelSums(), self.log_features(query[:, :, :0])
        for start in range(0, source.shape[1], PIECE):
            piece = slice(start, start + PIECE)
            key = self.log_features(self._split(self.key(source[:, piece])))
            value = self._split(self.value(source[:, piece]))
            kernel_attention(no_query, key, value, None if real is None else real[:, piece], False, sums)
        return torch.cat([read(self.log_features(part), sums) for part in torch.split(query, PIECE, dim=2)], dim=2)

    def _merged(self, out: Tensor) -> Tensor:
        merged: Tensor = self.output(rearrange(out, "batch head time dim -> batch time (head dim)"))
        return merged

    def _split(self, x: Tensor) -> Tensor:
        return rearrange(x, SPLIT, head=self.config.num_heads)


@register("attention", "linear")
class LinearAttention(KernelAttention):
    """Linear attention: phi(q_i) phi(k_j) instead of exp(q_i k_j) (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    class Config(KernelAttention.Config):
        feature: Literal["elu", "relu"] = Field(
            "elu",
            description="feature map phi; elu: elu(x) + 1, as in the paper; relu: relu(x), which outputs 0 if all "
            "features are 0",
        )

    config: Config

    def log_features(self, x: Tensor) -> Tensor:
        if self.config.feature == "elu":
            return torch.where(x > 0, torch.log1p(x.clamp(min=0)), x)
        return torch.where(x > 0, x.clamp(min=torch.finfo(x.dtype).tiny).log(), float("-inf"))


@register("attention", "performer")
class Performer(KernelAttention):
    """FAVOR+: phi(x)_f = exp(w_f x' - |x'|² / 2) / sqrt(features), x' = x / dim^(1/4) (Choromanski 2020, 2009.14794).

    E phi(q) phi(k) = exp(q k / sqrt(dim)), so more features approximate softmax attention better. The random w are
    saved with the weights and change only in `redraw`.
    """

    class Config(KernelAttention.Config):
        features: Width | None = Field(
            None, description="number of random features; none: head_dim * ln(head_dim), as in the paper"
        )
        orthogonal: bool = Field(
            True, description="orthogonalize the features in groups of head_dim, for a smaller error"
        )

        def num_features(self, shape: Shape) -> int:
            dim = self.width(shape)
            return self.features or max(1, round(dim * math.log(max(dim, 1))))

    capabilities = KernelAttention.capabilities | {"temperature"}
    config: Config
    directions: Tensor

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.features = config.num_features(shape)
        self.register_buffer("directions", torch.empty(self.features, self.head_dim))
        self.redraw()

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new features from `generator` or the global RNG."""
        device = "cpu" if generator is None else generator.device
        if self.directions.device.type == "meta":
            return
        drawn = random_directions(self.features, self.head_dim, self.config.orthogonal, generator, device)
        self.directions.copy_(drawn)

    def log_features(self, x: Tensor) -> Tensor:
        x = x * self.head_dim**-0.25
        along = x @ self.directions.to(x.dtype).T
        return along - x.square().sum(dim=-1, keepdim=True) / 2 - math.log(self.features) / 2


def random_directions(
    features: int, dim: int, orthogonal: bool, generator: torch.Generator | None, device: torch.device | str
) -> Tensor:
    """Draw rows [features dim] from N(0, 1); if `orthogonal`, orthogonalize groups of `dim` rows, keeping the norms."""
    normal = torch.randn(features, dim, generator=generator, device=device)
    if not orthogonal:
        return normal
    groups = math.ceil(features / dim)
    squares = torch.randn(groups, dim, dim, generator=generator, device=device)
    turned, upper = torch.linalg.qr(squares)
    turned = turned * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # removes the bias of QR towards negative signs
    axes: Tensor = rearrange(turned, "group dim row -> (group row) dim")[:features]
    return axes * normal.square().sum(dim=-1, keepdim=True).sqrt()
