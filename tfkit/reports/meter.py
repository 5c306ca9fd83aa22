"""Measurement of a forward pass by module: shapes, FLOPs, and bytes saved for the backward pass.

torch computes most meta shapes in Python functions whose first call imports its compiler and sympy, which takes two
seconds. Operations without a shape function in this module still use torch's functions; the results are equal.

Paths identify the parts: (side, "embedding"), (side, "layer", kind, turn, part), ("", head). `kind` numbers the
distinct layers; `turn` is "0" or "1", because the sample has two layers of each kind.
"""

# Axes: batch, head, query (tokens), value_dim (channels of a value head).

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tfkit.core.slots import SublayerFacts
from tfkit.models.base import Model
from tfkit.models.build import meta_inputs
from tfkit.models.stack import Stack

aten = torch.ops.aten
# operations whose result has the dtype of integer and boolean inputs
ARITHMETIC = {aten.add, aten.sub, aten.mul, aten.bitwise_and, aten.bitwise_or, aten.bitwise_not}
COMPARISONS = {aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge}


def stand_in(function: Any, args: Sequence[Any], options: Mapping[str, Any]) -> object:
    """Return an empty tensor with the shape and dtype of the result, or None if the operation is not supported."""
    known = KNOWN.get(function)
    if known is not None:
        return known(*args, **options)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if torch.Tag.pointwise not in function.tags or not tensors or "out" in options or "dtype" in options:
        return None
    if function._schema.is_mutable:
        return args[0] if function._schema.name.endswith("_") else None
    return _pointwise(function, tensors)


def _pointwise(function: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """Return the result of an element-wise operation, or None if it promotes dtypes other than bool."""
    kinds = {tensor.dtype for tensor in tensors} - {torch.bool} or {torch.bool}
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    shape = _broadcast([tensor.shape for tensor in tensors])
    if function._overloadpacket in COMPARISONS:
        return tensors[0].new_empty(shape, dtype=torch.bool)
    if kind.is_floating_point or function._overloadpacket in ARITHMETIC:
        return tensors[0].new_empty(shape, dtype=kind)
    return None


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return [next((size for size in sizes if size != 1), 1) for sizes in columns][::-1]


def _rows(table: Tensor, ids: Tensor, *_: object, **__: object) -> Tensor:
    return table.new_empty((*ids.shape, table.shape[-1]))


def _numbers(start: int, end: int, **options: Any) -> Tensor:
    return torch.empty(max(0, end - start), dtype=options.get("dtype") or torch.int64, device=options.get("device"))


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return tensors[0].new_empty(shape)


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, len(tensors))
    return tensors[0].new_empty(shape)


def _mean(x: Tensor, dims: Sequence[int], keepdim: bool = False, **_: object) -> Tensor:
    reduced = {dim % x.dim() for dim in dims}
    sizes = [1 if dim in reduced else size for dim, size in enumerate(x.shape)]
    return x.new_empty(sizes if keepdim else [size for dim, size in enumerate(x.shape) if dim not in reduced])


def _layer_norm(x: Tensor, shape: Sequence[int], *_: object) -> tuple[Tensor, Tensor, Tensor]:
    rows = [*x.shape[: -len(shape)], *(1 for _ in shape)]
    return x.new_empty(x.shape), x.new_empty(rows), x.new_empty(rows)


KNOWN: dict[Any, Callable[..., Any]] = {
    aten.embedding.default: _rows,
    aten.arange.start: _numbers,
    aten.arange.start_step: lambda start, end, step=1, **options: _numbers(0, -(-(end - start) // step), **options),
    aten.empty_like.default: lambda x, **_: x.new_empty(x.shape),
    aten.mm.default: lambda left, right: left.new_empty(left.shape[0], right.shape[1]),
    aten.bmm.default: lambda left, right: left.new_empty(*left.shape[:2], right.shape[2]),
    aten.addmm.default: lambda _, left, right: left.new_empty(left.shape[0], right.shape[1]),
    aten.masked_fill.Scalar: lambda x, mask, value: x.new_empty(_broadcast([x.shape, mask.shape])),
    aten.cat.default: _joined,
    aten.arange.default: lambda end, **options: _numbers(0, end, **options),
    aten.native_layer_norm.default: _layer_norm,
    aten.stack.default: _stacked,
    aten._softmax.default: lambda x, *_: x.new_empty(x.shape),
    aten.mean.dim: _mean,
    aten.any.dim: lambda x, dim, keepdim=False: _mean(x, [dim], keepdim),
}

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
        from torch.utils.flop_counter import flop_registry  # slow: imports triton

        super().__init__()  # type: ignore[no-untyped-call]
        self._report, self._formulas = report, {**_MORE_FLOPS, **flop_registry}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # if True, torch's compiler would be imported, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        out = stand_in(func, args, kwargs)
        if out is None:
            out = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
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


def _next_turn(kind: int, turns: Iterator[str]) -> Path:
    return "layer", str(kind), next(turns)


def weigh_training(model: Model, length: int, batch: int) -> dict[Path, Tally]:
    """Tally a forward pass in training mode by part."""
    model.train()
    meter = Meter(model)
    for side, stack in stacks_of(model):
        meter.watch(stack, (side,))
        meter.watch(stack.embedding, ("embedding",))
        meter.watch(stack.final_norm, ("final_norm",))
        for kind, layer in enumerate(stack.layers[::2]):
            meter.watch(layer, partial(_next_turn, kind, iter("01")))
            for name, part in parts_of(layer).items():
                if name != "residual":  # the residual layout's forward calls all other parts
                    meter.watch(part, (name,))
    for name, head in heads_of(model):
        meter.watch(head, ("", name))
    with meter:
        model(**meta_inputs(model, length, batch))
    return meter.tallies


def weigh_cache(model: Model, length: int, batch: int) -> dict[Path, int]:
    """Return the bytes of the decode state after `length` tokens, by (side, "layer", kind, part)."""
    side = model.blueprint.last.side
    if not model.caches:
        return {}
    state = model.eval().new_state()
    with torch.no_grad(), Meter(model):
        model(**meta_inputs(model, length, batch), state=state, with_heads=False)
    return {
        (side, "layer", str(kind), name): held.bytes()
        for kind, layer in enumerate(state.layers[::2])
        for name, held in layer.items()
    }


def stacks_of(model: Model) -> list[tuple[str, Stack]]:
    """Return the stacks with their sides, in execution order."""
    return [(plan.side, model.stack(plan.side)) for plan in model.blueprint.stacks()]


def heads_of(model: Model) -> list[tuple[str, nn.Module]]:
    """Return the heads with their names: `head`, `heads.<name>`."""
    own = [] if model.head is None else [("head", model.head)]
    return own + [(f"heads.{name}", head) for name, head in model.heads.items()]


def parts_of(layer: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a layer by name; dropout belongs to the residual layout."""
    return {name: part for name, part in layer.named_children() if name != "dropout" and not is_empty(part)}


def idle_parameters(module: nn.Module) -> int:
    """Count the parameters that a single token does not use, according to the parts."""
    return sum(part.idle_parameters() for part in module.modules() if isinstance(part, SublayerFacts))


def is_empty(module: nn.Module) -> bool:
    """True for identity modules and empty module lists."""
    return isinstance(module, nn.Identity) or (isinstance(module, nn.ModuleList) and len(module) == 0)
