"""Promises about training (accumulation, resumption, precision), measured with the recipe and data of a run."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tfkit.contracts.expect import EQUAL, far
from tfkit.contracts.proving import LONGEST, TEXTS, NotApplicable, Promise, ReadText, largest, proved
from tfkit.models import ModelOutput
from tfkit.training.division import Division
from tfkit.training.feed import Made
from tfkit.training.folder import RunFolder
from tfkit.training.initial import freeze
from tfkit.training.loop import Trainer
from tfkit.training.objective import Batch
from tfkit.training.progress import Reporter
from tfkit.training.random_state import seeded
from tfkit.training.setup import Task
from tfkit.training.step import accumulate, computing
from tfkit.training.validation import mean_loss
from tfkit.training.weights import Weights

STEPS = 4  # number of training steps; the resumed training starts after half of them
ROUNDED = 0.02  # tolerance for a bfloat16 loss (8 bits of precision)
TRIES = 50  # attempts to draw two batches of one shape

MakeTask = Callable[[], Task]


def task_texts(task: Task) -> list[ReadText]:
    """Return the first training texts, prepared by the objective."""
    rows, items = task.objective.rows, task.train.items[:TEXTS]
    batch = rows.collate(items, np.random.default_rng(0))
    lengths = np.asarray(rows.lengths(items)).reshape(len(items), -1)
    first = _real(batch["input_ids"], batch.get("attention_mask"), lengths[:, 0].tolist())
    if task.model.blueprint.encoder is None or task.model.blueprint.decoder is None:
        return [ReadText(ids) for ids in first]
    targets = batch.get("decoder_input_ids")
    last = first if targets is None else _real(targets, batch.get("decoder_attention_mask"), lengths[:, -1].tolist())
    return [ReadText(ids, source) for ids, source in zip(last, first, strict=True)]


def _real(ids: Tensor, mask: Tensor | None, lengths: Sequence[int]) -> list[Tensor]:
    """Return the first unpadded ids of each row, at most LONGEST."""
    counts = lengths if mask is None else mask.sum(dim=1).tolist()
    return [row[: max(1, min(int(count), LONGEST))] for row, count in zip(ids, counts, strict=True)]


def training_promises(make: MakeTask) -> Iterator[Promise]:
    """Measure the promises that need an objective and data; each call of `make` returns an equal task.

    `make` may raise NotApplicable.
    """
    yield proved("accumulated = one batch", EQUAL, lambda: accumulated(make()))
    yield proved("resumed = unbroken", 0.0, lambda: resumed(make))
    yield proved("bfloat16 near float32", ROUNDED, lambda: rounded(make()))


def rounded(task: Task) -> float:
    """Return the difference between the bfloat16 and float32 losses, relative to the latter if it exceeds 1."""
    exact = mean_loss(task.model, task.train)
    return abs(mean_loss(task.model, task.train, "bfloat16") - exact) / max(1.0, abs(exact))


def resumed(make: MakeTask) -> float:
    """Train without interruption and from the checkpoint after half of the steps, and compare the weights."""
    if make().recipe.train.teacher is not None:
        raise NotApplicable("train.teacher: training needs a second model")
    with tempfile.TemporaryDirectory() as folder:
        whole = _trainer(make(), Path(folder) / "whole")
        with seeded(0):
            whole.run()
        again = _trainer(make(), Path(folder) / "again")
        with seeded(1):
            again.restore(whole.checkpoints.all()[0])
            again.run()
        return largest(Weights.of(whole.task.trained), Weights.of(again.task.trained))


def _trainer(task: Task, folder: Path) -> Trainer:
    """Return a trainer for a few steps in an empty folder, with a checkpoint after half of the steps."""
    folder.mkdir()
    freeze(task.model, task.settings.freeze)
    half = STEPS // 2
    few = {
        "steps": STEPS,
        "epochs": None,
        "evaluate_every": STEPS,
        "checkpoint_every": half,
        "keep": "last",
        "patience": None,
    }
    settings = task.settings.model_copy(update=few)
    task = Task(task.recipe, task.model, task.tokenizer, task.objective, settings, STEPS, task.train, None, {})
    trainer = Trainer(task, RunFolder(folder), Reporter(False))
    trainer.history.start(0)
    return trainer


def accumulated(task: Task) -> float:
    """Compare the accumulated gradient of two batches with the gradient of a single batch, without dropout."""
    model = task.model.double().eval()
    if not task.objective.capabilities & {"likelihood", "numbers"}:
        raise NotApplicable(f"the loss of '{task.objective.part_name}' is not a sum over targets")
    lacking = [name for plan in model.blueprint.stacks() for name in plan.without("padding")]
    if lacking:
        raise NotApplicable(f"with {lacking[0]}, rows depend on the other rows of the batch")
    halves, whole, indices = _batches(task)
    added: list[ModelOutput] = []
    watch = model.register_forward_hook(lambda _, __, out: added.append(out))
    both = _gradient(task, halves, indices)
    watch.remove()
    if any(out.auxiliary_loss is not None for out in added):
        raise NotApplicable(
            "layers add a loss that depends on the whole batch, such as the load balancing loss of experts"
        )
    once = _gradient(task, [whole], [[*indices[0], *indices[1]]])
    return max((far(both[name], value) for name, value in once.items()), default=0.0)


def _gradient(task: Task, batches: Sequence[Batch], indices: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return the gradients of one step over the batches, by weight name."""
    task.model.zero_grad(set_to_none=True)
    pairs = enumerate(zip(batches, indices, strict=True))
    made = (Made(0, number, rows, batch, (0, number + 1)) for number, (batch, rows) in pairs)
    division = Division(task.model, computing(task.model, task.train, "float32"))
    sums = accumulate(division, task.train, made, len(batches), list(task.model.parameters()))
    named = task.model.named_parameters()
    return {name: weight.grad * sums.factor for name, weight in named if weight.grad is not None}


