"""The rule for multiplying by a float32 weight on a CPU: a way for each shape, by processor.

Nothing is timed, so equal runs on equal processors have equal bits. The table was made from
`python -m tests.benchmarks products` with 2 threads (torch 2.13). Figures are the rate of the chosen way over that of
torch's linear layer, which calls MKL:

|                             | 1 row     | 2 to 64 rows         | more rows | gradient of the input |
|-----------------------------|-----------|----------------------|-----------|-----------------------|
| amd-avx2, wider output      | 1.3 - 2.5 | 1.2 - 4.0            | 1.0 - 2.0 | 1 (oneDNN 0.6 - 1.2)  |
| amd-avx2, other             | 0.8 - 1.3 | 1.0 - 2.7            | 1.0 - 1.3 | 1 (oneDNN 0.6 - 1.3)  |
| amd-avx512                  | 1.0 - 2.0 | 1.6 - 4.0 (to 8)     | 1.0 - 2.1 | 1.1 - 1.5             |
| mkl (Intel and others)      | 1.1 - 1.2 | 1.8 - 2.3 (to 16)    | 1         | 1                     |
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from tfkit.core.errors import UsageError
from tfkit.core.machine import vendor
from tfkit.functional.ways import WAYS, available, suits

FORCED = "TFKIT_PRODUCTS"  # environment variable: the name of a way
DIRECT = ("mkl", "onednn")  # ways without a copy of the weight
FEW = 64  # maximum number of rows for which copies are faster


class ProductRule(NamedTuple):
    """The way for each kind of product. Weights of less than `small` bytes are packed for few rows.

    `widening` and `other` are for one row, by whether the output is wider than the input. `many` rows are multiplied by
    weights of at least `large` bytes; smaller ones are left to torch.
    """

    small: int = 4 << 20
    widening: str = "mkl"
    other: str = "mkl"
    few: str = "mkl"
    large: int = 0
    many: str = "mkl"
    gradient: str = "mkl"


RULES = {
    "amd-avx512": ProductRule(1 << 20, "reordered", "reordered", "reordered", 0, "onednn", "onednn"),
    "amd-avx2": ProductRule(1 << 20, "transposed", "reordered", "reordered", 2 << 20, "onednn", "mkl"),
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
        return "mkl" if size < rule.large else rule.gradient if transposed else rule.many
    if size < rule.small:
        return "packed"
    if rows > 1:
        return rule.few
    return rule.widening if out > width else rule.other
