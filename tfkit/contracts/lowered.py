"""Finds where a computation in float64 goes through a lower dtype."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tfkit.contracts.check import Broken
from tfkit.core.output import some

# bfloat16 is left out: in a model of float64 it is used only where an option says so
LOWER = frozenset({torch.float32, torch.float16})


class Lowered(TorchDispatchMode):
    """A block that must not mix float64 with a lower dtype; raises Broken at its end, `where` first in the message.

    An operation mixes them if tensors of both go in or come out: what passed through one is not exact.
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.found: dict[str, None] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation and record it if it mixes dtypes."""
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()}
        if torch.float64 in dtypes and dtypes & LOWER:
            self.found[str(func)] = None
        return out

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise Broken if operations were recorded."""
        super().__exit__(kind, error, trace)
        if kind is None and self.found:
            raise Broken(f"{self.where}, float32 takes part in {some(self.found)}; compute in the dtype of the input")
