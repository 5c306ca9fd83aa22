"""The law of losses L = E + A / N^a + B / D^b (Hoffmann et al. 2022, arXiv 2203.15556).

N is the number of parameters in the layers, D the number of tokens read. `law_fit.py` fits it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
NAMES = ("E", "A", "a", "B", "b")


@dataclass(frozen=True)
class Point:
    """Mean loss of the runs of one size on one budget."""

    parameters: float
    tokens: float
    loss: float
    n: int = 1


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval; None for an unbounded end."""

    value: float
    low: float | None
    high: float | None

    def holds(self, value: float) -> bool:
        """True if the value is in the interval."""
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


@dataclass(frozen=True)
class Law:
    """The law by the logarithms of E, A / n0^a, a, B / d0^b and b; n0 and d0 are the center of the points."""

    logs: tuple[float, ...]
    n0: float
    d0: float

    def terms(self, parameters: Vector | float, tokens: Vector | float) -> tuple[Any, Any, Any]:
        """Return E, A / N^a and B / D^b."""
        e, p, a, q, b = self.logs
        by_parameters = p - _bounded(a) * np.log(parameters / self.n0)
        by_tokens = q - _bounded(b) * np.log(tokens / self.d0)
        return _bounded(e), _bounded(by_parameters), _bounded(by_tokens)

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss for this number of parameters and tokens."""
        return float(sum(self.terms(parameters, tokens)))

    def logarithm(self, name: str) -> float:
        """Return the logarithm of E, A, a, B or b."""
        e, p, a, q, b = self.logs
        found = {"E": e, "A": p + float(_bounded(a)) * math.log(self.n0), "a": a}
        found |= {"B": q + float(_bounded(b)) * math.log(self.d0), "b": b}
        return found[name]

    def value(self, name: str) -> float:
        """Return E, A, a, B or b."""
        return float(_bounded(self.logarithm(name)))

    def optimum(self, flops: float) -> float:
        """Return log N of the minimum loss under 6 N D = flops, where a A / N^a = b B / D^b."""
        a, b = self.value("a"), self.value("b")
        ratio = self.logs[2] + self.logarithm("A") - self.logs[4] - self.logarithm("B")
        return (ratio + b * math.log(flops / 6)) / (a + b)


def _bounded(logarithm: Vector | float) -> Any:
    """exp(x), clamped so that the optimizer cannot overflow."""
    return np.exp(np.clip(logarithm, -60.0, 60.0))
