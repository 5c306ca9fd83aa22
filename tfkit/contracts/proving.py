"""Promises of a run, measured on its own weights and texts: `tfkit prove`.

The comparisons are those of the contracts. The model is in float64, so that differences are not rounding errors.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tfkit.contracts.cache import decoded
from tfkit.contracts.calls import PREFIX, Arguments, Trained
from tfkit.contracts.expect import EQUAL, SAME, Compared, far
from tfkit.contracts.saving import reloaded
from tfkit.contracts.visibility import apart, changes, earlier, in_a_batch, packed
from tfkit.core.blame import shortened
from tfkit.core.blueprint import StackPlan
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import TfkitError
from tfkit.models import Model, ModelOutput
from tfkit.runs.checkpoint import seeded
from tfkit.runs.folder import RunFolder
from tfkit.runs.weights import Weights
from tfkit.training.division import Division, piece_of
from tfkit.training.feed import Made
from tfkit.training.initial import freeze
from tfkit.training.loop import Trainer
from tfkit.training.objective import Batch
from tfkit.training.objective.rows import batch_of
from tfkit.training.progress import Reporter
from tfkit.training.scoring import mean_loss
from tfkit.training.setup import Task
from tfkit.training.step import accumulate, computing

LONGEST = 48  # maximum number of tokens used from each text
TEXTS = 4
RANDOM = (12, 5, 9, 7)  # lengths of random texts
CHANGED = 8  # number of tokens that are changed, one at a time
STEPS = 4  # number of training steps; the resumed training starts after half of them
ROUNDED = 0.02  # tolerance for a bfloat16 loss (8 bits of precision)

MakeTask = Callable[[], Task]


class NotApplicable(Exception):
    """Raised for a promise that does not apply to this model or run; the message is the reason."""


@dataclass(frozen=True)
class Promise:
    """A promise with the measured difference and its bound; `value` is None if nothing was measured."""

    name: str
    bound: float
    value: float | None = None
    reason: str = ""  # reason why the promise does not apply, or the error message
    applies: bool = True

    @property
    def holds(self) -> bool:
        """True unless the promise applies and is broken."""
        return not self.applies or (self.value is not None and self.value <= self.bound)

    def as_data(self) -> JsonObject:
        """Convert to JSON data; non-finite differences become null."""
        finite = self.value is not None and self.value < float("inf")
        return {**vars(self), "value": self.value if finite else None, "holds": self.holds}


def proved(name: str, bound: float, measure: Callable[[], float]) -> Promise:
    """Measure a promise; any exception of the model counts as a broken promise."""
    try:
        return Promise(name, bound, measure())
    except NotApplicable as error:
        return Promise(name, bound, reason=str(error), applies=False)
    except TfkitError as error:
        return Promise(name, bound, reason=str(error))
    except Exception as error:
        return Promise(name, bound, reason=f"{type(error).__name__}: {shortened(error)}")


def promises(model: Model, make: MakeTask) -> Iterator[Promise]:
    """Measure the promises of a model and of its training; `make` returns equal tasks or raises NotApplicable."""
    try:
        texts = task_texts(make())
    except NotApplicable:
        texts = random_texts(model)
    made = copy.deepcopy(model).double().eval()
    case = Trained("model", model.blueprint.type.part.part_name, made=made)
    for name, bound, measure in (
        ("packed = apart", EQUAL, packed_apart),
        ("padded left = right", EQUAL, padded_alike),
        ("future leak", SAME, future_leak),
        ("cached = uncached", EQUAL, cached_alike),
    ):
        yield proved(name, bound, partial(on_texts, measure, case, texts))
    yield proved("saved = loaded", 0.0, lambda: largest(Weights.of(model), Weights.of(reloaded(model))))
    yield proved("accumulated = one batch", EQUAL, lambda: accumulated(make()))
    yield proved("resumed = unbroken", 0.0, lambda: resumed(make))
    yield proved("bfloat16 near float32", ROUNDED, lambda: rounded(make()))


class ReadText(NamedTuple):
    """Ids [time] for the last stack, and for an encoder-decoder also the ids of the source."""

    ids: Tensor
    source: Tensor | None = None


Texts = Sequence[ReadText]


def random_texts(model: Model) -> list[ReadText]:
    """Return texts of random ids, for a model without data."""
    generator = torch.Generator().manual_seed(0)

    def ids(plan: StackPlan, length: int) -> Tensor:
        return torch.randint(plan.vocab_size or 1, (min(length, plan.max_length or length),), generator=generator)

    *first, last = model.blueprint.stacks()
    return [ReadText(ids(last, length), *(ids(plan, length + 1) for plan in first)) for length in RANDOM]


def task_texts(task: Task) -> list[ReadText]:
    """Return the first training texts, prepared by the objective; none for a model that reads vectors."""
    rows = [task.objective.rows.collate([item], np.random.default_rng(0)) for item in task.train.items[:TEXTS]]
    pair = task.model.blueprint.encoder and task.model.blueprint.decoder
    texts = []
    for row in rows if "input_ids" in rows[0] else []:
        ids = row["input_ids"][0, :LONGEST]
        texts.append(
            ReadText(row.get("decoder_input_ids", row["input_ids"])[0, :LONGEST], ids) if pair else ReadText(ids)
        )
    return texts


def on_texts(measure: Callable[[Trained, Texts], float], case: Trained, texts: Texts) -> float:
    """Measure a promise on texts, without gradients."""
    if any(plan.reads_vectors for plan in case.blueprint.stacks()):
        raise NotApplicable("the model reads vectors, but this comparison needs token ids")
    with torch.no_grad():
        return measure(case, texts)


def packed_apart(case: Trained, texts: Texts) -> float:
    """Compare packed texts with each text alone."""
    if case.pair:
        raise NotApplicable("an encoder-decoder reads one text per row")
    if "prefix_length" in case.needs or case.made.extra_inputs:
        raise NotApplicable("a prefix or another input applies to a whole row")
    _check(case, "packing", "packed texts")
    room = (case.blueprint.last.max_length or LONGEST * TEXTS) // len(texts)
    return worst(packed(case, [[text.ids[:room] for text in texts]]))


def padded_alike(case: Trained, texts: Texts) -> float:
    """Compare texts padded on the left and on the right with each text alone."""
    _check(case, "padding", "padding")
    rows, sources = [text.ids for text in texts], [text.source for text in texts if text.source is not None]
    alone = apart(case, rows, sources)
    return max(worst(in_a_batch(case, rows, alone, side, sources=sources)) for side in ("left", "right"))


def future_leak(case: Trained, texts: Texts) -> float:
    """Change tokens one at a time and compare the outputs of earlier tokens."""
    if not case.causal:
        raise NotApplicable(f"the {case.blueprint.last.side} is bidirectional")
    ids, more = _longest(texts)
    places = range(PREFIX if case.opens else 1, ids.shape[1])
    some = places[:: max(1, len(places) // CHANGED)]
    return max((worst(earlier(case, *change)) for change in changes(case, ids, some, **more)), default=0.0)


def cached_alike(case: Trained, texts: Texts) -> float:
    """Compare a full forward pass with cached decoding, half of the text at once and the rest token by token."""
    last = case.blueprint.last
    if not last.caches:
        lacking = last.without("cache")
        raise NotApplicable(f"{lacking[0]} has no cache" if lacking else f"the {last.side} is bidirectional")
    ids, more = _longest(texts)
    half = max(ids.shape[1] // 2, min(PREFIX, ids.shape[1]))
    return worst(decoded(case, ids, [half, *[1] * (ids.shape[1] - half)], "", **more))


def _check(case: Trained, capability: str, what: str) -> None:
    if lacking := case.lacking(capability):
        raise NotApplicable(f"{lacking[0]} does not keep {what} separate")


def _longest(texts: Texts) -> tuple[Tensor, Arguments]:
    """Return the longest text [1 time], and its source as an argument."""
    text = max(texts, key=lambda text: len(text.ids))
    return text.ids[None], {} if text.source is None else {"source": text.source[None]}


def worst(compared: Compared) -> float:
    """Return the largest difference."""
    return max((far(value, expected) for _, value, expected in compared), default=0.0)


def largest(own: Weights, other: Weights) -> float:
    """Return the largest difference between tensors with equal names."""
    others = other.by_name()
    return worst((name, tensor, others[name]) for name, tensor in own.by_name().items())


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
    few = {"steps": STEPS, "epochs": None, "evaluate_every": STEPS, "checkpoint_every": STEPS // 2}
    settings = task.settings.model_copy(update={**few, "keep": "last", "patience": None})
    task = Task(task.recipe, task.model, task.tokenizer, task.objective, settings, STEPS, task.train, None, {})
    trainer = Trainer(task, RunFolder(folder), Reporter(False))
    trainer.history.start(0)
    return trainer


def accumulated(task: Task) -> float:
    """Compare the accumulated gradient of the halves of a batch with that of the whole batch, without dropout."""
    model = task.model.double().eval()
    if not task.objective.capabilities & {"likelihood", "numbers"}:
        raise NotApplicable(f"the loss of '{task.objective.part_name}' is not a sum over targets")
    lacking = [name for plan in model.blueprint.stacks() for name in plan.without("padding")]
    if lacking:
        raise NotApplicable(f"with {lacking[0]}, rows depend on the other rows of the batch")
    count = min(len(task.train.items), TEXTS)
    if count < 2:
        raise NotApplicable("there is only one training row")
    batch = batch_of(task.objective.rows, task.train.items[:count], np.random.default_rng(0))
    outputs: list[ModelOutput] = []
    watch = model.register_forward_hook(lambda _, __, out: outputs.append(out))
    both = _gradient(task, [piece_of(batch, half, 2).batch for half in (0, 1)])
    watch.remove()
    if any(out.auxiliary_loss is not None for out in outputs):
        raise NotApplicable("layers add a loss of the whole batch, such as the load balancing loss of experts")
    return worst((name, both[name], value) for name, value in _gradient(task, [batch]).items())


def _gradient(task: Task, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Return the gradients of one step over the batches, by weight name."""
    task.model.zero_grad(set_to_none=True)
    made = (Made(0, number, [0], batch, (0, number + 1)) for number, batch in enumerate(batches))
    division = Division(task.model, computing(task.model, task.train, "float32"))
    sums = accumulate(division, task.train, made, len(batches), list(task.model.parameters()))
    named = task.model.named_parameters()
    return {name: weight.grad * sums.factor for name, weight in named if weight.grad is not None}
