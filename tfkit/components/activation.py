"""Activations: all elementwise functions of torch, and some from papers.

| type | choose it when |
|---|---|
| relu | the original Transformer, T5 |
| gelu | BERT, BART: exact GELU |
| gelu_tanh | GPT-2, Gemma, T5 1.1: the tanh approximation of GELU |
| quick_gelu | CLIP: the sigmoid approximation of GELU |
| silu | Llama, PaLM: the gate of SwiGLU; also called swish |
| relu_squared | Primer, Nemotron: sparse, without a gate |
| xielu | Apertus: quadratic above 0, with learned coefficients on both sides |
| identity | the bilinear GLU |
| relu6, leaky_relu, prelu, rrelu, threshold | a ReLU with a cap, a slope below 0 or a threshold |
| elu, selu, celu | a ReLU that is smooth below 0 |
| mish, hardswish | alternatives to silu; hardswish needs no exponential |
| sigmoid, hardsigmoid, logsigmoid | a gate between 0 and 1, a piecewise linear gate, or a log-probability |
| tanh, hardtanh, softsign | a pooler, or any output that must be bounded |
| softplus | the output must be positive |
| tanhshrink, softshrink, hardshrink | small values should become 0 |
"""

# Axes: width (channels). Each forward maps [... width] to the same shape.

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from tfkit.core import component
from tfkit.core.component import Component, Config, Shape
from tfkit.core.inputs import TOKENWISE
from tfkit.core.options import NonNegativeFloat, Number, PositiveFloat
from tfkit.core.registry import register


class Activation(Component, nn.Module):
    """Elementwise function of [... width]; built with a Shape whose `d_model` is the width."""

    capabilities = TOKENWISE

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__()
        self.config = config
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Map [... width] to the same shape."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


NonPositiveFloat = Annotated[float, Field(le=0)]


class Option(NamedTuple):
    """An option of a torch function: its type, its default (`...` if required) and its meaning."""

    annotation: Any
    default: Any
    meaning: str


class Formula(NamedTuple):
    """Row of the table: an activation backed by a torch function."""

    name: str
    function: Callable[..., Tensor]
    formula: str
    options: dict[str, Option] = {}


TABLE = (
    Formula("identity", torch.positive, "x: no activation, as in the bilinear GLU (Shazeer 2020, arXiv 2002.05202)"),
    Formula("relu", torch.relu, "max(0, x) (Nair and Hinton 2010)"),
    Formula("relu6", F.relu6, "min(max(0, x), 6) (Howard et al. 2017, arXiv 1704.04861)"),
    Formula("gelu", F.gelu, "x * Phi(x), Phi the normal distribution (Hendrycks and Gimpel 2016, arXiv 1606.08415)"),
    Formula(
        "gelu_tanh",
        partial(F.gelu, approximate="tanh"),
        "0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x³))), GPT-2's GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415)",
    ),
    Formula("silu", F.silu, "x * sigmoid(x), also called swish (Ramachandran et al. 2017, arXiv 1710.05941)"),
    Formula("mish", F.mish, "x * tanh(softplus(x)) (Misra 2019, arXiv 1908.08681)"),
    Formula(
        "elu",
        F.elu,
        "x above 0, alpha * (exp(x) - 1) below (Clevert et al. 2015, arXiv 1511.07289)",
        {"alpha": Option(PositiveFloat, 1.0, "negative x saturates at -alpha")},
    ),
    Formula("selu", F.selu, "scale * elu(x, alpha), both constants fixed (Klambauer et al. 2017, arXiv 1706.02515)"),
    Formula(
        "celu",
        F.celu,
        "max(0, x) + min(0, alpha * (exp(x / alpha) - 1)) (Barron 2017, arXiv 1704.07483)",
        {"alpha": Option(PositiveFloat, 1.0, "negative x saturates at -alpha; also the scale of x")},
    ),
    Formula(
        "leaky_relu",
        F.leaky_relu,
        "max(0, x) + negative_slope * min(0, x) (Maas et al. 2013)",
        {"negative_slope": Option(float, 0.01, "slope for negative x")},
    ),
    Formula(
        "threshold",
        F.threshold,
        "x above the threshold, else the value",
        {
            "threshold": Option(float, ..., "x above this value is passed through"),
            "value": Option(float, ..., "output for x at or below the threshold"),
        },
    ),
    Formula("sigmoid", torch.sigmoid, "1 / (1 + exp(-x))"),
    Formula("logsigmoid", F.logsigmoid, "log(sigmoid(x))"),
    Formula("tanh", torch.tanh, "tanh(x)"),
    Formula("tanhshrink", F.tanhshrink, "x - tanh(x)"),
    Formula("softsign", F.softsign, "x / (1 + |x|) (Bergstra et al. 2009)"),
    Formula(
        "softplus",
        F.softplus,
        "log(1 + exp(beta x)) / beta, x itself where beta x is above the threshold (Dugas et al. 2000)",
        {
            "beta": Option(PositiveFloat, 1.0, "sharpness"),
            "threshold": Option(float, 20.0, "beta x above which the output is x, so that exp does not overflow"),
        },
    ),
    Formula(
        "softshrink",
        F.softshrink,
        "sign(x) * max(0, |x| - lambd) (Donoho 1995)",
        {"lambd": Option(NonNegativeFloat, 0.5, "amount by which |x| shrinks")},
    ),
    Formula(
        "hardshrink",
        F.hardshrink,
        "x where |x| is above lambd, else 0 (Donoho and Johnstone 1994)",
        {"lambd": Option(NonNegativeFloat, 0.5, "values of x with |x| up to this become 0")},
    ),
    Formula("hardsigmoid", F.hardsigmoid, "min(max(0, x + 3), 6) / 6 (Howard et al. 2019, arXiv 1905.02244)"),
    Formula("hardswish", F.hardswish, "x * hardsigmoid(x) (Howard et al. 2019, arXiv 1905.02244)"),
    Formula(
        "hardtanh",
        F.hardtanh,
        "min(max(min_val, x), max_val)",
        {
            "min_val": Option(NonPositiveFloat, -1.0, "lower bound, at most 0"),
            "max_val": Option(NonNegativeFloat, 1.0, "upper bound, at least 0"),
        },
    ),
)