def _batches(task: Task) -> tuple[list[Batch], Batch, list[list[int]]]:
    """Return two batches, one with the rows of both, and the item indices; raise NotApplicable if none are found."""
    rows, items = task.objective.rows, task.train.items
    if len(items) < 2:
        raise NotApplicable("there is only one training row")
    count = min(len(items), 4)
    indices = [list(range(count // 2)), list(range(count // 2, count))]
    wholes = [rows.collate(items[:count], np.random.default_rng(seed)) for seed in (0, 1)]
    if _same(*wholes):
        return (
            [rows.collate([items[one] for one in half], np.random.default_rng(0)) for half in indices],
            wholes[0],
            indices,
        )
    # random masking depends on the index of a row in its batch, so two batches of equal shape are concatenated
    order = np.argsort([np.max(length) for length in np.asarray(rows.lengths(items)).reshape(len(items), -1)])
    for number, (one, other) in enumerate(itertools.pairwise(order[:TRIES])):
        halves = [rows.collate([items[place]], np.random.default_rng([number, place])) for place in (one, other)]
        joined = _joined(*halves)
        if joined is not None:
            return halves, joined, [[int(one)], [int(other)]]
    raise NotApplicable(f"'{task.objective.part_name}' is random, and no two rows have the same length")


def _same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _joined(one: Batch, other: Batch) -> Batch | None:
    """Concatenate two batches, or return None if their shapes differ."""
    written = "decoder_input_ids" if "decoder_input_ids" in one else "input_ids"
    names = one.keys() | other.keys()
    wide = [name for name in names if name in one and name in other and one[name].dim() > 1]
    if names - {"predicted"} - (one.keys() & other.keys()) or any(
        one[name].shape != other[name].shape for name in wide
    ):
        return None
    size = one[written].numel()
    joined = {name: torch.cat((one[name], other[name])) for name in names if name != "predicted"}
    if "predicted" in names:  # flat indices into the batch
        places = [batch.get("predicted", torch.arange(size)) for batch in (one, other)]
        joined["predicted"] = torch.cat((places[0], places[1] + size))
    return joined
