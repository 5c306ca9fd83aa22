"""Attention once more, in float64 and in loops, written from the papers and not from tfkit's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Row = list[float]


@dataclass
class Naive:
    """Options of the reference. `bias(head, query, key)` is added to a score; `visible(row, query, key)` may look."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    softcap: float | None = None
    bias: Callable[[int, int, int], float] = field(default=lambda head, query, key: 0.0)
    visible: Callable[[int, int, int], bool] = field(default=lambda row, query, key: True)
    turn: Callable[[Row, int], Row] = field(default=lambda vector, position: vector)
    norm: dict[str, Tensor] = field(default_factory=dict)  # weights of the rms norms of queries and keys
    eps: float = 1e-6

    def __call__(self, weights: dict[str, Tensor], x: Tensor, source: Tensor | None = None) -> Tensor:
        """[batch time d_model] -> the same; keys and values from `source` [batch key width], or from x."""
        source = x if source is None else source
        out = torch.zeros(*x.shape[:2], weights["output.weight"].shape[0], dtype=torch.float64)
        for row in range(x.shape[0]):
            for query in range(x.shape[1]):
                merged: Row = []
                for head in range(self.heads):
                    merged += self.head(weights, x, source, row, query, head)
                out[row, query] = linear(weights, "output", torch.tensor(merged, dtype=torch.float64))
        return out

    def head(self, weights: dict[str, Tensor], x: Tensor, source: Tensor, row: int, query: int, head: int) -> Row:
        """One head's mix of values for one query; zeros where it may look at nothing."""
        of = head // (self.heads // self.kv_heads)  # the key-value head that serves it
        q = self.vector(weights, "query", x[row, query], head, self.head_dim, query)
        scores: dict[int, float] = {}
        for key in range(source.shape[1]):
            if self.visible(row, query, key):
                k = self.vector(weights, "key", source[row, key], of, self.head_dim, key)
                score = sum(a * b for a, b in zip(q, k, strict=True)) * self.scale
                if self.softcap is not None:
                    score = self.softcap * math.tanh(score / self.softcap)
                scores[key] = score + self.bias(head, query, key)
        total = sum(math.exp(score) for score in scores.values())
        mixed = [0.0] * self.value_dim
        for key, score in scores.items():
            v = linear(weights, "value", source[row, key])[of * self.value_dim : (of + 1) * self.value_dim]
            for channel in range(self.value_dim):
                mixed[channel] += math.exp(score) / total * float(v[channel])
        return mixed

    def vector(self, weights: dict[str, Tensor], name: str, x: Tensor, head: int, dim: int, position: int) -> Row:
        """A query or a key of one head: projected, normed, turned."""
        values: Row = linear(weights, name, x)[head * dim : (head + 1) * dim].tolist()
        if name in self.norm:
            size = math.sqrt(sum(value * value for value in values) / dim + self.eps)
            values = [value / size * float(weight) for value, weight in zip(values, self.norm[name], strict=True)]
        return self.turn(values, position)


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """W x + b in float64, b where there is one."""
    out = weights[f"{name}.weight"].double() @ x.double()
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias.double()


def rotated(theta: float, width: int) -> Callable[[Row, int], Row]:
    """RoPE on the first `width` channels, channel i paired with i + width / 2, as a complex product."""

    def turn(vector: Row, position: int) -> Row:
        out = list(vector)
        for pair in range(width // 2):
            angle = position * theta ** (-2 * pair / width)
            number = complex(vector[pair], vector[pair + width // 2]) * complex(math.cos(angle), math.sin(angle))
            out[pair], out[pair + width // 2] = number.real, number.imag
        return out

    return turn


def linear_bias(heads: int) -> Callable[[int, int, int], float]:
    """ALiBi for a power of two of heads: -2^(-8h/n) times the distance."""
    return lambda head, query, key: -(2.0 ** (-8 * (head + 1) / heads)) * abs(query - key)
