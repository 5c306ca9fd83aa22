"""Memory of a training step: per device, the largest batch, and the advice if it does not fit.

Nothing is allocated: models and batches are fake tensors, which have a shape and a device but no data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from tfkit.components.head.base import TokenHead
from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import TfkitError, UsageError
from tfkit.core.facts import Longest
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.core.output import counted
from tfkit.functional.dropout import Draws, drawing
from tfkit.functional.loss import CHUNK_ROWS, LOGIT_BYTES, SHORT_LOGIT_BYTES
from tfkit.models import Model, build_model
from tfkit.models.build import meta_inputs
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.section_rules import longest_example, undivided
from tfkit.recipe.settings.sections import Train
from tfkit.runs.history import autocast
from tfkit.training.division import piece_of, side_of, units_of
from tfkit.training.initial import freeze
from tfkit.training.objective.base import token_loss
from tfkit.training.objective.completion import CausalLm
from tfkit.training.setup import Task

Compute = Callable[[Model, dict[str, Tensor]], object]


@dataclass(frozen=True)
class Memory:
    """Bytes used by training on one device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int = 0

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.fixed + self.activations


def state_of(trained: nn.Module, settings: Train) -> Memory:
    """Return the memory of `trained` (on `meta`) without activations, by taking an optimizer step on `meta`."""
    weights = list(trained.parameters())
    learned = [weight for weight in weights if weight.requires_grad]
    optimizer = settings.optimizer.build().make(trained, 1.0)
    for weight in learned:
        weight.grad = torch.empty_like(weight)
    optimizer.step()
    trained.zero_grad()
    state = [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    buffers = list(trained.buffers())
    return Memory(_bytes([*weights, *buffers]), _bytes(learned), _bytes(state))


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def activations_of(
    blueprint: Blueprint,
    compute: Compute,
    batch: Mapping[str, Tensor],
    settings: Train,
    device: torch.device,
    whole: int | None = None,
) -> int:
    """Return the bytes that `compute`, a training forward, saves for the backward pass.

    Each storage is counted once; weights are not counted. With recomputation, one layer at a time is counted in full.
    `whole` is the result without recomputation, if known.
    """
    depths = [plan.num_layers for plan in blueprint.stacks()]
    again = [depth if settings.recompute == "all" else min(settings.recompute, depth) for depth in depths]
    kept = _kept(blueprint, compute, batch, (again, settings.precision), device)
    if not any(again):
        return kept
    if whole is None:
        whole = _kept(blueprint, compute, batch, ([0] * len(again), settings.precision), device)
    return kept + (whole - kept) // sum(again)


def _kept(
    blueprint: Blueprint,
    compute: Compute,
    batch: Mapping[str, Tensor],
    how: tuple[Sequence[int], str],
    device: torch.device,
) -> int:
    """Run a forward with fake tensors, and count the bytes of saved tensors.

    `how` holds the number of recomputed layers of each stack, and the precision.
    """
    storages: dict[int, torch.UntypedStorage] = {}  # held so that addresses are not reused

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    model = build_model(blueprint, device="meta").train()
    with FakeTensorMode(allow_non_fake_inputs=True):
        _place(model, device)
        for plan, count in zip(blueprint.stacks(), how[0], strict=True):
            model.stack(plan.side).recompute = count
        own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        inputs = tree_map(lambda one: torch.empty(one.shape, dtype=one.dtype, device=device), dict(batch))
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with drawing(Draws((0,))), autocast(device, how[1]), hooks:
            _ = compute(model, inputs)
    return sum(storage.nbytes() for place, storage in storages.items() if place not in own)


def _place(model: Model, device: torch.device) -> None:
    """Replace the tensors of a model with empty tensors on `device`. Unlike `to_empty`, preserve tied tensors."""
    placed: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                empty = nn.Parameter(torch.empty_like(weight, device=device), weight.requires_grad)
                module._parameters[name] = placed.setdefault(id(weight), empty)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else torch.empty_like(buffer, device=device)


UNKNOWN = 512  # tokens per row if neither the model nor the data limit it
DEVICE = torch.device("cpu")  # on a GPU, about as much is saved for the backward pass
MOST_LOGITS = CHUNK_ROWS  # tokens whose logits the loss computes at once


@dataclass(frozen=True)
class Layout:
    """Settings of `train.recompute` and `train.parallel.shard` with the memory per device and the largest batch."""

    recompute: int | str
    shard: bool
    memory: Memory  # with the activations of one row on each device
    row: int  # bytes per additional row
    length: int  # tokens of a row
    logits: int  # bytes per token of the logits that the loss computes at once
    rows: int = 0  # rows of the largest batch, summed over all devices; 0 if not even one row fits

    def needed(self, rows: int) -> int:
        """Return the bytes that `rows` rows take on one device."""
        return self.memory.total + (rows - 1) * self.row + self.logits * min(rows * self.length, MOST_LOGITS)

    def filled(self, room: int, devices: int) -> Layout:
        """Return the layout with the largest batch for devices of `room` bytes."""
        return replace(self, rows=devices * bisect_right(range(1, room), room, key=self.needed))


@dataclass(frozen=True)
class TrainingPlan:
    """The layouts of a recipe, and the command for the first one that fits."""

    recipe: Recipe
    parameters: int
    length: int
    devices: int
    room: int
    layouts: tuple[Layout, ...]
    source: str  # arguments of `tfkit train`: the recipe with its variants and changes

    @property
    def chosen(self) -> Layout | None:
        """The first layout that fits the recipe's batch, or else at least one row; unsharded layouts come first."""
        whole = [one for one in self.layouts if one.rows * self.length >= self.tokens]
        return next(iter(whole or [one for one in self.layouts if one.rows]), None)

    @property
    def tokens(self) -> int:
        """Tokens of the recipe's batch, padding included."""
        batch = None if self.recipe.data is None else self.recipe.data.batch
        return self.length if batch is None else batch.tokens or (batch.size or 1) * self.length

    @property
    def command(self) -> str:
        """The command that trains on these devices, with gradient accumulation if needed, or "" if nothing fits."""
        if self.chosen is None or self.recipe.data is None:
            return ""
        fewest = -(-self.devices // 8)
        nodes = next(nodes for nodes in range(fewest, self.devices + 1) if self.devices % nodes == 0)
        line = f"torchrun --nnodes {nodes} --nproc-per-node {self.devices // nodes} -m tfkit train {self.source}"
        line = line if self.devices > 1 else f"tfkit train {self.source}"
        recompute = self.chosen.recompute
        sets = [] if recompute == self.recipe.train.recompute else [f"train.recompute={recompute}"]
        sets += ["train.parallel.shard=true"] if self.chosen.shard and not self.recipe.train.parallel.shard else []
        batch, parts = self.recipe.data.batch, -(-self.tokens // (self.chosen.rows * self.length))
        if parts > 1:
            key, value = ("tokens", batch.tokens) if batch.tokens else ("size", batch.size or 1)
            sets += [f"data.batch.{key}={value // parts}", f"train.accumulate={self.recipe.train.accumulate * parts}"]
        return " ".join([line, *(f"--set {one}" for one in sets)])

    def as_data(self) -> dict[str, object]:
        layouts = [{**asdict(one), "tokens": one.rows * self.length} for one in self.layouts]
        facts = {name: getattr(self, name) for name in ("parameters", "length", "devices", "room")}
        facts["command"] = self.command or None
        return {"recipe": self.recipe.name, **facts, "layouts": layouts}


def plan_training(
    recipe: Recipe, devices: int, room: int, length: int | None = None, source: str | None = None
) -> TrainingPlan:
    """Measure the layouts of a recipe on devices with `room` bytes, for rows of `length` tokens, without allocating.

    `source` replaces the name of the recipe in the command. Raise UsageError for settings that cannot be planned.
    """
    _check(recipe.train)
    blueprint, settings = recipe.blueprint(), recipe.train
    model = build_model(blueprint, device="meta")
    freeze(model, settings.freeze)
    count = sum(weight.numel() for weight in model.parameters())
    length = length or _length(recipe, blueprint)
    fixed, logits = _states(model, settings, devices), _logits(model, settings)
    layouts = []
    plain: tuple[int | None, ...] = (None, None)  # bytes of 1 and 2 rows without recomputation
    for recompute in dict.fromkeys([settings.recompute, settings.recompute if settings.compile else "all"]):
        one = settings.model_copy(update={"recompute": recompute})
        kept, two = (_activations(blueprint, one, length, rows, plain[rows - 1]) for rows in (1, 2))
        plain = (kept, two) if recompute == 0 else plain
        for shard, state in fixed.items():
            layout = Layout(recompute, shard, replace(state, activations=kept), two - kept, length, logits)
            layouts.append(layout.filled(room, devices))
    layouts.sort(key=lambda layout: layout.shard)
    return TrainingPlan(recipe, count, length, devices, room, tuple(layouts), source or recipe.name)


def _check(settings: Train) -> None:
    """Raise UsageError for settings that planning does not support."""
    if settings.adapter is not None:
        raise UsageError("train.adapter: planning does not support adapters; leave it out to plan full training")
    if settings.teacher is not None and settings.teacher.is_read:
        text = "planning does not count the teacher's weights and activations; leave it out to plan the rest"
        raise UsageError(f"train.teacher: {text}")


def _states(model: Model, settings: Train, devices: int) -> dict[bool, Memory]:
    """Return the memory of one device without activations: False -> unsharded, True -> sharded, if possible.

    Sharded memory includes what a step gathers: all weights and gradients outside the layers, the weights of two layers
    (the current one and the prefetched one), and the gradients of one layer.
    """
    whole = state_of(model, settings)
    if devices == 1 or next(undivided(settings), ""):
        return {False: whole}
    layers = [sum(weight.nbytes for weight in layer.parameters()) for layer in units_of(model)]
    outside, largest = whole.weights - sum(layers), max(layers, default=0)
    gathered = Memory(outside + 2 * largest, outside + largest, 0)
    parts = [-(-part // devices) for part in (whole.weights, whole.gradients, whole.optimizer)]
    divided = Memory(parts[0] + gathered.weights, parts[1] + gathered.gradients, parts[2])
    return {True: divided} if settings.parallel.shard else {False: whole, True: divided}


def _logits(model: Model, settings: Train) -> int:
    """Return the bytes per token of the logits that the loss computes at once on a GPU and does not keep."""
    head = model.head
    if not isinstance(head, TokenHead) or not head.plain or settings.compile:
        return 0
    return head.output.out_features * (SHORT_LOGIT_BYTES if settings.precision == "bfloat16" else LOGIT_BYTES)


def _length(recipe: Recipe, blueprint: Blueprint) -> int:
    """Return the maximum tokens per row: the objective's block, or the limit of the model or the data."""
    objective = recipe.objective
    block = objective.block if isinstance(objective, CausalLm.Config) else None
    longest: Longest | None = longest_example(blueprint, recipe.data)
    return int(block or (UNKNOWN if longest is None else longest.tokens))


def _activations(blueprint: Blueprint, settings: Train, length: int, rows: int, plain: int | None) -> int:
    """Return the bytes saved for rows of full length, with the loss of every token if the head predicts tokens."""
    sample = build_model(blueprint, device="meta")
    inputs = meta_inputs(sample, length, rows)
    labels = torch.empty(rows * length, dtype=torch.long, device="meta")

    def compute(model: Model, batch: dict[str, Tensor]) -> object:
        targets = batch.pop("labels")
        if not hasattr(model.head, "loss"):
            return model(**batch)
        return token_loss(model, model(**batch, with_heads=False).hidden, {"labels": targets})

    return activations_of(blueprint, compute, {**inputs, "labels": labels}, settings, DEVICE, plain)


KEPT = 16  # upper bound for most layers: vectors of width d_model, and rows of scores, saved per token
MOMENTS = 2  # state values per parameter in most optimizers
ADVICE = (
    "use a smaller data.batch with a larger train.accumulate, or train.recompute: all; `tfkit plan` lists what fits"
)


class OutOfMemory(TfkitError):
    """A training step needs more memory than is available."""


def check_fits(task: Task, processes: int) -> None:
    """Raise OutOfMemory if a step certainly needs more memory than is free. Called before anything is written."""
    feed, device, settings = task.train, task.train.device, task.settings
    free, plan = free_memory(device), feed.plan(0)
    lengths = np.asarray(feed.lengths, dtype=np.int64).reshape(len(feed.items), -1).max(axis=1)
    tokens = feed.config.tokens or (feed.config.size or 1) * lengths.max()
    widths = sum((stack.d_model + lengths.max()) * stack.num_layers for stack in task.model.blueprint.stacks())
    if free is None or 4 * KEPT * tokens * widths < free // 4:  # far below, so that measuring is unnecessary
        return
    largest = int(np.argmax([len(one) * lengths[np.hstack(list(one))].max() for one in plan]))
    batch = piece_of(feed.make(0, largest, plan[largest]), 0, processes).batch
    loss = task.objective.loss
    try:
        kept = activations_of(
            task.model.blueprint, lambda model, one: loss(model, one, training=True), batch, settings, device
        )
    except (RuntimeError, TypeError):  # a part that cannot run on fake tensors
        return
    parts = processes if settings.parallel.shard else 1
    learned = sum(one.nbytes for one in task.trained.parameters() if one.requires_grad) // parts
    needed = (1 + MOMENTS) * learned + kept
    if needed > free:
        rows, time = side_of(batch).shape[:2]
        what = f"a batch of {counted(rows, 'row')} of {counted(time, 'token')} takes {readable_bytes(needed)}"
        raise OutOfMemory(f"{what} besides the weights, but {device} has {readable_bytes(free)}; {ADVICE}")


def explained(device: torch.device, step: int, last: int | None) -> OutOfMemory:
    """Return the error for a failed allocation. `last` is the step of the last complete checkpoint."""
    goes_on = "is complete; --resume continues from it with the same data.batch"
    kept = "" if last is None else f". The checkpoint of step {last:,} {goes_on}"
    return OutOfMemory(f"step {step:,}: out of memory on {device}; {ADVICE}{kept}")
