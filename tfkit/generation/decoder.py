"""View of a model for decoding: shared weights, plus copies that are packed for a kernel, concatenated or in int8.

A decoding step multiplies a few rows by every weight. Plain linear layers repack the weight in each call, which takes
longer than the product; here weights are packed once, and packed copies also serve many rows if that is faster. Layers
with a common input are fused into one product. Copies are derived and never saved, and the model is not modified.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfkit.components.activation import TORCH_ACTIVATIONS, Activation
from tfkit.components.attention import MultiHead
from tfkit.components.feedforward import MLP
from tfkit.components.norm import Norm
from tfkit.components.residual import Residual
from tfkit.components.sublayer import Sublayer
from tfkit.core.errors import UsageError
from tfkit.functional.dropout import Dropout
from tfkit.functional.linear import DIRECT, FEW, WAYS, Linear, Product, Way, fastest
from tfkit.functional.view import view
from tfkit.generation.layers import BFloat16, Int8, Layers, check_quantized, copied, join_heads, joined, split_heads
from tfkit.models import Model, ModelOutput
from tfkit.models.layer import Layer
from tfkit.models.stack import Stack

Quantize = Literal["int8", "bfloat16"]

MOST_BYTES = 2 << 30  # maximum total size of a model's float32 copies
WAYS_AT_ONCE = 4  # maximum number of copies of a weight: alone or fused, for one row or several
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# modules that are called directly, as the overhead of Module.__call__ is noticeable in decoding
OWN = (Norm, Activation, Dropout, Residual, nn.Identity, Sublayer, Layer, Stack)
WATCHES_ALL: Callable[[], bool] = nn.modules.module._has_any_global_hook
SAMPLED = 64  # number of elements of each weight in the fingerprint


def check_quantize(value: object) -> None:
    """Raise UsageError for an unknown quantization."""
    if value is not None and value not in get_args(Quantize):
        raise UsageError(f"quantize must be {' or '.join(get_args(Quantize))}, got {value!r}")


class Copies:
    """Weight copies for a model's linear layers, built on demand."""

    def __init__(self, model: Model, quantize: Quantize | None, types: Collection[torch.dtype]) -> None:
        self.quantize = quantize
        self.types = types  # dtypes of copied weights
        self.bytes = 0
        self.lock = threading.Lock()
        linears = _linears(model, types)
        self.facts = _facts(linears)
        self.single = {linear: Layers([linear], self.way, self.make) for linear in linears}
        self.together: dict[tuple[nn.Linear, ...], Layers] = {}
        self.parts = self._parts(model)

    def are_of(self, model: Model) -> bool:
        """True if modules, hooks and weights have not changed since the copies were built."""
        now = _facts(self.single)
        same = self.parts == self._parts(model) and self.facts.places == now.places
        return same and torch.equal(self.facts.sums, now.sums) and torch.equal(self.facts.order, now.order)

    def _parts(self, model: Model) -> list[tuple[nn.Module, bool, object]]:
        """Return all modules, each with a flag for hooks and its forward."""
        return [(module, _is_watched(module), module.forward) for module in model.modules()]

    def way(self, linears: Sequence[nn.Linear], rows: int) -> Way | None:
        """Return the fastest way for a number of rows; None to use the plain weights."""
        if self.quantize is not None:
            return Int8 if self.quantize == "int8" else BFloat16
        if linears[0].weight.device.type != "cpu":
            return None
        width, out = linears[0].weight.shape[1], sum(linear.weight.shape[0] for linear in linears)
        name = fastest(rows, width, out, copies=True)
        plain = name in DIRECT if rows > FEW else name == "mkl" and len(linears) == 1
        return None if plain else WAYS[name]

    def make(self, linears: Sequence[nn.Linear], way: Way) -> Product | None:
        """Prepare a way for the concatenated weights; return None if it would exceed the memory limit."""
        weight, bias = joined(linears)
        with self.lock:
            if self.quantize is None and self.bytes + weight.nbytes > MOST_BYTES:
                return None
            copy = way(weight, bias)
            self.bytes += copy.bytes or (weight.nbytes if len(linears) > 1 else 0)
        return copy

    def view_of(self, model: Model) -> Any:
        """Return a view of the model that computes with the copies."""
        made = self._view(model, {})
        if copies_of(model) is not None:
            del vars(made)["forward"], vars(made)["train"]
        return made

    def _view(self, module: nn.Module, views: dict[nn.Module, nn.Module]) -> nn.Module:
        """Return the view of a submodule, cached in `views`."""
        if module in views:
            return views[module]
        if module in self.single:
            views[module] = copied(self.single[module])
            return views[module]
        children = {
            name: None if child is None else self._view(child, views) for name, child in module._modules.items()
        }
        if isinstance(module, MLP) and type(module).forward is MLP.forward and _is_plain(module):
            children |= self._activated(module, children["activation"])
        result = views[module] = view(module, children)
        if _is_plain(module):
            kind: object = type(module)
            result.__class__ = _called_directly(kind)
        if isinstance(module, Sublayer) and getattr(module.apply_fused, "__func__", None) is Sublayer.apply_fused:
            together: list[Any] = [getattr(module, name, None) for name in module.fused]
            if together and all(linear in self.single for linear in together):
                vars(result)["apply_fused"] = self._layers(tuple(together)).each
        return result

    def _activated(self, module: MLP, activation: nn.Module | None) -> dict[str, nn.Module | None]:
        """Return the views of a feed-forward layer that apply its activation within the product, if possible."""
        own, up = module.activation, module.up
        name = own.part_name if type(own) in TORCH_ACTIVATIONS.values() and _is_plain(own) else ""
        if activation is None or up not in self.single or self.quantize is not None:
            return {}
        first = copied(self.single[up], activation, name)
        return {"up": first, "activation": _called_directly(nn.Identity)()} if hasattr(first, "post") else {}

    def _layers(self, linears: tuple[nn.Linear, ...]) -> Layers:
        """Return the fused layers, which have a common input."""
        if linears not in self.together:
            self.together[linears] = Layers(linears, self.way, self.make)
        return self.together[linears]


