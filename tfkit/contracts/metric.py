"""Metrics: perfect outputs score best, and the order of examples does not matter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect
from tfkit.core.errors import UsageError
from tfkit.core.slots import MetricFacts
from tfkit.recipe.rules import OF_OBJECTIVES
from tfkit.training.metric import Metric

METRIC = ("metric",)
REFERENCES = ("the cat sat on the mat .", "it rains in the small town today", "he reads a book , and she a letter")
WRONG = ("the dog sat on a mat .", "it is raining here", "he read letters to her and a book")
LOSSES = (0.0, 0.1, 1.0, 3.0, 12.0)
NEAR = 1e-9


def scored(metric: Metric, outputs: Sequence[str], references: Sequence[str]) -> float:
    """Return the score; raise Broken unless it is a finite number."""
    score = metric.score(list(outputs), list(references))
    if not isinstance(score, (int, float)) or not math.isfinite(score):
        raise Broken(f"the score {score!r} is not a finite number")
    return float(score)


def reads(kind: str) -> Callable[[Case], bool]:
    """Return a condition that is true if the metric reads `kind`, "loss" or "text"."""
    return lambda case: issubclass(case.part, MetricFacts) and case.part.reads == kind


@contract("the metric declares its input, a loss or texts, and refuses the other kind", "built", slots=METRIC)
def check_reads(case: Case) -> None:
    """Compute a score from both kinds of input."""
    metric: Metric = case.config.build()
    kind = metric.reads
    expect(kind in ("loss", "text"), f'declares reads = {kind!r}; use "loss" or "text"')
    required = metric.measures()
    what = f"declares compares = {required!r}, which no objective declares; available: {', '.join(OF_OBJECTIVES)}"
    expect(required in OF_OBJECTIVES, what)
    try:
        if kind == "loss":
            metric.score(list(REFERENCES), list(REFERENCES))
        else:
            metric.from_loss(1.0)
    except UsageError:
        return
    raise Broken(f"declares reads = {kind!r}, but accepts the other kind of input; raise a UsageError")


@contract("perfect outputs score best", "reads", slots=METRIC, when=reads("text"), every_option=True)
def check_perfect(case: Case) -> None:
    """Score perfect outputs, then outputs with more and more wrong rows."""
    metric = case.config.build()
    sign = 1 if metric.higher_is_better else -1
    right, bad = metric.samples or (REFERENCES, WRONG)
    scores = [scored(metric, (*bad[:wrong], *right[wrong:]), right) for wrong in range(len(bad) + 1)]
    best = scores[0]
    for wrong, score in enumerate(scores[1:], 1):
        what = f"perfect outputs score {best:g}, but {score:g}, which is better, with {wrong} wrong"
        expect(sign * score <= sign * best, what)
    expect(scores[-1] != best, f"perfect outputs and entirely wrong outputs both score {best:g}")


@contract("the order of the examples does not matter", "reads", slots=METRIC, when=reads("text"), every_option=True)
def check_order(case: Case) -> None:
    """Score the same pairs in different orders, and again in the first one."""
    metric = case.config.build()
    right, bad = metric.samples or (REFERENCES, WRONG)
    outputs = (bad[0], *right[1:])
    first = scored(metric, outputs, right)
    for order in ((2, 1, 0), (1, 2, 0), (0, 1, 2)):
        score = scored(metric, [outputs[row] for row in order], [right[row] for row in order])
        expect(abs(score - first) <= NEAR * max(1.0, abs(first)), f"the same pairs score {first:g} and {score:g}")


@contract("unpaired outputs and empty lists are refused", "reads", slots=METRIC, when=reads("text"))
def check_pairs(case: Case) -> None:
    """Score with one output missing, and without outputs."""
    for outputs, references in ((REFERENCES[:2], REFERENCES), ((), ())):
        try:
            score = case.config.build().score(list(outputs), list(references))
        except UsageError:
            continue
        raise Broken(f"{len(outputs)} outputs and {len(references)} references score {score!r}; raise a UsageError")


@contract("a lower loss never scores worse", "reads", slots=METRIC, when=reads("loss"), every_option=True)
def check_loss_order(case: Case) -> None:
    """Score increasing losses."""
    metric = case.config.build()
    sign = 1 if metric.higher_is_better else -1
    scores = [metric.from_loss(loss) for loss in LOSSES]
    for loss, score in zip(LOSSES, scores, strict=True):
        expect(isinstance(score, (int, float)) and math.isfinite(score), f"a loss of {loss:g} scores {score!r}")
    for (low, better), (high, worse) in pairwise(zip(LOSSES, scores, strict=True)):
        what = f"a loss of {high:g} scores {worse:g}, better than {better:g} for a loss of {low:g}"
        expect(sign * worse <= sign * better, what)
