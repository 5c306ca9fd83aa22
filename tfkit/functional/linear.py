"""Linear layers on a CPU, computed with MKL or oneDNN, as the rule for this processor says.

torch multiplies float32 matrices with MKL. On AMD processors, oneDNN is often faster, especially for a large
vocabulary, but not for the gradient of a weight, which is left to torch. Results are equal up to rounding.
"""

# Axes: rows (all axes of the input except the last), width (input channels), out (output channels).

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.functional.rule import fastest, forced
from tfkit.functional.ways import onednn

WORTH = 1 << 24  # minimum multiplications for oneDNN, whose calls cost about 10 microseconds more
AutogradContext = Any  # torch does not declare its attributes


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weightᵀ + bias without gradients: [... width], [out width] -> [... out]."""
    if _is_worth(x, weight, bias):
        return onednn(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """torch's linear layer, computed with the faster library."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch._C._is_tracing() or not _is_worth(input, self.weight, self.bias):
            return F.linear(input, self.weight, self.bias)
        return _differentiable(input, self.weight, self.bias)


def replace_linears(model: nn.Module) -> None:
    """Convert plain linear layers to `Linear` in place. Raise UsageError if TFKIT_PRODUCTS has an unknown value."""
    forced()
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


class _Product(torch.autograd.Function):
    """`product` as a function that can be differentiated repeatedly and in every mode of torch.func."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return product(x, weight, bias)

    @staticmethod
    def setup_context(ctx: AutogradContext, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        x, weight, ctx.bias = inputs[0], inputs[1], inputs[2] is not None
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads  # [... out]
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, weight.shape[0])  # [rows out]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _differentiable(grad, weight.t(), None) if needs_x else None,  # [... width]
            rows.t() @ x.reshape(-1, weight.shape[1]) if needs_weight else None,  # [out width]
            rows.sum(dim=0) if ctx.bias and needs_bias else None,  # [out]
        )

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        return torch.vmap(F.linear, in_dims)(x, weight, bias), 0

    @staticmethod
    def jvp(ctx: AutogradContext, *tangents: Tensor | None) -> Tensor | None:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = tangents
        terms = [
            None if of_x is None else F.linear(of_x, weight),
            None if of_weight is None else F.linear(x, of_weight),
            of_bias,
        ]
        return functools.reduce(lambda total, term: total + term, [term for term in terms if term is not None])


_differentiable: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _Product.apply


def _is_worth(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """True if oneDNN is faster. Wrong shapes, and modes such as operation counters, are left to torch's product."""
    return (
        type(x) is Tensor
        and x.numel() * weight.shape[0] >= WORTH
        and x.shape[-1] == weight.shape[1]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous() and bias.dtype == torch.float32))
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and _fastest(x, weight) == "onednn"
    )


def _fastest(x: Tensor, weight: Tensor) -> str:
    out, width = weight.shape
    transposed = weight.stride(0) == 1 and width > 1
    return fastest(x.numel() // width, width, out, transposed)
