"""Detection of lower-precision operations in a float64 computation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfkit.contracts.expect import Broken
from tfkit.core.output import some

# bfloat16 is not included: a float64 model uses it only if an option says so
LOWER = frozenset({torch.float32, torch.float16})


class _Mixing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of operations that mix float64 with a lower dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        """Run the operation and record it if it mixes dtypes."""
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()}
        if torch.float64 in dtypes and dtypes & LOWER:
            self.operations[str(func)] = None
        return out


@contextlib.contextmanager
def in_float64(where: str) -> Iterator[None]:
    """Raise Broken, starting with `where`, if an operation within the block mixes float64 with a lower dtype.

    Both inputs and outputs are checked, since values that passed through a lower dtype are inexact.
    """
    with _Mixing() as mixing:
        yield
    if mixing.operations:
        raise Broken(f"{where}, {some(mixing.operations)} uses float32; compute in the dtype of the input")