class StepDecoder:
    """A model in eval mode whose linear layers compute small batches with copies of their weights.

    `quantize` uses int8 or bfloat16 weights for any number of rows. Threads may share a decoder, and a model may have
    several decoders. Copies are built on demand, and rebuilt after the weights have changed.
    """

    def __init__(self, model: Model, quantize: Quantize | None = None) -> None:
        check_quantize(quantize)
        self.model = model
        self.quantize = quantize
        self._copies: Copies | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[StepDecoder], tuple[Model, Quantize | None]]:
        """Copy and pickle only the model, as weight copies are derived."""
        return StepDecoder, (self.model, self.quantize)

    @property
    def bytes(self) -> int:
        """Size of the weight copies in bytes."""
        return 0 if self._copies is None else self._copies.bytes

    @property
    def has_room(self) -> bool:
        """True if all copies fit in MOST_BYTES; otherwise, the layers that have one depend on earlier calls."""
        return WAYS_AT_ONCE * sum(linear.weight.nbytes for linear in _linears(self.model, FLOATS)) <= MOST_BYTES

    def current(self) -> Model:
        """Return a view of the model with its current weights.

        Raise UsageError if the model is in training mode or cannot be quantized.
        """
        if self.model.training:
            raise UsageError("decoding needs a model in evaluation mode; call model.eval()")
        types = self._types()
        with self._lock:
            if self._copies is None or self._copies.types != types or not self._copies.are_of(self.model):
                self._copies = Copies(self.model, self.quantize, types)
            copies = self._copies
        current: Model = copies.view_of(self.model)
        return current

    def _types(self) -> tuple[torch.dtype, ...]:
        """Return the weight dtypes for which a copy is faster."""
        weight = next(self.model.parameters())
        if self.quantize is not None:
            check_quantized(weight, self.quantize)
            return FLOATS
        return (torch.float32,) if weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu") else ()


class PackedCall:
    """Forward of a model that computes with packed weights when no gradients are recorded.

    The weights are checked at each call, and packed again after they have changed.
    """

    def __init__(self, model: Model) -> None:
        self.decoder = StepDecoder(model)

    def compute(self, *inputs: object, **named: object) -> ModelOutput:
        """Compute with packed weights, or plainly where gradients are recorded or the weights are substituted."""
        model = self.decoder.model
        plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_tracing()
        plain = plain or type(next(model.parameters())) is Tensor or bool(torch._C._functorch.peek_interpreter_stack())
        if not plain:
            _check_packable(model)
        out: ModelOutput = type(model).forward(model if plain else self.decoder.current(), *inputs, **named)
        return out

    def train(self, mode: bool = True) -> Model:
        """Keep the model in evaluation mode. Raise UsageError for training mode."""
        if mode:
            raise UsageError("a model built with packed=True cannot be trained; build it without packed")
        return nn.Module.train(self.decoder.model, False)


