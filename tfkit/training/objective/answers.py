"""Base class of answers: predictions for texts, and their references."""

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

Prediction = dict[str, Any]  # JSON-serializable answer to one example


class Answers(AnswersFacts):
    """Base of answers: computed by `predict` if `predicts`, else generated."""

    rows: Rows

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = objective.rows

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Answer each example without reading its reference; raise UsageError, DataError."""
        raise UsageError(f"a model that was trained for {self.objective.part_name} predicts nothing for a text")

    def text(self, prediction: Prediction) -> str:
        """Convert a prediction to the text compared by metrics."""
        raise UsageError(f"{self.objective.part_name} makes no predictions")

    def wanted(self, example: Example) -> str:
        """Reference of an example, as the text compared by metrics."""
        return example[self.reference] if self.reference is not None else ""


def text_fields(objective: Objective) -> list[str]:
    """Input fields of a trained model: all fields but the reference."""
    reference = None if objective.answers is None else objective.answers.reference
    return [field for field in objective.rows.fields if field != reference]


def predicts(objective: Objective) -> bool:
    """True if models trained with this objective make predictions."""
    return objective.answers is not None and objective.answers.predicts
