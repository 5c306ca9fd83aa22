"""Base class of the answers of a trained model: predictions for texts, and references to compare them with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfkit.core.errors import UsageError
from tfkit.core.slots import AnswersFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.training.objective.rows import Example, Rows

if TYPE_CHECKING:
    from tfkit.training.objective.base import Objective

Prediction = dict[str, Any]  # what a model answers to one example, as JSON can hold it


class Answers(AnswersFacts):
    """Base of what models answer. Where it `predicts`, `predict` computes the answers; else the model generates."""

    rows: Rows

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = objective.rows

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """The answer to each example, whose reference is not read; raises UsageError, DataError."""
        raise UsageError(f"a model that was trained for {self.objective.part_name} predicts nothing for a text")

    def text(self, prediction: Prediction) -> str:
        """A prediction as the text that metrics compare with the reference."""
        raise UsageError(f"{self.objective.part_name} makes no predictions")

    def wanted(self, example: Example) -> str:
        """The right answer to an example, as the text that metrics compare with the model's."""
        return example[self.reference] if self.reference is not None else ""


def text_fields(objective: Objective) -> list[str]:
    """The fields of a text that a model of that objective answers: all that it reads but the reference."""
    reference = None if objective.answers is None else objective.answers.reference
    return [field for field in objective.rows.fields if field != reference]


def predicts(objective: Objective) -> bool:
    """Whether a model that was trained for it predicts something for a text."""
    return objective.answers is not None and objective.answers.predicts
