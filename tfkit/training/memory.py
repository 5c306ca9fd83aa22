"""Memory of a training step: weights, gradients, optimizer state, and activations saved for the backward pass.

Nothing is allocated: models and batches are fake tensors, which have a shape and a device but no data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tfkit.core.blueprint import Blueprint
from tfkit.functional.dropout import Draws, drawing
from tfkit.models import Model, build_model
from tfkit.recipe.settings.sections import Train
from tfkit.training.device import autocast

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
        inputs = {name: torch.empty(one.shape, dtype=one.dtype, device=device) for name, one in batch.items()}
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
