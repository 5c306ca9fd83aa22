"""What a Blueprint costs: parameters, FLOPs, activations and decode cache, without weights.

A sample of the model (see sample.py) is built on the `meta` device, run once in training mode and once with a decode
state, weighed by part, and multiplied by how many layers equal each. So a custom part counts rightly too.

Conventions. A multiply-add is 2 FLOPs; products count (linear layers, attention, convolutions), element-wise work does
not. FLOPs per token are those of a whole forward at the stated length, divided by its tokens; in an encoder-decoder
source and target both have that length, and the FLOPs of both sides are divided by the tokens of one. Attention counts
the whole square, whatever its mask hides. Activations are what one forward in training keeps for the backward pass
before any loss: every storage once, weights left out, attention as a fused kernel keeps it, dropout as a CPU does. The
cache is what decoding holds after that many tokens (with a source of as many); an encoder has none.
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
from tfkit.reports.numbered import told_apart
from tfkit.reports.weigh import heads_of, idle_parameters, is_empty, parts_of, stacks_of, weigh_cache, weigh_training


@dataclass(frozen=True)
class Cost:
    """What something costs. FLOPs per token are rounded to whole ones."""

    parameters: int = 0
    flops_per_token: int = 0
    activation_bytes: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True)
class PartCount:
    """One part of one layer, or an embedding, a norm, a head as a whole, with the shapes of its own weights."""

    name: str
    weights: dict[str, tuple[int, ...]]
    cost: Cost


@dataclass(frozen=True)
class CountedEntry:
    """One entry of the account: all layers that equal each other, or what stands outside the layers.

    `cost` is that of all `times` layers together, with weights that they share counted once; `parts` are those of one
    of them. `kind` is the layers' index in the stack's plan, None outside the layers.
    """

    stack: str  # encoder, decoder, or empty for heads
    name: str  # embedding, position, once (what the stack makes for all layers), layer, final_norm, head, heads.<name>
    cost: Cost
    parts: tuple[PartCount, ...]
    times: int = 1
    kind: int | None = None


@dataclass(frozen=True)
class Counts:
    """The account of a model at a length, a batch and a dtype; `total` is its bottom line.

    `active` are the parameters that one token passes: all, but for experts that it does not choose. `blueprint` is
    what was counted, layers told apart whose parts size themselves by the layer's number; rows name its kinds.
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
    """The account of `blueprint` at `length` tokens (None: max_length, or 512 without one); nothing is allocated.

    Raises UsageError for a length beyond max_length, and for sizes that no tensor can have.
    """
    with countable():
        blueprint = told_apart(blueprint)
    length = default_length(blueprint) if length is None else length
    check_call(blueprint, length, batch)
    with countable():
        model = build_sample(blueprint, dtype)
        tallies = weigh_training(model, length, batch)
        caches = weigh_cache(model, length, batch)
    account = _Account(blueprint, model, length * batch, tallies, caches)
    rows = tuple(account.rows())
    total = account.total(rows)
    active = total.parameters - account.idle
    return Counts(rows, total, account.trainable, active, length, batch, dtype, blueprint)


def count_parameters(blueprint: Blueprint) -> int:
    """The number of parameters, shared and tied ones once; nothing is allocated and nothing is run."""
    with countable():
        blueprint = told_apart(blueprint)
        model = build_sample(blueprint)
    return sum(row.cost.parameters for row in _Account(blueprint, model).rows())


def default_length(blueprint: Blueprint) -> int:
    """The longest sequence that every stack takes, or 512 where none sets a bound."""
    return min((plan.max_length for plan in blueprint.stacks() if plan.max_length), default=512)


def check_call(blueprint: Blueprint, length: int, batch: int) -> None:
    """Raise UsageError for a length or a batch that this model cannot be called with."""
    for name, value in (("length", length), ("batch", batch)):
        if value < 1:
            raise UsageError(f"{name} is a whole number from 1, got {value}")
    for plan in blueprint.stacks():
        if plan.max_length is not None and length > plan.max_length:
            raise UsageError(f"length {length:,} is beyond the {plan.side}'s max_length {plan.max_length:,}")


@contextmanager
def countable() -> Iterator[None]:
    """Turn what torch says of impossible sizes, and of parts that need real numbers, into a UsageError."""
    try:
        yield
    except (RuntimeError, TypeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        if "overflow" in reason.lower():
            raise UsageError(f"a tensor of this model would exceed 2^63 bytes: {reason}") from None
        if "meta" in reason.lower():
            raise UsageError(f"a part of this model cannot be counted without real numbers: {reason}") from error
        raise


@dataclass
class _Account:
    """Adds up what was weighed in the sample `model` to what all of `blueprint` costs."""

    blueprint: Blueprint
    model: Model
    tokens: int = 1
    tallies: dict[Path, Tally] = field(default_factory=dict)
    caches: dict[Path, int] = field(default_factory=dict)
    trainable: int = 0
    idle: int = 0  # parameters that a token does not pass
    _flops: int = 0
    _counted: set[int] = field(default_factory=set)  # weights

    def rows(self) -> Iterator[CountedEntry]:
        """The rows in the order of computation."""
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
        """The bottom line; FLOPs per token are rounded once, here."""
        costs = [row.cost for row in rows]
        return Cost(
            sum(cost.parameters for cost in costs),
            self._per_token(self._flops),
            sum(cost.activation_bytes for cost in costs),
            sum(cost.cache_bytes for cost in costs),
        )

    def _single(self, side: str, name: str, module: nn.Module | None, tally: Tally) -> Iterator[CountedEntry]:
        """The row of something outside the layers, if there is anything to it."""
        if module is None or is_empty(module):
            return
        part = self._part(name, module, tally)
        self._flops += tally.flops
        yield CountedEntry(side, name, part.cost, (part,))

    def _layers(self, plan: StackPlan, kind: int, path: Path, layer: nn.Module, sets: WeightSets) -> CountedEntry:
        """All layers of one kind; `sets` says how often there are weights of what they share."""
        times, whole = plan.order.count(kind), self._within(*path, "1")
        parts, parameters = [], 0
        for name, module in parts_of(layer).items():
            # the residual layout has what runs in the layer outside the other parts
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
        self.idle += uses * idle_parameters(module)
        self.trainable += uses * sum(weight.numel() for weight in weights.values() if weight.requires_grad)
        parameters = sum(weight.numel() for weight in weights.values())
        cost = Cost(parameters, self._per_token(tally.flops), tally.kept_bytes, cache)
        return PartCount(name, {key: tuple(weight.shape) for key, weight in weights.items()}, cost)

    def _once(self, side: str, stack: Stack) -> Tally:
        """What runs once a forward for all layers: masks, biases, and whatever else the stack does itself."""
        once = self.tallies.get((side,), Tally())
        for index in range(len(stack.layers) // 2):
            once += self._within(side, "layer", str(index), "0") - self._within(side, "layer", str(index), "1")
        return once

    def _within(self, *path: str) -> Tally:
        """Everything tallied at `path` and below."""
        return sum((tally for key, tally in self.tallies.items() if key[: len(path)] == path), Tally())

    def _per_token(self, flops: int) -> int:
        return (2 * flops + self.tokens) // (2 * self.tokens)  # rounded half up
