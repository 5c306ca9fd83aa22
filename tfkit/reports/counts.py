"""Cost of a Blueprint: parameters, FLOPs, activations and decode cache, computed without weights.

A sample of the model (see sample.py) is built on `meta` and run twice, in training mode and with a decode state. The
measured cost of each part is multiplied by the number of equal layers; this includes custom parts.

Conventions. A multiply-add counts as 2 FLOPs. Only matrix products are counted (linear layers, attention,
convolutions), not element-wise operations. FLOPs per token are the FLOPs of a full forward pass at the stated length,
divided by its tokens. In an encoder-decoder, source and target both have that length, and the FLOPs of both sides are
divided by the number of target tokens. Attention is counted for all pairs of tokens, regardless of the mask.
Activations are the tensors that one training forward pass, without the loss, saves for the backward pass. Each storage
is counted once, weights are excluded, attention is fused, and dropout is implemented as on a CPU. The cache is the
decode state after that many tokens (and the same number of source tokens); an encoder has none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.component import Shape
from tfkit.core.errors import UsageError
from tfkit.core.skeleton import NoDraws
from tfkit.models.base import Model
from tfkit.models.build import WeightSets, build_sample, used_kinds, weight_sets
from tfkit.models.layer import Layer
from tfkit.models.stack import Stack
from tfkit.reports import meter
from tfkit.reports.meter import Path, Tally

MOST = 256  # maximum number of layers built for comparison; in deeper stacks, only the first and last ones are compared
Sizes = tuple[tuple[str, tuple[int, ...], bool], ...]


@dataclass(frozen=True)
class _Watched(Shape):
    """A shape that records accesses to `layer`, `stored` and `streams`, including those through its copies."""

    reads: list[bool] = field(default_factory=list, compare=False, repr=False)

    def __getattribute__(self, name: str) -> object:
        if name in ("layer", "stored", "streams") and sys._getframe(1).f_code.co_name not in ("replace", "_replace"):
            super().__getattribute__("reads").append(True)
        return super().__getattribute__(name)


@dataclass(frozen=True)
class _WatchedPlan(StackPlan):
    """A plan whose shapes record accesses to `layer`."""

    reads: list[bool] = field(default_factory=list, compare=False, repr=False)

    def shape(self, layer: int = 0, plan: LayerPlan | None = None, shared: bool = False) -> Shape:
        return _Watched(**vars(super().shape(layer, plan, shared)), reads=self.reads)


def split_by_size(blueprint: Blueprint, runs: bool = False) -> Blueprint:
    """Return `blueprint` with a separate plan for each distinct layer size, and number of streams if it `runs`.

    Raise UsageError if too many layers would have to be built for the comparison.
    """
    encoder, decoder = (plan and _split_plan(plan, runs) for plan in (blueprint.encoder, blueprint.decoder))
    return replace(blueprint, encoder=encoder, decoder=decoder)


def _split_plan(plan: StackPlan, runs: bool) -> StackPlan:
    facts, grows = vars(plan), runs and plan.streams(0) != plan.streams(plan.num_layers)
    for kind in used_kinds(plan):
        watched = _WatchedPlan(**facts)
        _sizes(watched, kind, plan.order.index(kind))
        if watched.reads or grows:
            plan = _split(plan, kind, grows)
    return plan


def _split(plan: StackPlan, kind: int, grows: bool) -> StackPlan:
    """Add a plan for every additional size among the layers of a kind."""
    numbers = [number for number, other in enumerate(plan.order) if other == kind]
    few = numbers if len(numbers) <= MOST else [*numbers[: MOST // 2], *numbers[-MOST // 2 :]]
    owners = {number: _owner(plan, number) for number in few}
    sizes = {owner: _sizes(plan, kind, owner) for owner in dict.fromkeys(owners.values())}
    if grows:
        sizes = {number: (*sizes[owners[number]], ("", (plan.streams(number) or 0,), False)) for number in few}
        owners = dict(zip(few, few, strict=True))
    different = list(dict.fromkeys(sizes.values()))
    if len(different) == 1:
        return plan
    if len(numbers) > MOST:
        raise UsageError(f"a part has a different size in each layer, which is supported only up to {MOST:,} layers")
    kinds = dict(zip(different, [kind, *range(len(plan.layers), len(plan.layers) + len(different) - 1)], strict=True))
    order = list(plan.order)
    for number in numbers:
        order[number] = kinds[sizes[owners[number]]]
    return replace(plan, layers=(*plan.layers, *[plan.layers[kind]] * (len(different) - 1)), order=tuple(order))


def _owner(plan: StackPlan, number: int) -> int:
    """Return the index of the layer that owns the weights: its own, or that of the first layer that shares them."""
    if not plan.layers[plan.order[number]].shared:
        return number
    return next(first for first, entry in enumerate(plan.entries) if entry == plan.entries[number])


def _sizes(plan: StackPlan, kind: int, number: int) -> Sizes:
    """Return the name, shape and requires_grad of a layer's parameters and buffers."""
    with torch.device("meta"), NoDraws():
        layer = Layer(plan.layers[kind], plan, number)
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return tuple((name, tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors)


@dataclass(frozen=True)
class Cost:
    """Cost of a part, a layer or a model; FLOPs per token are rounded."""

    parameters: int = 0
    flops_per_token: int = 0
    activation_bytes: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True)
