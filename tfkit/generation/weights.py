"""Copies of weights made for decoding: packed for the kernel, joined, or in int8. Derived, and never saved.

A step of decoding multiplies a few rows by every weight. A linear layer packs its weight at each such call, which takes
longer than the product: here it is packed once. Layers that read the same input are one product.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tfkit.components.activation import Activation
from tfkit.components.norm import Norm
from tfkit.components.residual import Residual
from tfkit.components.sublayer import Sublayer
from tfkit.core.errors import UsageError
from tfkit.functional.dropout import Dropout
from tfkit.generation.layers import Kind, Layers, Single, joined
from tfkit.generation.products import Int8, Joined, Packed, Product, can_pack, check_int8
from tfkit.models import Model
from tfkit.models.layer import Layer
from tfkit.models.stack import Stack

Quantize = Literal["int8"]

MOST_ROWS = 64  # of more rows the weight itself is as quick
SMALL = 4 << 20  # bytes that are multiplied in no more time than a call takes: a copy pays for one row too
LARGE = 32 << 20  # bytes that take one row so long that a call more is nothing
MOST_BYTES = 2 << 30  # of float32 copies of one model; what is beyond stays as it is
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SIMPLE = (Norm, Activation, Dropout, Residual, nn.Identity)  # they are called and asked for nothing else
SAMPLED = 64  # elements of a weight that are looked at, to see whether it changed


def check_quantize(value: object) -> None:
    """Raise UsageError for a way to quantize that there is not."""
    if value is not None and value not in get_args(Quantize):
        raise UsageError(f"quantize is {' or '.join(get_args(Quantize))}, got {value!r}")


class Copies:
    """Those of one model's decoder and head, made as they are needed."""

    def __init__(self, model: Model, quantize: Quantize | None) -> None:
        self.quantize = quantize
        self.bytes = 0
        self.lock = threading.Lock()
        linears = _linears(model, (torch.float32,) if quantize is None else FLOATS)
        self.facts = _facts(linears)
        self.single = {linear: Single([linear], self.kinds([linear]), self.make) for linear in linears}
        # what is in force while a model decodes: attributes of its modules, which hide their children
        self.calls = {module: dict(self._calls(module)) for module in _modules(model)}
        self.parts = self._parts(self.calls)
        self.placed: list[tuple[dict[str, Any], str]] = []

    def are_of(self, model: Model) -> bool:
        """Whether the model's parts and weights are still those that the copies were made of, watched as then."""
        return self.parts == self._parts(_modules(model)) and self.facts == _facts(self.single)

    def _parts(self, modules: Iterable[nn.Module]) -> list[tuple[nn.Module, bool, object]]:
        """The modules, whether somebody watches each, and what it computes by (a linear layer by its copy, in use)."""
        return [(module, _is_watched(module), None if module in self.single else module.forward) for module in modules]

    def kinds(self, linears: Sequence[nn.Linear]) -> list[tuple[range, Kind]]:
        """The kinds of copy of their weights, and how many rows each is quickest for."""
        if self.quantize is not None:
            return [(range(1, sys.maxsize), Int8)]
        size = sum(linear.weight.nbytes for linear in linears)
        if size <= SMALL:
            return [(range(1, MOST_ROWS + 1), Packed)]
        one = [(range(1, 2), Joined)] if len(linears) > 1 and size <= LARGE else []
        return [*one, (range(2, MOST_ROWS + 1), Packed)]

    def make(self, linears: Sequence[nn.Linear], kind: Kind) -> Product | None:
        """One copy of the weights, under one another; None where the copies hold too much already."""
        weight, bias = joined(linears)
        with self.lock:
            if self.quantize is None and self.bytes + weight.nbytes > MOST_BYTES:
                return None
            made = kind(weight, bias)
            self.bytes += made.bytes
        return made

    def install(self) -> None:
        """Let the model compute by the copies, and find or call what it has without a detour."""
        for module, calls in self.calls.items():
            attributes = vars(module)
            at_hand = {**module._modules, **calls}  # no parameters: a part may put others in their place for a call
            attributes.update(at_hand)
            self.placed += [(attributes, name) for name in at_hand]

    def remove(self) -> None:
        """Let the model compute by its weights."""
        for attributes, name in self.placed:
            attributes.pop(name, None)
        self.placed.clear()

    def _calls(self, module: nn.Module) -> Iterator[tuple[str, Any]]:
        """The attributes of a module that stand for its children, and for its own forward, while it decodes."""
        if module in self.single:
            yield "forward", self.single[module]
        if isinstance(module, Sublayer) and module.together:
            together = [getattr(module, name) for name in module.together]
            if all(linear in self.single for linear in together):
                yield "project", Layers(together, self.kinds(together), self.make).each
        for name, child in module.named_children():
            if child in self.single or isinstance(child, SIMPLE):
                yield name, self._call(child)
        if isinstance(module, Stack):
            yield "called", [self._call(layer) for layer in module.layers]
        if isinstance(module, Layer):
            yield "called", {name: self._call(child) for name, child in module._modules.items()}

    def _call(self, module: Any) -> Any:
        """What to call for a module, as directly as may be."""
        if module in self.single:
            return self.single[module]
        if not isinstance(module, (*SIMPLE, Layer, Sublayer)) or _is_watched(module):
            return module
        return _same if _does_nothing(module) else module.forward