def _check_packable(model: Model) -> None:
    weight = next(model.parameters())
    kind, device = str(weight.dtype).removeprefix("torch."), weight.device.type
    if type(weight) is not nn.Parameter:
        raise UsageError(f"packed=True needs whole weights, but these are of type {type(weight).__name__}")
    if device != "cpu" or weight.dtype != torch.float32:
        raise UsageError(f"packed=True needs float32 weights on a CPU, but these are {kind} on {device}")


def pack(model: Model) -> Model:
    """Switch the model to evaluation mode and let its calls without gradients compute with packed weights.

    Raise UsageError unless it has float32 weights on a CPU.
    """
    _check_packable(model)
    own = PackedCall(model.eval())
    vars(model).update(forward=own.compute, train=own.train)
    return model


def copies_of(model: Model) -> StepDecoder | None:
    """Return the decoder that holds the copies of a packed model; None for another model."""
    own = getattr(vars(model).get("forward"), "__self__", None)
    return own.decoder if isinstance(own, PackedCall) else None


def _linears(model: Model, types: Collection[torch.dtype]) -> list[nn.Linear]:
    """Return the linear layers that can be copied: no stacked experts, and no hooks."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and type(module) in (nn.Linear, Linear)
        and module.weight.dtype in types
        and module.weight.dim() == 2
        and (module.bias is None or module.bias.shape == module.weight.shape[:1])
        and not _is_watched(module)
    ]


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks) or WATCHES_ALL()


def _is_plain(module: nn.Module) -> bool:
    """True if calling the module only runs its class's forward."""
    own = "forward" in vars(module) or type(module).__call__ is not nn.Module.__call__
    return isinstance(module, OWN) and not own and not _is_watched(module)


@functools.cache
def _called_directly(kind: type[nn.Module]) -> type[nn.Module]:
    """Derive a class whose call is its forward, bypassing torch's hook machinery."""
    own: dict[str, object] = {"__call__": kind.forward, "__doc__": kind.__doc__}
    if issubclass(kind, MultiHead):
        faster: dict[str, Any] = {"split_heads": split_heads, "join_heads": join_heads}
        own |= {name: staticmethod(one) for name, one in faster.items() if getattr(kind, name) is vars(MultiHead)[name]}
    return type(kind.__name__, (kind,), own)


class Fingerprint(NamedTuple):
    """Fingerprint of weights: addresses and versions, the sum of the bits of each row, and sampled elements.

    It misses only elements that changed places within a row, between samples, by a write that torch does not count.
    """

    places: list[tuple[int, int]]
    sums: Tensor
    order: Tensor


def _facts(linears: Collection[nn.Linear]) -> Fingerprint:
    tensors = [tensor for linear in linears for tensor in (linear.weight, linear.bias) if tensor is not None]
    places = [(tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version) for tensor in tensors]
    if not tensors:
        return Fingerprint(places, torch.empty(0), torch.empty(0))
    sums = torch.cat([_sums(tensor.detach()) for tensor in tensors])
    sampled = torch.stack([_sampled(tensor.detach().reshape(-1)) for tensor in tensors])
    order = (sampled @ torch.arange(1.0, SAMPLED + 1)).nan_to_num()  # NaN never compares equal
    return Fingerprint(places, sums, order)


def _sums(tensor: Tensor) -> Tensor:
    """Sum the bits of each row, 64 at a time, or of the whole weight if its rows are not a multiple of that."""
    bits = _bits(tensor.reshape(-1))
    if tensor.dim() == 1:
        return bits
    rows = tensor.shape[0] if len(bits) % tensor.shape[0] == 0 else 1
    return bits.view(rows, -1).sum(dim=1)


def _bits(flat: Tensor) -> Tensor:
    """View the elements as integers of 64 bits, padded with zeros."""
    size = 8 // flat.element_size()
    if flat.storage_offset() % size or len(flat) % size:
        flat = F.pad(flat, (0, -len(flat) % size))
    return flat.view(torch.int64)


def _sampled(flat: Tensor) -> Tensor:
    """Return SAMPLED elements at equal distances, padded with zeros."""
    some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].float()
    return some if len(some) == SAMPLED else F.pad(some, (0, SAMPLED - len(some)))
