"""Data parallelism: the rows of a batch are split over processes, and the gradients are summed."""

# Axes: rows, time, process, weight.

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from tfkit.components.feedforward.experts import Routing
from tfkit.core.errors import UsageError
from tfkit.functional.dropout import Draws, drawing
from tfkit.models.layer import Layer
from tfkit.training.objective import Batch, Loss
from tfkit.training.processes import Team
from tfkit.training.setup import Task

SIDES = (
    "decoder_input_ids",
    "input_ids",
    "inputs_embeds",
)  # the first of these in a batch is the one that predicts the targets
BY_TARGET = ("labels", "draws")  # tensors with one row per entry of `predicted`

Compute = Callable[[Batch], Loss]


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a batch, and the indices of their first row and target in the whole batch.

    A process without rows computes an `empty` piece: a row whose loss is multiplied by zero, so that the process
    still takes part in every all-reduce.
    """

    batch: Batch
    row: int = 0
    target: int = 0
    empty: bool = False
    marked: int = 0  # largest number of marked tokens in any row of the whole batch

    def draws(self, key: tuple[int, ...]) -> Draws:
        """Return the dropout RNG state for this piece of the batch identified by `key`."""
        rows, targets = len(side_of(self.batch)), len(self.batch.get("predicted", ()))
        return Draws(key, self.row, rows, self.target, targets, self.marked)


def side_of(batch: Batch) -> Tensor:
    """Return the inputs [rows time ...] whose positions predict the targets."""
    return next(batch[name] for name in SIDES if name in batch)


def piece_of(batch: Batch, index: int, count: int) -> Piece:
    """Split the rows of a batch into `count` pieces of nearly equal size, and return the piece at `index`."""
    if count == 1:
        return Piece(batch)
    rows, width = side_of(batch).shape[:2]
    start, stop = rows * index // count, rows * (index + 1) // count
    empty = start == stop
    start, stop = (0, 1) if empty else (start, stop)
    rest = dict(batch)
    found: Batch = {}
    first = 0
    if "predicted" in batch:
        places = rest.pop("predicted")
        chosen = (places >= start * width) & (places < stop * width)
        found = {name: rest.pop(name)[chosen] for name in BY_TARGET if name in rest}
        found["predicted"] = places[chosen] - start * width
        first = int((places < start * width).sum())
    found |= {name: _rows(name, tensor, rows, slice(start, stop)) for name, tensor in rest.items()}
    marked = int(batch["marked"].sum(dim=1).max()) if "marked" in batch else 0
    return Piece(found, start, first, empty, marked)


def _rows(name: str, tensor: Tensor, rows: int, kept: slice) -> Tensor:
    """Slice a tensor [rows ...] or [rows*time ...] by rows. Raise UsageError for other shapes."""
    if len(tensor) % rows:
        raise UsageError(f"{name} has shape {list(tensor.shape)}, which cannot be split into {rows} rows")
    each = len(tensor) // rows
    return tensor[kept.start * each : kept.stop * each]


class Division:
    """Gradient computation in a single process, without splitting batches."""

    def __init__(self, trained: nn.Module, compute: Compute, team: Team | None = None) -> None:
        """`compute` returns the loss of `trained` on a batch."""
        self.trained, self.compute, self.team = trained, compute, team or Team()

    def backward(self, batch: Batch, key: tuple[int, ...], scale: float, last: bool) -> Loss:
        """Accumulate `scale` times the gradient of a batch. Return the loss of the rows that this process computes.

        After the `last` batch of a step, the gradients are summed over all processes.
        """
        return self._backward(Piece(batch), key, scale)

    def _backward(self, piece: Piece, key: tuple[int, ...], scale: float) -> Loss:
        with drawing(piece.draws(key)):
            loss = self._loss(piece.batch)
            (loss.total * (0.0 if piece.empty else scale)).backward()  # type: ignore[no-untyped-call]
        return Loss(torch.zeros_like(loss.total), 0) if piece.empty else Loss(loss.total.detach(), loss.count)

    def _loss(self, batch: Batch) -> Loss:
        return self.compute(batch)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Allow evaluation of the model within the block. All processes must call the model equally often."""
        yield