class PartCount:
    """The cost of a part of a layer, or of a whole embedding, norm or head, with the shapes of its own weights."""

    name: str
    weights: dict[str, tuple[int, ...]]
    cost: Cost


@dataclass(frozen=True)
class CountedEntry:
    """One row of the table: all layers of a kind, or a module outside the layers.

    `cost` covers all `times` layers, with shared weights counted once; `parts` are the parts of a single layer. `kind`
    is an index into the layers of the stack's plan, None outside the layers.
    """

    stack: str  # encoder, decoder, or "" for heads
    name: str  # embedding, position, once (shared by all layers), layer, final_norm, head, heads.<name>
    cost: Cost
    parts: tuple[PartCount, ...]
    times: int = 1
    kind: int | None = None


@dataclass(frozen=True)
class Counts:
    """Cost of a model at a given length, batch size and dtype.

    `active` counts the parameters that one token uses: all except unselected experts. `blueprint` is the architecture
    that was counted, in which layers whose size depends on their index have separate plans; rows refer to its kinds.
    """

    rows: tuple[CountedEntry, ...]
    total: Cost
    trainable: int
    active: int
    length: int
    batch: int
    dtype: torch.dtype
    blueprint: Blueprint

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters in this dtype."""
        return self.total.parameters * self.dtype.itemsize


def count(
    blueprint: Blueprint, length: int | None = None, batch: int = 1, dtype: torch.dtype = torch.float32
) -> Counts:
    """Compute the cost at `length` tokens (None: max_length, else 512) without allocating memory.

    Raise UsageError if the length exceeds max_length or a tensor size is impossible.
    """
    with countable():
        blueprint = split_by_size(blueprint, runs=True)
    length = default_length(blueprint) if length is None else length
    check_call(blueprint, length, batch)
    with countable():
        model = build_sample(blueprint, dtype)
        tallies = meter.weigh_training(model, length, batch)
        caches = meter.weigh_cache(model, length, batch)
    account = _Account(blueprint, model, length * batch, tallies, caches)
    rows = tuple(account.rows())
    total = account.total(rows)
    active = total.parameters - account.unused
    return Counts(rows, total, account.trainable, active, length, batch, dtype, blueprint)


def count_parameters(blueprint: Blueprint) -> int:
    """Count the parameters without allocating or running the model; shared and tied parameters count once."""
    with countable():
        blueprint = split_by_size(blueprint)
        model = build_sample(blueprint, None)
    return sum(row.cost.parameters for row in _Account(blueprint, model).rows())


def default_length(blueprint: Blueprint) -> int:
    """Return the smallest max_length of all stacks, or 512 if none has one."""
    return min((plan.max_length for plan in blueprint.stacks() if plan.max_length), default=512)


def check_call(blueprint: Blueprint, length: int, batch: int) -> None:
    """Raise UsageError for an invalid length or batch size."""
    for name, value in (("length", length), ("batch", batch)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    for plan in blueprint.stacks():
        if plan.max_length is not None and length > plan.max_length:
            raise UsageError(f"length {length:,} exceeds the {plan.side}'s max_length {plan.max_length:,}")


@contextmanager
def countable() -> Iterator[None]:
    """Convert torch's errors for impossible sizes and data-dependent parts to UsageError within the block."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        if "overflow" in reason.lower():
            raise UsageError(f"a tensor of this model would exceed 2^63 bytes: {reason}") from None
        if "meta" in reason.lower():
            raise UsageError(f"a part of this model cannot be measured without actual values: {reason}") from error
        raise


