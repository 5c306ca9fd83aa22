"""Shape functions for the most frequent operations on `meta`.

torch computes most meta shapes in Python functions whose first call imports its compiler and sympy, which takes two
seconds. Operations without a shape function in this module still use torch's functions; the results are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

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