class Replicated(Division):
    """DistributedDataParallel: each process holds the whole model and computes an equal share of the rows."""

    def __init__(self, trained: nn.Module, compute: Compute, team: Team) -> None:
        super().__init__(trained, compute, team)
        self.step = LossModule(trained, compute)
        # an expert may receive no token, so DDP must search for unused parameters in every step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the new names do not exist in older versions of torch
            self.ddp = DistributedDataParallel(
                self.step, broadcast_buffers=False, find_unused_parameters=True, gradient_as_bucket_view=True
            )

    def backward(self, batch: Batch, key: tuple[int, ...], scale: float, last: bool) -> Loss:
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            # DDP averages the gradients; the factor `size` turns the mean into a sum
            return self._backward(piece_of(batch, self.team.rank, self.team.size), key, scale * self.team.size)

    def _loss(self, batch: Batch) -> Loss:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*find_unused_parameters=True")
            return Loss(self.ddp(batch), self.step.count)


class LossModule(nn.Module):
    """Module whose forward computes the loss, as torch's parallel wrappers require."""

    def __init__(self, trained: nn.Module, compute: Compute) -> None:
        super().__init__()
        self.trained, self.compute, self.count = trained, compute, 0

    def forward(self, batch: Batch) -> Tensor:
        """Return the total loss of the batch, and store the number of targets in `count`."""
        loss = self.compute(batch)
        self.count = loss.count
        return loss.total


class Sharded(Division):
    """Sharded data parallelism with FSDP2: each process holds a shard of every weight and computes a share of the rows.

    The weights of a layer are gathered while the layer is computed; other weights stay gathered during the step.
    Gradients are reduced after each batch, so that no process holds the full gradients.
    """

    def __init__(self, trained: nn.Module, compute: Compute, team: Team, device: str) -> None:
        from torch.distributed.fsdp import fully_shard  # slow to import

        super().__init__(trained, compute, team)
        self.step = LossModule(trained, compute)
        mesh = init_device_mesh(device, (team.size,))
        layers = units_of(trained)
        units = [fully_shard(unit, mesh=mesh) for unit in (*layers, self.step)]
        for unit in units:
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_gradient_divide_factor(1.0)
        self.root = units[-1]
        for layer in layers:
            # hide the context from FSDP2, which would copy it: its caches must be shared by all layers
            layer.register_forward_pre_hook(lambda _, given: (given[0], lambda: given[1:]), prepend=True)
            layer.register_forward_pre_hook(lambda _, given: (given[0], *given[1]()))

    def backward(self, batch: Batch, key: tuple[int, ...], scale: float, last: bool) -> Loss:
        return self._backward(piece_of(batch, self.team.rank, self.team.size), key, scale)

    def _loss(self, batch: Batch) -> Loss:
        return Loss(self.step(batch), self.step.count)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.root.unshard()
        try:
            yield
        finally:
            self.root.reshard()


def units_of(trained: nn.Module) -> list[Layer]:
    """Return the layers that share no weights with other modules."""
    layers = [module for module in trained.modules() if isinstance(module, Layer)]
    within = {module for layer in layers for module in layer.modules()}
    others = [module.parameters(recurse=False) for module in trained.modules() if module not in within]
    owners = Counter(id(one) for owned in (*(layer.parameters() for layer in layers), *others) for one in owned)
    return [layer for layer in layers if all(owners[id(one)] == 1 for one in layer.parameters())]


def check_division(task: Task, team: Team) -> None:
    """Raise UsageError if several processes cannot train what one process does.

    Terms that are averaged over a batch (balance_loss and z_loss of experts, errors of a teacher, losses of
    `replaced_token`) are those of each process's rows, averaged by targets, as with train.accumulate.
    """
    if team.size == 1:
        return
    if any(isinstance(module, Routing) and module.config.selection_rate for module in task.model.modules()):
        text = "router.selection_rate updates the selection bias of experts from the load of the whole batch"
        raise UsageError(f"{team.size} processes: {text}; set it to 0, or use one process")
    for name, weight in task.trained.named_parameters() if task.settings.parallel.shard else ():
        if weight.dim() == 0:
            raise UsageError(f"train.parallel.shard: {name} is a scalar and cannot be sharded; give it the shape [1]")
    if not task.objective.capabilities & {"likelihood", "numbers", "means"}:
        text = f"the loss of '{task.objective.part_name}' depends on the whole batch, which cannot be split by rows"
        raise UsageError(f"{team.size} processes: {text}; use one process, with train.accumulate for larger batches")


def divided(task: Task, compute: Compute, team: Team) -> Division:
    """Choose the division from `train.parallel` and the number of processes."""
    parallel, trained = task.settings.parallel, task.trained
    if team.size == 1:
        return Division(trained, compute)
    if parallel.shard:
        return Sharded(trained, compute, team, task.train.device.type)
    return Replicated(trained, compute, team)
