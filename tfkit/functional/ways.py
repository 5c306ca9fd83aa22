"""Ways to multiply float32 matrices on a CPU. They are equal up to rounding; which is fastest depends on the processor.

A way is made for a weight and a bias. It may hold a copy of the weight in a layout that its kernel reads faster.
"""

# Axes: rows (all axes of the input except the last), width (input channels), out (output channels).

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

THIN = 64  # minimum width and number of outputs of a packed weight: MKL pads smaller ones
HINT = 64  # number of rows that layouts are optimized for; near-optimal for fewer rows, too


def operator(namespace: str, name: str) -> Any:
    """Return an operator that is not in torch's public API, or None if this build of torch lacks it."""
    try:
        return getattr(getattr(torch.ops, namespace), name).default
    except (AttributeError, RuntimeError):
        return None


PACK, PACKED_PRODUCT = operator("mkl", "_mkl_reorder_linear_weight"), operator("mkl", "_mkl_linear")
ONEDNN, REORDER = operator("mkldnn", "_linear_pointwise"), operator("mkldnn", "_reorder_linear_weight")


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x weightᵀ + bias with oneDNN: [... width] -> [... out].

    oneDNN keeps about 0.6 MB of compiled code for each number of rows. Rows are padded to one of 8 counts per power of
    two.
    """
    rows = x.numel() // x.shape[-1]
    missing = rounded(rows) - rows
    padded = F.pad(x.reshape(rows, -1), (0, 0, 0, missing)) if missing else x  # [rows + missing, width]
    out: Tensor = ONEDNN(padded, weight, bias, "none", [], "")
    return out.resize_(*x.shape[:-1], out.shape[-1]) if missing else out  # [... out], and no view, for autograd


def rounded(rows: int) -> int:
    """Round up to four significant binary digits."""
    step = 1 << max(0, (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


class Product(Protocol):
    """x [... width] -> x weightᵀ + bias [... out] for `rows` rows, with a copy of the weight that takes `bytes`."""

    bytes: int

    def __call__(self, x: Tensor, rows: int) -> Tensor: ...


class Way(Protocol):
    """Make the product with a weight [out width] and a bias [out]."""

    def __call__(self, weight: Tensor, bias: Tensor | None, /) -> Product: ...


class MKL:
    """torch's linear layer, which calls MKL."""

    bytes = 0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Packed:
    """A weight packed for MKL's products of a few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.copy: Tensor = PACK(weight, HINT)
        self.bytes = weight.nbytes  # the rest of the copy is reserved, but not written
        # the kernel reads only the shape of the original weight
        self.shape = weight.new_empty(1, 1).expand(weight.shape)
        self.bias = bias
        self.product = PACKED_PRODUCT

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        out: Tensor = self.product(x, self.copy, self.shape, self.bias, rows)
        return out


class Transposed:
    """A weight stored as [width out], which MKL often reads faster for a single row."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.copy = weight.t().contiguous()
        self.bytes = weight.nbytes
        self.bias = bias

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        return F.linear(x, self.copy.t(), self.bias)


class OneDNN:
    """oneDNN's product with the weight as it is. A call costs about 10 microseconds more than one of MKL."""

    bytes = 0

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.copy = weight
        self.bias = None if bias is None else bias.contiguous()  # the kernel ignores strides of a bias

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        return onednn(x, self.copy, self.bias)


class Reordered(OneDNN):
    """A weight in oneDNN's native layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(REORDER(weight, HINT), bias)
        self.bytes = weight.nbytes


WAYS: dict[str, Way] = {
    "mkl": MKL,
    "packed": Packed,
    "transposed": Transposed,
    "onednn": OneDNN,
    "reordered": Reordered,
}


def available(name: str) -> bool:
    """True if this build of torch has the way's kernels."""
    if name == "packed":
        return None not in (PACK, PACKED_PRODUCT) and torch._C.has_mkl
    return {"onednn": ONEDNN is not None, "reordered": None not in (ONEDNN, REORDER)}.get(name, True)


def suits(name: str, width: int, out: int) -> bool:
    """True if the way is available, and its copy of a weight [out width] is about as large as the weight."""
    return available(name) and (name != "packed" or min(width, out) >= THIN)
