"""Tools for tensors: views of modules, buffers with spare capacity, fast top-k, and promotion to float32.

The largest elements are in the blocks with the largest maxima, or after the last whole block. Computing block maxima is
much faster than a full top-k: for the logits of a vocabulary, this takes a quarter of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def view(module: nn.Module, children: Mapping[str, nn.Module | None]) -> nn.Module:
    """Return a view with the attributes, tensors and hooks of `module`, but other children."""
    made: nn.Module = object.__new__(type(module))
    # set as attributes too, because the lookup through _modules is slower
    vars(made).update({**vars(module), "_modules": dict(children), **children})
    return made


def with_tensors(module: nn.Module, tensors: Mapping[nn.Parameter, Tensor]) -> nn.Module:
    """Return a view of a module and its submodules with some parameters replaced.

    Unlike `functional_call`, this never writes to the module, which other threads may be using.
    """
    return _with_tensors(module, tensors, {})


def _with_tensors(
    module: nn.Module, tensors: Mapping[nn.Parameter, Tensor], made: dict[nn.Module, nn.Module]
) -> nn.Module:
    if module not in made:
        children = {
            name: None if child is None else _with_tensors(child, tensors, made)
            for name, child in module._modules.items()
        }
        found = made[module] = view(module, children)
        own = {
            name: weight if weight is None else tensors.get(weight, weight)
            for name, weight in module._parameters.items()
        }
        vars(found)["_parameters"] = own
    return made[module]


SLACK = 64  # number of expired elements that are retained for `rewind`
SPARE = 64  # minimum spare capacity of a new buffer
IN_PLACE = 1 << 22  # buffers with more elements are reordered in place, because allocation would be slower
AHEAD = 4096  # maximum number of elements reserved in advance, because few texts reach their limit


class GrowingBuffers:
    """Tensors that grow together along `axis`, with amortized copying.

    With `keeps`, only that many elements before the newest are retained. Positions still count from the first element
    ever appended.
    """

    def __init__(self, axis: int, keeps: int | None = None) -> None:
        self.axis = axis
        self.keeps = keeps
        self.length = 0
        self._origin = 0  # position of the first element in the buffers
        self._reserved = 0
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """Size of the first axis, or 0 while empty."""
        return self._buffers[0].shape[0] if self._buffers else 0

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append tensors of equal length. Return the retained elements followed by the new ones."""
        count = new[0].shape[self.axis]
        first = 0 if self.keeps is None else self._first(self.length)
        end = self.length + count
        if not self._buffers or end - self._origin > self._buffers[0].shape[self.axis]:
            return self._with_room(new, first, end)
        at, start, kept = self.length - self._origin, first - self._origin, []
        for buffer, tensor in zip(self._buffers, new, strict=True):
            buffer.narrow(self.axis, at, count).copy_(tensor)
            kept.append(buffer.narrow(self.axis, start, end - first))
        self.length = end
        return tuple(kept)

    def held(self) -> tuple[Tensor, ...]:
        """Return the retained elements, or () if nothing was appended."""
        return self._between(self._first(self.length), self.length)

    def reserve(self, length: int) -> None:
        """Announce that `length` elements will be appended, so that the next buffer is large enough."""
        self._reserved = length

    def reorder(self, rows: Tensor) -> None:
        """Keep row `rows[i]` as row i; `rows` is [new_rows]."""
        if not self._buffers:
            return
        used = self.length - self._origin
        self._buffers = tuple([self._reordered(buffer, rows, used) for buffer in self._buffers])

    def _reordered(self, buffer: Tensor, rows: Tensor, used: int) -> Tensor:
        held = buffer.narrow(self.axis, 0, used)
        room = min(buffer.shape[self.axis], used + SPARE)
        shape = [len(rows), *buffer.shape[1 : self.axis], room, *buffer.shape[self.axis + 1 :]]
        if len(rows) == buffer.shape[0] and math.prod(shape) > IN_PLACE:
            held.copy_(held.index_select(0, rows))
            return buffer
        made = buffer.new_empty(shape)
        if held.requires_grad:
            made.narrow(self.axis, 0, used).copy_(held.index_select(0, rows))
        else:
            torch.index_select(held, 0, rows, out=made.narrow(self.axis, 0, used))
        return made

    def earliest(self) -> int:
        """Return the shortest length that `rewind` supports."""
        return 0 if self._origin == 0 or self.keeps is None else self._origin + self.keeps

    def rewind(self, length: int) -> None:
        """Truncate to the first `length` elements, at least `earliest()`."""
        self.length = min(self.length, length)

    def bytes(self) -> int:
        """Return the size of `held()` in bytes, without spare capacity and expired elements."""
        return sum(part.numel() * part.element_size() for part in self.held())

    def _first(self, length: int) -> int:
        """Return the first position that elements after `length` need."""
        return 0 if self.keeps is None else max(0, length - self.keeps)

    def _between(self, first: int, end: int) -> tuple[Tensor, ...]:
        start, count = first - self._origin, end - first
        if not start and self._buffers and self._buffers[0].shape[self.axis] == count:
            return self._buffers  # no spare capacity, as in a memory
        return tuple([buffer.narrow(self.axis, start, count) for buffer in self._buffers])  # a generator is slower

    def _with_room(self, new: tuple[Tensor, ...], first: int, end: int) -> tuple[Tensor, ...]:
        """Append to full buffers, after dropping expired elements or reallocating."""
        origin = max(self._origin, self._first(end - SLACK))
        if origin <= first:
            self._moved(new, origin, end)
            return self._between(first, end)
        # more new elements than the buffers retain
        past = self._between(first, self.length)
        whole = tuple(torch.cat(both, dim=self.axis) for both in zip(past, new, strict=True)) if past else new
        kept = end - origin
        self._origin = self.length = origin
        self._moved(tuple(tensor.narrow(self.axis, origin - first, kept) for tensor in whole), origin, end)
        return whole

    def _moved(self, new: tuple[Tensor, ...], origin: int, end: int) -> None:
        """Move the contents so that the buffers start at position `origin`, and append the new elements."""
        past, capacity = self.length - origin, self._capacity(origin, end)
        held = self._between(origin, self.length)
        made = []
        for number, tensor in enumerate(new):
            buffer = self._buffers[number] if self._buffers else None
            if buffer is None or buffer.shape[self.axis] < end - origin:
                shape = [*tensor.shape[: self.axis], capacity, *tensor.shape[self.axis + 1 :]]
                buffer = tensor.new_empty(shape)
            if past:
                own = buffer is self._buffers[number]  # overlapping ranges must not be copied in place
                buffer.narrow(self.axis, 0, past).copy_(held[number].clone() if own else held[number])
            buffer.narrow(self.axis, past, end - origin - past).copy_(tensor)
            made.append(buffer)
        self._buffers, self._origin, self.length = tuple(made), origin, end

    def _capacity(self, origin: int, end: int) -> int:
        """Return the new capacity: the reserved length, or twice the current one, limited to the window plus slack."""
        kept = end - origin
        # the first buffer has no spare capacity, because a memory is appended only once
        capacity = 2 * kept if self._buffers else kept
        if self._reserved:
            capacity = max(capacity if self._reserved < end else kept, min(self._reserved - origin, kept + AHEAD))
        if self.keeps is not None:
            capacity = min(capacity, self.keeps + SLACK + max(SPARE, self.keeps // 4))
        return max(kept, capacity)


BLOCK = 64  # elements in a block
WIDE = 1 << 14  # narrower rows are searched directly


def argmax(x: Tensor) -> Tensor:
    """Return the index [rows] of the largest element in each row of x [rows width]. Ties go to the first element."""
    places = _candidates(x, 1)
    if places is None:
        return x.argmax(dim=1)
    return places.gather(1, x.gather(1, places).argmax(dim=1, keepdim=True))[:, 0]


def topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest elements of each row of x [rows width] and their indices, [rows count], descending."""
    places = _candidates(x, count)
    if places is None:
        return torch.topk(x, count)
    values, among = x.gather(1, places).topk(count)
    return values, places.gather(1, among)


def _candidates(x: Tensor, count: int) -> Tensor | None:
    """Return indices [rows n] that include the `count` largest elements, or None if a direct search is as fast."""
    rows, width = x.shape
    blocks = width // BLOCK
    if x.device.type != "cpu" or width < WIDE or 2 * count > blocks:
        return None
    whole = blocks * BLOCK
    tops = x[:, :whole].reshape(rows, blocks, BLOCK).amax(dim=2)
    best = tops.argmax(dim=1, keepdim=True) if count == 1 else tops.topk(count).indices
    within = (best[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    return torch.cat((within, torch.arange(whole, width).expand(rows, -1)), dim=1)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def wide(x: Tensor) -> Tensor:
    """Convert `x` to float32, unless it is float64."""
    return x.to(wide_dtype(x.dtype))