@dataclass
class _Account:
    """Accumulates the cost of all of `blueprint`, extrapolated from the sample `model`."""

    blueprint: Blueprint
    model: Model
    tokens: int = 1
    tallies: dict[Path, Tally] = field(default_factory=dict)
    caches: dict[Path, int] = field(default_factory=dict)
    trainable: int = 0
    unused: int = 0  # parameters that a single token does not use
    _flops: int = 0
    _counted: set[int] = field(default_factory=set)  # id() of weights already counted

    def rows(self) -> Iterator[CountedEntry]:
        """Yield the rows in execution order."""
        for side, stack in meter.stacks_of(self.model):
            plan: StackPlan = getattr(self.blueprint, side)
            yield from self._single(side, "embedding", stack.embedding, self._within(side, "embedding"))
            yield from self._single(side, "position", stack.position, Tally())
            if stack.streams is not None and any(True for _ in stack.streams.parameters()):
                yield from self._single(side, "streams", stack.streams, Tally())
            if (once := self._once(side, stack)) != Tally():
                yield from self._single(side, "once", nn.Module(), once)
            sets = weight_sets(plan)
            for index, kind in enumerate(used_kinds(plan)):
                yield self._layers(plan, kind, (side, "layer", str(index)), stack.layers[2 * index], sets)
            yield from self._single(side, "final_norm", stack.final_norm, self._within(side, "final_norm"))
        for name, head in meter.heads_of(self.model):
            yield from self._single("", name, head, self._within("", name))

    def total(self, rows: tuple[CountedEntry, ...]) -> Cost:
        """Sum the rows. FLOPs per token are rounded only after summation."""
        totals = {name: sum(getattr(row.cost, name) for row in rows) for name in Cost.__dataclass_fields__}
        return Cost(**totals | {"flops_per_token": self._per_token(self._flops)})

    def _single(self, side: str, name: str, module: nn.Module | None, tally: Tally) -> Iterator[CountedEntry]:
        """Yield the row of a module outside the layers, if the module is not empty."""
        if module is None or meter.is_empty(module):
            return
        part = self._part(name, module, tally)
        self._flops += tally.flops
        yield CountedEntry(side, name, part.cost, (part,))

    def _layers(self, plan: StackPlan, kind: int, path: Path, layer: nn.Module, sets: WeightSets) -> CountedEntry:
        """Count all layers of one kind; `sets` has the number of separate copies of shared weights."""
        times, whole = plan.order.count(kind), self._within(*path, "1")
        parts, parameters = [], 0
        for name, module in meter.parts_of(layer).items():
            # operations outside all other parts are attributed to the residual layout
            tally = self.tallies.get((*path, "1"), Tally()) if name == "residual" else self._within(*path, "1", name)
            uses = sets.of(kind, name) if sets.shares(kind, name) else times
            part = self._part(name, module, tally, self.caches.get((*path, name), 0), uses)
            parts.append(part)
            parameters += uses * part.cost.parameters
        self._flops += times * whole.flops
        cache = sum(part.cost.cache_bytes for part in parts)
        cost = Cost(parameters, self._per_token(times * whole.flops), times * whole.kept_bytes, times * cache)
        return CountedEntry(plan.side, "layer", cost, tuple(parts), times, kind)

    def _part(self, name: str, module: nn.Module, tally: Tally, cache: int = 0, uses: int = 1) -> PartCount:
        weights = {key: weight for key, weight in module.named_parameters() if id(weight) not in self._counted}
        self._counted.update(map(id, weights.values()))
        self.unused += uses * meter.idle_parameters(module)
        self.trainable += uses * sum(weight.numel() for weight in weights.values() if weight.requires_grad)
        parameters = sum(weight.numel() for weight in weights.values())
        cost = Cost(parameters, self._per_token(tally.flops), tally.kept_bytes, cache)
        return PartCount(name, {key: tuple(weight.shape) for key, weight in weights.items()}, cost)

    def _once(self, side: str, stack: Stack) -> Tally:
        """Return the work done once per forward pass: masks, biases, and operations of the stack itself."""
        once = self.tallies.get((side,), Tally())
        for index in range(len(stack.layers) // 2):
            once += self._within(side, "layer", str(index), "0") - self._within(side, "layer", str(index), "1")
        return once

    def _within(self, *path: str) -> Tally:
        """Sum the tallies at `path` and all paths below it."""
        return sum((tally for key, tally in self.tallies.items() if key[: len(path)] == path), Tally())

    def _per_token(self, flops: int) -> int:
        return (2 * flops + self.tokens) // (2 * self.tokens)  # rounded half up
