"""Linear layers on a CPU: ways to multiply by MKL or oneDNN, and the rule that chooses one by processor.

A way is made for a weight and a bias. It may hold a copy of the weight in a layout that its kernel reads faster.

Nothing is timed, so equal runs on equal processors have equal bits. The table was made from
`python -m tests.benchmarks products` with 2 threads (torch 2.13). Figures are the rate of the chosen way over that of
torch's linear layer, which calls MKL:

|                             | 1 row     | 2 to 64 rows         | more rows | gradient of the input |
|-----------------------------|-----------|----------------------|-----------|-----------------------|
| amd-avx2, wider output      | 1.3 - 2.5 | 1.2 - 4.0            | 1.0 - 2.0 | 1 (oneDNN 0.6 - 1.2)  |
| amd-avx2, other             | 0.8 - 1.3 | 1.0 - 2.7            | 1.0 - 1.3 | 1 (oneDNN 0.6 - 1.3)  |
| amd-avx512                  | 1.0 - 2.0 | 1.6 - 4.0 (to 8)     | 1.0 - 2.1 | 1.1 - 1.5             |
| mkl (Intel and others)      | 1.1 - 1.2 | 1.8 - 2.3 (to 16)    | 1         | 1                     |

torch multiplies float32 matrices with MKL. On AMD processors, oneDNN is often faster, especially for a large
vocabulary, but not for the gradient of a weight, which is left to torch. Results are equal up to rounding.
"""

# Axes: rows (all axes of the input except the last), width (input channels), out (output channels).

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.core.machine import vendor

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


Post = tuple[str, str]  # an operation that oneDNN applies to a product, and its variant
NOTHING: Post = ("none", "")


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None, post: Post = NOTHING) -> Tensor:
    """Compute x weightᵀ + bias with oneDNN, and then `post`: [... width] -> [... out].

    oneDNN keeps about 0.6 MB of compiled code for each number of rows. Rows are padded to one of 8 counts per power of
    two.
    """
    rows = x.numel() // x.shape[-1]
    missing = rounded(rows) - rows
    padded = F.pad(x.reshape(rows, -1), (0, 0, 0, missing)) if missing else x  # [rows + missing, width]
    out: Tensor = ONEDNN(padded, weight, bias, post[0], [], post[1])
    return out.resize_(*x.shape[:-1], out.shape[-1]) if missing else out  # [... out], and no view, for autograd


def rounded(rows: int) -> int:
    """Round up to four significant binary digits."""
    step = 1 << max(0, (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def unpadded(rows: int) -> int:
    """Round down to a number of rows that oneDNN does not pad."""
    step = 1 << max(0, rows.bit_length() - 4)
    return rows // step * step


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

    def then(self, x: Tensor, post: Post) -> Tensor:
        return onednn(x, self.copy, self.bias, post)


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


FORCED = "TFKIT_PRODUCTS"  # environment variable: the name of a way
DIRECT = ("mkl", "onednn")  # ways without a copy of the weight
FEW = 64  # maximum number of rows for which all ways with copies are considered


class ProductRule(NamedTuple):
    """The way for each kind of product. Weights of less than `small` bytes are packed, for one row or for a few.

    `widening` and `other` are for one row, by whether the output is wider than the input. `many` rows are multiplied by
    weights of at least `large` bytes; smaller ones are left to torch.
    """

    small: tuple[int, int] = (4 << 20, 4 << 20)
    widening: str = "mkl"
    other: str = "mkl"
    few: str = "mkl"
    large: int = 0
    many: str = "mkl"
    gradient: str = "mkl"


RULES = {
    "amd-avx512": ProductRule((1 << 20, 3 << 17), "reordered", "reordered", "reordered", 0, "onednn", "onednn"),
    "amd-avx2": ProductRule((1 << 20, 1 << 20), "transposed", "reordered", "reordered", 2 << 20, "onednn", "mkl"),
    "mkl": ProductRule(widening="transposed", other="transposed", few="packed"),
    "torch": ProductRule(),  # builds without MKL
}


def forced() -> str | None:
    """Return the way that TFKIT_PRODUCTS names, if set. Raise UsageError if it is unknown or unavailable."""
    name = os.environ.get(FORCED) or None
    if name is not None and name not in WAYS:
        raise UsageError(f"{FORCED} must be {', '.join(list(WAYS)[:-1])} or {list(WAYS)[-1]}, got {name!r}")
    if name is not None and not available(name):
        raise UsageError(f"{FORCED}={name}: this torch ({torch.__version__}) lacks its kernels")
    return name


def rule_name() -> str:
    """Return the name of the rule in use: of this processor's, or of the way that TFKIT_PRODUCTS forces."""
    name = forced()
    return _of_processor() if name is None else f"{FORCED}={name}"


def _of_processor() -> str:
    if not torch._C.has_mkl:
        return "torch"
    name = f"amd-{torch.backends.cpu.get_cpu_capability().lower()}"
    return name if vendor() == "AuthenticAMD" and name in RULES else "mkl"


def fastest(rows: int, width: int, out: int, transposed: bool = False, copies: bool = False) -> str:
    """Return the way to multiply [rows width] by a weight [out width], which is stored as [width out] if `transposed`.

    `copies` allows ways that copy the weight. Raise UsageError as `forced` does.
    """
    name = forced()
    if name is not None:
        usable = suits(name, width, out) and (copies or name in DIRECT)
        return name if usable else "onednn" if name == "reordered" else "mkl"
    name = _listed(RULES[_of_processor()], rows, width, out, transposed, copies)
    return name if suits(name, width, out) else "mkl"


def _listed(rule: ProductRule, rows: int, width: int, out: int, transposed: bool, copies: bool) -> str:
    size = 4 * width * out
    if not copies or rows > FEW:
        name = "mkl" if size < rule.large else rule.gradient if transposed else rule.many
        return "reordered" if copies and name == "onednn" and size >= rule.small[1] else name
    if size < rule.small[rows > 1]:
        return "packed"
    if rows > 1:
        return rule.few
    return rule.widening if out > width else rule.other


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
