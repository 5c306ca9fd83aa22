"""Products of a few rows with a copy of a weight: packed for the kernel, joined with others, or in int8."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.errors import UsageError

HINT = 64  # rows that the kernel packs for: any number is as quick as packed for itself, or nearly so
REDUCED = True  # inputs in 7 bits: 8 overflow where a processor adds products in 16


def _operator(namespace: str, name: str) -> Any:
    """Return an operator that is not part of torch's public interface, or None if this torch lacks it."""
    try:
        return getattr(getattr(torch.ops, namespace), name).default
    except (AttributeError, RuntimeError):
        return None


PACK, PACKED_PRODUCT = _operator("mkl", "_mkl_reorder_linear_weight"), _operator("mkl", "_mkl_linear")
PREPACK, INT8_PRODUCT = _operator("quantized", "linear_prepack"), _operator("quantized", "linear_dynamic")
ROUND: Any = torch.quantize_per_channel if hasattr(torch, "quantize_per_channel") else None


class Product(Protocol):
    """x [... width] of so many rows -> x weightᵀ + bias, by a copy of the weight; `bytes` is what the copy holds."""

    bytes: int

    def __call__(self, x: Tensor, rows: int) -> Tensor: ...


class Packed:
    """A weight packed once for float32 products of a few rows on a CPU; equal to a linear layer but for rounding."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.copy: Tensor = PACK(weight, HINT)
        self.bytes = self.copy.numel() * weight.element_size()
        # the kernel asks the weight for nothing but its shape
        self.shape = weight.new_empty(1, 1).expand(weight.shape)
        self.bias = bias
        self.product = PACKED_PRODUCT

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        out: Tensor = self.product(x, self.copy, self.shape, self.bias, rows)
        return out


class Joined:
    """A weight as it is, for layers that are one product: a call, and what it waits for memory, are paid once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bytes = weight.nbytes
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Int8:
    """A weight in int8, a scale for each output; inputs are rounded to 7 bits of each row's range at every call.

    Of the same weights the results depend a little on the rows that are computed together.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scales = (weight.double().abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer releases announce that this way of quantizing will move
            rounded = ROUND(weight.float(), scales, torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8)
            self.copy = PREPACK(rounded, None)
        self.bytes = weight.numel() + 8 * len(scales)
        self.bias = bias
        self.product = INT8_PRODUCT

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        given = x.float()
        if rows == 1:
            out: Tensor = self.product(given, self.copy, REDUCED)
        else:
            # one range serves all rows of a product; divided by its largest value, each row makes use of it
            largest = given.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
            out = self.product(given / largest, self.copy, REDUCED) * largest
        out = out if self.bias is None else out + self.bias
        return out.to(x.dtype)


def can_pack() -> bool:
    """True if this build of torch can multiply by a packed weight."""
    return None not in (PACK, PACKED_PRODUCT) and bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


def check_int8(weight: Tensor) -> None:
    """Raise UsageError where products in int8 cannot be had."""
    if weight.device.type != "cpu":
        raise UsageError(f"quantize: int8 computes on a CPU, and this model is on {weight.device.type}")
    here = hasattr(torch.backends, "quantized")
    engines = set(torch.backends.quantized.supported_engines) - {"none"} if here else set()
    if not engines or None in (PREPACK, INT8_PRODUCT, ROUND):
        raise UsageError(f"quantize: int8 needs products in int8, which this torch ({torch.__version__}) lacks")
