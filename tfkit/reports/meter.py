"""Measurement of a forward pass by module: FLOPs, and bytes saved for the backward pass."""

# Axes: batch, head, query (tokens), value_dim (channels of a value head).

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tfkit.reports.shapes import stand_in

Path = tuple[str, ...]  # module names, outermost first


@dataclass(frozen=True)
class Tally:
    """FLOPs, and bytes saved for the backward pass."""

    flops: int = 0
    kept_bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.flops + other.flops, self.kept_bytes + other.kept_bytes)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.flops - other.flops, self.kept_bytes - other.kept_bytes)


class Meter:
    """Context manager that attributes all operations to the innermost watched module.

    A storage is attributed to the module that saves it first; parameters of the model are not counted.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tallies: dict[Path, Tally] = {}
        # keeping references prevents reuse of the addresses
        self._storages = {_address(weight): weight.untyped_storage() for weight in model.parameters()}
        self._scopes: list[Path] = [()]
        self._open = ExitStack()

    def watch(self, module: nn.Module | None, name: Callable[[], Path] | Path) -> None:
        """Tally `module` separately, under the enclosing path plus `name`; a callable name is called each time."""
        if module is None:
            return

        def enter(*_: object) -> None:
            self._scopes.append(self._scopes[-1] + (name() if callable(name) else name))

        def leave(*_: object) -> None:
            self._scopes.pop()

        for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave)):
            self._open.callback(handle.remove)

    def __enter__(self) -> Meter:
        self._open.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor))
        self._open.enter_context(_FlopMode(self._add))
        self._open.enter_context(_FusedAttentionMode())
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _add(self, tally: Tally) -> None:
        scope = self._scopes[-1]
        self.tallies[scope] = self.tallies.get(scope, Tally()) + tally

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if _address(tensor) not in self._storages:
            self._storages[_address(tensor)] = storage
            self._add(Tally(0, storage.nbytes()))
        return tensor


def _address(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


class _FlopMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that reports the FLOPs of each operation.

    torch's FlopCounterMode identifies modules by name, so it cannot distinguish two calls of one layer.
    """

    def __init__(self, report: Callable[[Tally], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # if True, torch's compiler would be imported, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        out = stand_in(func, args, kwargs)
        if out is None:
            out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket) or _MORE_FLOPS.get(func._overloadpacket)
        if formula is not None:
            self._report(Tally(formula(*args, **kwargs, out_val=out), 0))
        return out


_MORE_FLOPS: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mv: lambda left, right, **_: 2 * left.numel(),
    torch.ops.aten.dot: lambda left, right, **_: 2 * left.numel(),
    torch.ops.aten.addmv: lambda added, left, right, **_: 2 * left.numel(),
}


class _FusedAttentionMode(TorchFunctionMode):
    """Function mode that replaces attention with a fused kernel; on `meta`, torch would save the score matrix."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        fused: Callable[..., Tensor] = _FusedAttention.apply
        return fused(*args[:3], args[3] if len(args) > 3 else (kwargs or {}).get("attn_mask"))


class _FusedAttention(torch.autograd.Function):
    """Shapes, FLOPs and saved tensors of a fused kernel, which saves inputs, output and one float32 per query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        group = query.shape[-3] // key.shape[-3]
        keys = key.repeat_interleave(group, dim=-3) if group > 1 else key
        values = value.repeat_interleave(group, dim=-3) if group > 1 else value
        product = query @ keys.transpose(-1, -2) @ values  # [batch head query value_dim]
        # stored as [batch query head value_dim], so that concatenating the heads is a view
        out = torch.empty_like(product.transpose(-2, -3), memory_format=torch.contiguous_format).transpose(-2, -3)
        ctx.save_for_backward(query, key, value, mask, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Any:
        raise NotImplementedError("the meter does not support a backward pass")