# the copies of each model, by what they are, and those that are in use, the last in force
_MADE: WeakKeyDictionary[Model, dict[Quantize | None, Copies]] = WeakKeyDictionary()
_USED: WeakKeyDictionary[Model, list[Copies]] = WeakKeyDictionary()
_LOCK = threading.RLock()


@contextlib.contextmanager
def decoding(model: Model, quantize: Quantize | None = None) -> Iterator[None]:
    """Within the block the decoder and its head compute a few rows at a time by copies of their weights.

    Where no copy would be quicker, nothing changes. The copies stay with the model until its weights change; a
    state_dict never has them. `quantize="int8"` computes every number of rows by weights in int8; a block of None
    within keeps to that. Raises UsageError where it is not possible. Of blocks in several threads the last counts.
    """
    within = quantize is None and any(copies.quantize for copies in _USED.get(model, ())[-1:])
    copies = None if within else _copies(model, quantize)
    if copies is None:
        yield
        return
    with _LOCK:
        used = _USED.setdefault(model, [])
        _switch(used, [*used, copies])
    try:
        yield
    finally:
        with _LOCK:
            last = len(used) - 1 - used[::-1].index(copies)
            _switch(used, used[:last] + used[last + 1 :])


def copied_bytes(model: Model) -> int:
    """Bytes of the copies that are kept with a model."""
    return sum(copies.bytes for copies in _MADE.get(model, {}).values())


def forget_copies(model: Model) -> None:
    """Give back the memory of the copies; they are made again when they are needed."""
    with _LOCK:
        _MADE.pop(model, None)


def _switch(used: list[Copies], wanted: list[Copies]) -> None:
    if used:
        used[-1].remove()
    used[:] = wanted
    if used:
        used[-1].install()


def _copies(model: Model, quantize: Quantize | None) -> Copies | None:
    """What is kept of the model's weights as they are now; None where nothing can be gained."""
    weight = next(model.parameters())
    if model.training:
        raise UsageError("weights are copied for a model that decodes, and this one is being trained; say model.eval()")
    if quantize is None and (weight.device.type != "cpu" or torch.is_autocast_enabled("cpu") or not can_pack()):
        return None
    check_quantize(quantize)
    if quantize is not None:
        check_int8(weight)
    with _LOCK:
        made = _MADE.setdefault(model, {})
        if quantize not in made or not made[quantize].are_of(model):
            made[quantize] = Copies(model, quantize)
        return made[quantize]


def _modules(model: Model) -> Iterator[nn.Module]:
    """The modules of what is asked at every step: the last stack and the head that writes."""
    seen = set()
    stack = model.stack(model.blueprint.last.side)
    for module in itertools.chain(stack.modules(), () if model.head is None else model.head.modules()):
        if module not in seen:
            seen.add(module)
            yield module


def _linears(model: Model, types: Collection[torch.dtype]) -> list[nn.Linear]:
    """The plain linear layers among them; one that somebody watches stays as it is, and so do stacked experts."""
    return [
        module
        for module in _modules(model)
        if type(module) is nn.Linear
        and module.weight.dtype in types
        and module.weight.dim() == 2
        and not _is_watched(module)
    ]


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _does_nothing(module: nn.Module) -> bool:
    return type(module) is nn.Identity or (type(module) is Dropout and not (module.training and module.rate))


def _same(x: Tensor) -> Tensor:
    return x


def _facts(linears: Collection[nn.Linear]) -> list[tuple[int, int, float]]:
    """What shows that weights changed: where they are, how often they were written to, and some of what they hold."""
    tensors = [tensor for linear in linears for tensor in (linear.weight, linear.bias) if tensor is not None]
    return [(tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version, _some(tensor)) for tensor in tensors]


def _some(tensor: Tensor) -> float:
    flat = tensor.detach().view(-1)
    sampled = flat[:: max(1, flat.numel() // SAMPLED)]
    # nothing that is not a number equals itself
    return float(torch.dot(sampled.float(), torch.arange(1.0, len(sampled) + 1)).nan_to_num())
