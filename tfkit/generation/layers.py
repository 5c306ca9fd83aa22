"""Linear layers for decoding, with fused, packed or quantized copies of weights, and the heads that they split."""

# Axes: width (input channels), out (output channels of a layer). Each forward maps [... width] to [... out].

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.functional.linear import HINT, ONEDNN, REORDER, OneDNN, Post, Product, Way, onednn, operator, product


def split_heads(x: Tensor, dim: int) -> Tensor:
    """Split heads: [batch time (head dim)] -> [batch head time dim]."""
    batch, time, _ = x.shape
    if time == 1:
        return x.reshape(batch, -1, 1, dim)  # a single token is in the right memory order
    return x.reshape(batch, time, -1, dim).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Join heads: [batch head time dim] -> [batch time (head dim)]."""
    if x.shape[2] == 1:
        return x.reshape(x.shape[0], 1, -1)
    return x.transpose(1, 2).flatten(2)


Choose = Callable[[Sequence[nn.Linear], int], Way | None]  # layers, rows -> the fastest way; None: the layers' own
Make = Callable[[Sequence[nn.Linear], Way], Product | None]


class ByRows(dict[int, Product | None]):
    """Cache: number of rows -> packed weight, or None for the plain weight."""

    def __init__(self, find: Callable[[int], Product | None]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, rows: int) -> Product | None:
        self[rows] = product = self.find(rows)
        return product


class Layers:
    """Linear layers with a common input, computed in the fastest way for the number of rows.

    `make` prepares a way on first use, or returns None to use the plain weights.
    """

    def __init__(self, linears: Sequence[nn.Linear], choose: Choose, make: Make) -> None:
        self.linears = linears
        self.choose = choose
        self.make = make
        self.weights = [(linear._parameters, linear.weight) for linear in linears]
        self.sizes = [linear.weight.shape[0] for linear in linears]
        self.width = linears[0].weight.shape[1]
        self.copies: dict[Way, Product | None] = {}
        self.products = ByRows(self._product)

    def each(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute [... width] -> [... out] for each layer."""
        own = self.product(rows := x.numel() // self.width)
        if own is None:
            return tuple([product(x, linear.weight, linear.bias) for linear in self.linears])
        return own(x, rows).split_with_sizes(self.sizes, dim=-1)

    def product(self, rows: int) -> Product | None:
        """Return the copy for a number of rows; None to use the plain weights, or while a weight is substituted."""
        for parameters, weight in self.weights:
            if parameters["weight"] is not weight:  # functional_call substitutes weights
                return None
        return self.products[rows]

    def _product(self, rows: int) -> Product | None:
        way = self.choose(self.linears, rows)
        if way is None:
            return None
        if way not in self.copies:
            self.copies[way] = self.make(self.linears, way)
        return self.copies[way]


class Copied(nn.Linear):
    """View of a linear layer that computes with a copy of the weight and bypasses hooks."""

    layers: Layers

    def forward(self, input: Tensor) -> Tensor:
        layers = self.layers
        own = layers.product(rows := input.numel() // layers.width)
        return product(input, self.weight, self.bias) if own is None else own(input, rows)

    __call__ = forward


class Activated(Copied):
    """View of a linear layer and the activation after it, which oneDNN computes in its product."""

    activation: Callable[[Tensor], Tensor]
    post: Post

    def forward(self, input: Tensor) -> Tensor:
        own = self.layers.product(input.numel() // self.layers.width)
        if isinstance(own, OneDNN):
            return own.then(input, self.post)
        return self.activation(super().forward(input))

    __call__ = forward


# not ReLU, which maps NaN to a number
POSTS: dict[str, Post] = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


def copied(layers: Layers, activation: Callable[[Tensor], Tensor] | None = None, name: str = "") -> Copied:
    """Return a view of the single layer in `layers`, with the activation `name` after it if it is one of POSTS."""
    layer: Copied = object.__new__(Activated if name in POSTS else Copied)
    vars(layer).update(vars(layers.linears[0]), layers=layers)
    if name in POSTS:
        vars(layer).update(activation=activation, post=POSTS[name])
    return layer


def joined(linears: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Concatenate the weights and biases of linear layers. The bias is None if no layer has one."""
    if len(linears) == 1:
        return linears[0].weight.detach(), None if linears[0].bias is None else linears[0].bias.detach()
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    return weight, torch.cat(
        [weight.new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias for linear in linears]
    )


REDUCED = True  # quantize inputs to 7 bits: 8 bits overflow on processors with 16-bit accumulators
PREPACK, INT8_PRODUCT = operator("quantized", "linear_prepack"), operator("quantized", "linear_dynamic")
ROUND: Any = torch.quantize_per_channel if hasattr(torch, "quantize_per_channel") else None


class Int8:
    """An int8 weight with a scale per output. Inputs are quantized to 7 bits per row at each call.

    Results depend slightly on the other rows of a product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scales = (weight.double().abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer releases deprecate this quantization API
            rounded = ROUND(weight.float(), scales, torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8)
            self.copy = PREPACK(rounded, None)
        self.bytes = weight.numel() + 8 * len(scales)
        self.bias = bias
        self.product = INT8_PRODUCT

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        inputs = x.float()
        if rows == 1:
            out: Tensor = self.product(inputs, self.copy, REDUCED)
        else:
            # the kernel quantizes all rows with one range, so rows are scaled to use all of it
            largest = inputs.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            out = self.product(inputs / largest, self.copy, REDUCED) * largest
        out = out if self.bias is None else out + self.bias
        return out.to(x.dtype)


class BFloat16:
    """A weight in bfloat16, in oneDNN's native layout. Inputs are rounded to bfloat16, sums are float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.copy: Tensor = REORDER(weight.bfloat16(), HINT)
        self.bytes = 2 * weight.numel()
        self.bias = bias

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        out = onednn(x.bfloat16(), self.copy, None).to(x.dtype)
        return out if self.bias is None else out + self.bias


def check_quantized(weight: Tensor, quantize: str) -> None:
    """Raise UsageError if products with quantized weights are unavailable on the weight's device."""
    if weight.device.type != "cpu":
        raise UsageError(f"quantize: {quantize} runs only on a CPU, but this model is on {weight.device.type}")
    if quantize == "bfloat16":
        _check_bfloat16()
    else:
        _check_int8()


def _check_bfloat16() -> None:
    if None in (REORDER, ONEDNN) or not hasattr(torch.cpu, "get_capabilities"):
        raise UsageError(f"quantize: bfloat16 needs kernels that this torch ({torch.__version__}) lacks; use int8")
    if not torch.cpu.get_capabilities().get("avx512_bf16"):
        raise UsageError("quantize: bfloat16 needs a CPU with bfloat16 instructions (AVX512_BF16); use int8")


def _check_int8() -> None:
    here = hasattr(torch.backends, "quantized")
    engines = set(torch.backends.quantized.supported_engines) - {"none"} if here else set()
    if not engines or None in (PREPACK, INT8_PRODUCT, ROUND):
        raise UsageError(f"quantize: int8 needs int8 kernels, which this torch ({torch.__version__}) lacks")