class TorchActivation(Activation):
    """Calls torch's function with the options of its Config."""

    function: Callable[..., Tensor]

    def __init__(self, config: component.Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.options = {name: getattr(config, name) for name in type(config).model_fields}

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, **self.options)


def make(row: Formula) -> type[TorchActivation]:
    """Create and register a row's part; it is a class of this module, so that it can be pickled."""
    name = "".join(word.capitalize() for word in row.name.split("_"))
    options = {
        "__module__": __name__,
        "__qualname__": f"{name}.Config",
        "__annotations__": {option: about.annotation for option, about in row.options.items()},
        **{option: Field(about.default, description=about.meaning) for option, about in row.options.items()},
    }
    namespace = {
        "__module__": __name__,
        "__qualname__": name,
        "__doc__": f"{row.formula}.",
        "Config": type("Config", (component.Config,), options),
        "function": staticmethod(row.function),
    }
    return register("activation", row.name)(type(name, (TorchActivation,), namespace))


TORCH_ACTIVATIONS = {row.name: make(row) for row in TABLE}
globals().update({part.__name__: part for part in TORCH_ACTIVATIONS.values()})


@register("activation", "quick_gelu")
class QuickGELU(Activation):
    """x * sigmoid(1.702 x), the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.702 * x).sigmoid()


@register("activation", "relu_squared")
class ReLUSquared(Activation):
    """max(0, x)² (So et al. 2021, Primer, arXiv 2109.08668)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


NEAR = -1e-6  # upper bound of x in the exponential, so that the unused branch cannot overflow


@register("activation", "xielu")
class XIELU(Activation):
    """a x² + beta x above 0, b (exp(x) - 1 - x) + beta x below, a and b learned (Huang and Schlag 2024, 2411.13010).

    a = softplus(positive) and b = beta + softplus(negative), so that both stay above 0.
    """

    class Config(component.Config):
        positive: PositiveFloat = Field(0.8, description="initial a")
        negative: PositiveFloat = Field(0.8, description="initial b; must exceed beta")
        beta: PositiveFloat = Field(0.5, description="slope at 0")

        @model_validator(mode="after")
        def _ordered(self) -> XIELU.Config:
            if self.negative <= self.beta:
                raise ValueError(f"negative {self.negative} must exceed beta {self.beta}")
            return self

    config: Config

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.positive = nn.Parameter(torch.tensor([math.log(math.expm1(config.positive))]))
        self.negative = nn.Parameter(torch.tensor([math.log(math.expm1(config.negative - config.beta))]))

    def forward(self, x: Tensor) -> Tensor:
        beta = self.config.beta
        above = nn.functional.softplus(self.positive) * x * x
        below = (beta + nn.functional.softplus(self.negative)) * (x.clamp(max=NEAR).expm1() - x)
        return torch.where(x > 0, above, below) + beta * x


@register("activation", "prelu")
class PReLU(Activation):
    """max(0, x) + weight * min(0, x), the weight learned (He et al. 2015, arXiv 1502.01852)."""

    class Config(component.Config):
        init: Number = Field(0.25, description="initial slope for negative x")
        per_channel: bool = Field(False, description="learn one slope per channel; false: a single slope")

    def __init__(self, config: Config, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weight = nn.Parameter(torch.full((shape.d_model if config.per_channel else 1,), config.init))

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0) + self.weight * x.clamp(max=0)


@register("activation", "rrelu")
class RReLU(Activation):
    """max(0, x) + a * min(0, x), a ~ U(lower, upper) in training, else the mean (Xu et al. 2015, arXiv 1505.00853)."""

    class Config(component.Config):
        lower: Number = Field(1 / 8, description="smallest slope for negative x")
        upper: Number = Field(1 / 3, description="largest slope for negative x")

        @model_validator(mode="after")
        def _ordered(self) -> RReLU.Config:
            if self.lower > self.upper:
                raise ValueError(f"lower {self.lower} exceeds upper {self.upper}")
            return self

    config: Config

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, self.config.lower, self.config.upper, training=self.training)
