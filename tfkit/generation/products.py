"""Products with quantized copies of a weight."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.functional.ways import HINT, ONEDNN, REORDER, onednn, operator

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
