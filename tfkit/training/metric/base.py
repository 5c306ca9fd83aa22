"""Bases of the metrics: some are computed from the loss, some from generated texts and their references."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, ClassVar

from tfkit.core.errors import UsageError
from tfkit.core.slots import MetricFacts


class Metric(MetricFacts):
    """Base of the metrics; `reads` says which method it has."""

    def __init__(self, config: MetricFacts.Config) -> None:
        self.config = config

    @classmethod
    def measures(cls) -> str:
        """The capability that it asks of an objective."""
        if cls.reads == "text":
            return cls.compares
        return "characters" if cls.per_character else "likelihood"

    def check_reference(self, reference: str) -> None:
        """Raise UsageError for a reference that nothing can be compared with; asked before a training begins."""

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """The score of generated texts, in the order of their references; raises UsageError."""
        raise UsageError(f"{self.part_name} is computed from the {self.reads}, not from texts")

    def from_loss(self, nats_per_target: float) -> float:
        """The score of a loss in nats per target; raises UsageError."""
        raise UsageError(f"{self.part_name} is computed from {self.reads}s, not from the loss")


class LossMetric(Metric):
    """Base of the metrics that the loss is enough for."""

    reads: ClassVar = "loss"


class TextMetric(Metric):
    """Base of the metrics that compare texts; a subclass says how in `compare`."""

    reads: ClassVar = "text"

    def score(self, outputs: Sequence[str], references: Sequence[str]) -> float:
        """The score over the whole corpus; raises UsageError for texts that do not pair up."""
        if len(outputs) != len(references):
            raise UsageError(
                f"{self.part_name} compares each output with its reference: got {len(outputs)} and {len(references)}"
            )
        if not outputs:
            raise UsageError(f"{self.part_name} has nothing to compare: there are no outputs")
        return self.compare(list(outputs), list(references))

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The score of as many outputs as references, at least one."""
        raise NotImplementedError(f"{type(self).__name__} has no compare")


def sacrebleu_metrics(metric: str) -> Any:
    """The module `sacrebleu.metrics`; raises UsageError that says how to install it."""
    try:
        return importlib.import_module("sacrebleu.metrics")
    except ImportError:
        raise UsageError(f'{metric} needs the package sacrebleu: pip install "tfkit[train]"') from None
