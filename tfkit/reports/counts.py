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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import UsageError
from tfkit.models.base import Model
from tfkit.models.sample import WeightSets, build_sample, used_kinds, weight_sets
from tfkit.models.stack import Stack
from tfkit.reports.meter import Path, Tally
from tfkit.reports.numbered import split_by_size
from tfkit.reports.weigh import heads_of, idle_parameters, is_empty, parts_of, stacks_of, weigh_cache, weigh_training


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
        blueprint = split_by_size(blueprint)
    length = default_length(blueprint) if length is None else length
    check_call(blueprint, length, batch)
    with countable():
        model = build_sample(blueprint, dtype)
        tallies = weigh_training(model, length, batch)
        caches = weigh_cache(model, length, batch)
    account = _Account(blueprint, model, length * batch, tallies, caches)
    rows = tuple(account.rows())
    total = account.total(rows)
    active = total.parameters - account.unused
    return Counts(rows, total, account.trainable, active, length, batch, dtype, blueprint)


def count_parameters(blueprint: Blueprint) -> int:
    """Count the parameters without allocating or running the model; shared and tied parameters count once."""
    with countable():
        blueprint = split_by_size(blueprint)
        model = build_sample(blueprint)
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
        for side, stack in stacks_of(self.model):
            plan: StackPlan = getattr(self.blueprint, side)
            yield from self._single(side, "embedding", stack.embedding, self._within(side, "embedding"))
            yield from self._single(side, "position", stack.position, Tally())
            if (once := self._once(side, stack)) != Tally():
                yield from self._single(side, "once", nn.Module(), once)
            sets = weight_sets(plan)
            for index, kind in enumerate(used_kinds(plan)):
                yield self._layers(plan, kind, (side, "layer", str(index)), stack.layers[2 * index], sets)
            yield from self._single(side, "final_norm", stack.final_norm, self._within(side, "final_norm"))
        for name, head in heads_of(self.model):
            yield from self._single("", name, head, self._within("", name))

    def total(self, rows: tuple[CountedEntry, ...]) -> Cost:
        """Sum the rows. FLOPs per token are rounded only after summation."""
        totals = {name: sum(getattr(row.cost, name) for row in rows) for name in Cost.__dataclass_fields__}
        return Cost(**totals | {"flops_per_token": self._per_token(self._flops)})

    def _single(self, side: str, name: str, module: nn.Module | None, tally: Tally) -> Iterator[CountedEntry]:
        """Yield the row of a module outside the layers, if the module is not empty."""
        if module is None or is_empty(module):
            return
        part = self._part(name, module, tally)
        self._flops += tally.flops
        yield CountedEntry(side, name, part.cost, (part,))

    def _layers(self, plan: StackPlan, kind: int, path: Path, layer: nn.Module, sets: WeightSets) -> CountedEntry:
        """Count all layers of one kind; `sets` has the number of separate copies of shared weights."""
        times, whole = plan.order.count(kind), self._within(*path, "1")
        parts, parameters = [], 0
        for name, module in parts_of(layer).items():
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
        self.unused += uses * idle_parameters(module)
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
