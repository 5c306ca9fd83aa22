"""Objectives: examples become batches, and the loss has a gradient for every weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect, in_float64
from tfkit.contracts.options import LINES, NOUNS
from tfkit.contracts.shapes import inert_names
from tfkit.contracts.training import MAX_LENGTH, TOPOLOGY, letters, small_model
from tfkit.core.errors import DataError, UsageError
from tfkit.models.base import Model
from tfkit.training.objective import Batch, Item, Loss, Objective

OBJECTIVE = ("objective",)
EXAMPLES = 5
NEAR = 1e-4  # tolerance for float32 losses summed in a different order


class ObjectiveTrial:
    """An objective with a tokenizer, examples and a model, as in a run."""

    def __init__(self, case: Case) -> None:
        self.objective: Objective = case.config.build()
        self.tokenizer = letters()
        self.fields: tuple[str, ...] = tuple(self.objective.rows.fields)
        self.examples = [self._example(number) for number in range(EXAMPLES)]

    def _example(self, number: int) -> dict[str, str]:
        """Return an example with a text for each field: one tag per word, and a single word as label."""
        line = LINES[number]
        texts = {"target": LINES[-1 - number], "label": NOUNS[number % 2], "tags": " ".join("X" for _ in line.split())}
        answers = self.objective.answers
        samples = {} if answers is None else answers.sample_texts
        own = {field: choices[number % len(choices)] for field, choices in samples.items()}
        # different lengths, so that batches are padded
        return {field: (texts | own).get(field, line[: 8 + 3 * number]) for field in self.fields}

    def items(self) -> Sequence[Item]:
        return self.objective.rows.prepare(self.examples, self.tokenizer, MAX_LENGTH)

    def batch(self, items: Sequence[Item], seed: int = 0) -> Batch:
        """Collate a batch; the seed determines all random choices."""
        return self.objective.rows.collate(items, np.random.default_rng(seed))

    def model(self) -> Model:
        model = small_model(
            self.objective.reads or "causal", self.objective.heads[0], self.tokenizer.vocab_size, self.objective.beside
        )
        self.objective.attach(model)
        return model


@contract("the class declares its input, fields and heads", "built", slots=OBJECTIVE)
def check_says_what_it_reads(case: Case) -> None:
    """Check `reads`, `rows_type.fields` and `heads` of the class."""
    part: Any = case.part
    expect(part.reads in TOPOLOGY, f"declares reads = {part.reads!r}; use one of {', '.join(TOPOLOGY)}")
    expect(part.rows_type.fields, "declares no corpus fields; set rows_type = TextRows, or your own rows")
    expect(part.heads, "declares no heads")


@contract(
    "examples become token ids within the model's maximum length", "says_what_it_reads", slots=OBJECTIVE,
    every_option=True
)  # fmt: skip
def check_items(case: Case) -> None:
    """Prepare the same examples twice."""
    trial = ObjectiveTrial(case)
    items, size = trial.items(), trial.tokenizer.vocab_size
    expect(items, f"preparing {EXAMPLES} examples yields no items")
    for item in items:
        for name, ids in item.items():
            kind = np.asarray(ids).dtype.kind
            inside = kind in "iub" and len(ids) and np.min(ids) >= 0 and np.max(ids) < size
            expect(
                inside or (kind == "f" and np.isfinite(ids).all()),
                f"'{name}' of an item is empty or has ids outside the vocabulary of {size}: {list(ids)[:8]}",
            )
    lengths = np.asarray(trial.objective.rows.lengths(items))
    expect(len(lengths) == len(items), f"lengths returns {len(lengths)} values for {len(items)} items")
    least, most = int(lengths.min()), int(lengths.max())
    expect(least >= 1 and most <= MAX_LENGTH, f"items have {least} to {most} positions; expected 1 to {MAX_LENGTH}")
    again = ObjectiveTrial(case).items()
    same = len(again) == len(items) and all(_same(one, other) for one, other in zip(items, again, strict=True))
    expect(same, "preparing the same examples again yields different items")


def _same(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(np.asarray(one[k]), np.asarray(other[k])) for k in one)


@contract("batches are tensors, determined by the items and the seed", "items", slots=OBJECTIVE, every_option=True)
def check_batches(case: Case) -> None:
    """Collate the same items twice with the same seed."""
    trial = ObjectiveTrial(case)
    items = trial.items()
    batch = trial.batch(items)
    for name, value in batch.items():
        expect(isinstance(value, Tensor), f"'{name}' of a batch is of type {type(value).__name__}, not a tensor")
    expect("input_ids" in batch, f"a batch has {', '.join(batch)}, but no input_ids")
    rows = batch["input_ids"].shape[0]
    expect(rows == len(items), f"{len(items)} items yield {rows} rows")
    expect(_same(batch, trial.batch(items)), "the same items and seed yield a different batch")


def evaluated(trial: ObjectiveTrial, model: Model, batch: Batch, training: bool = False) -> Loss:
    """Return the loss; raise Broken unless it is a finite scalar over at least one target."""
    loss = trial.objective.loss(model, batch, training=training)
    expect(loss.total.dim() == 0, f"the loss has shape {list(loss.total.shape)}; expected a scalar")
    expect(bool(torch.isfinite(loss.total)), f"the loss is {float(loss.total.detach())}, which is not finite")
    counts = isinstance(loss.count, int) and loss.count > 0
    expect(counts, f"the loss has count {loss.count!r}; expected a positive number of targets")
    return loss


@contract(
    "the loss is finite, deterministic, and in float64 for a float64 model", "batches", slots=OBJECTIVE,
    every_option=True
)  # fmt: skip
def check_loss(case: Case) -> None:
    """Evaluate a batch twice, and compute the training loss in both precisions."""
    trial = ObjectiveTrial(case)
    model, batch = trial.model(), trial.batch(trial.items())
    first, again = (evaluated(trial, model, batch) for _ in range(2))
    same = torch.equal(first.total, again.total) and first.count == again.count
    values = float(first.total.detach()), float(again.total.detach())
    expect(same, f"two evaluations of one batch yield {values[0]:.9g} and {values[1]:.9g}")
    evaluated(trial, model, batch, training=True)
    for module in filter(None, (trial.objective.module, model)):
        module.double()
    with in_float64("with a model in float64"):
        evaluated(trial, model, batch)
        torch.autograd.backward(evaluated(trial, model, batch, training=True).total)


@contract("the gradient of the loss reaches every weight", "loss", slots=OBJECTIVE, every_option=True)
def check_loss_gradients(case: Case) -> None:
    """Compute the gradients of a model with the direction and head that the objective needs."""
    trial = ObjectiveTrial(case)
    model = trial.model()
    loss = evaluated(trial, model, trial.batch(trial.items()), training=True)
    expect(loss.total.requires_grad, "the training loss has no gradient")
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(loss.total, list(named.values()), allow_unused=True)
    inert = inert_names(model)
    for name, grad in zip(named, grads, strict=True):
        expect(grad is None or bool(torch.isfinite(grad).all()), f"the gradient of {name} is not finite")
        reached = grad is not None and bool((grad != 0).any())
        expect(reached or name in inert, f"the loss does not depend on {name}")


@contract(
    "padding and other rows have no effect: the loss of a batch is the sum over its rows", "loss", slots=OBJECTIVE,
    every_option=True
)  # fmt: skip
@torch.no_grad()
def check_loss_rows(case: Case) -> None:
    """Compare a batch with its items one by one; objectives with random targets are skipped."""
    trial = ObjectiveTrial(case)
    items = trial.items()
    if not _same(trial.batch(items, seed=1), trial.batch(items, seed=2)):
        return
    _expect_sum(trial, trial.batch(items), items, "in a batch")


def _expect_sum(trial: ObjectiveTrial, batch: Batch, items: Sequence[Item], how: str) -> None:
    """Raise Broken unless the loss of the batch is the sum over its items."""
    model = trial.model()
    whole = evaluated(trial, model, batch)
    single = [evaluated(trial, model, trial.batch([item])) for item in items]
    count, total = sum(loss.count for loss in single), sum(float(loss.total) for loss in single)
    expect(whole.count == count, f"{len(items)} items have {whole.count} targets {how}, but {count} one by one")
    close = math.isclose(float(whole.total), total, rel_tol=NEAR, abs_tol=NEAR)
    expect(close, f"the loss of {len(items)} items is {float(whole.total):.6g} {how}, but {total:.6g} one by one")


def packs(case: Case) -> bool:
    """True if the objective supports packed batches."""
    return "packing" in case.part.capabilities


@contract("packing does not change the loss", "loss_rows", slots=OBJECTIVE, when=packs, every_option=True)
@torch.no_grad()
def check_packed_loss(case: Case) -> None:
    """Pack two items into a row; if the options exclude packing, UsageError is required."""
    trial = ObjectiveTrial(case)
    items = trial.items()
    length = int(np.asarray(trial.objective.rows.lengths(items)).sum())
    try:
        batch = trial.objective.rows.collate_packed([items], length, np.random.default_rng(0))
    except UsageError:
        return
    if _same(trial.batch(items, seed=1), trial.batch(items, seed=2)):
        _expect_sum(trial, batch, items, "packed into a row")
    else:
        evaluated(trial, trial.model(), batch)


@contract("source and target may have separate vocabularies", "items", slots=OBJECTIVE)
def check_vocabularies(case: Case) -> None:
    """Encode the source with its own tokenizer; the target ids must not change."""
    if "two_vocabularies" not in case.part.able(case.config):
        return
    trial = ObjectiveTrial(case)
    alone = trial.batch(trial.items())
    source = letters(sentinels=3)  # assigns different ids to the letters
    trial.tokenizer = trial.tokenizer.beside(source)
    batch = trial.batch(trial.items())
    for example, ids in zip(trial.examples, batch["input_ids"].tolist(), strict=True):
        text, own = source.decode(ids), example["source"]
        expect(text == own, f"the source {own!r} is not encoded with its own tokenizer: its ids decode to {text!r}")
    expect(torch.equal(batch["labels"], alone["labels"]), "a separate source tokenizer changes the target ids")


@contract("unusable examples are refused", "items", slots=OBJECTIVE)
def check_unusable(case: Case) -> None:
    """Prepare examples without a field and without text, and bind a vocabulary without a required token."""
    trial = ObjectiveTrial(case)
    rows, last = trial.objective.rows, trial.fields[-1]
    without = {field: text for field, text in trial.examples[0].items() if field != last}
    empty = dict.fromkeys(trial.fields, "")
    faults: dict[str, Callable[[], object]] = {
        f"an example without '{last}'": lambda: rows.prepare([without], trial.tokenizer, MAX_LENGTH),
        "only empty examples": lambda: rows.prepare([empty], trial.tokenizer, MAX_LENGTH),
    }
    for role in rows.required:
        faults[f"a tokenizer without the special token for {role}"] = partial(rows.bind, letters(**{role: None}))
    for what, use in faults.items():
        try:
            use()
        except DataError:
            continue
        raise Broken(f"{what}: no error; raise a DataError")
