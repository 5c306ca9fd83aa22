"""`train.evaluations` and `evaluate --set`: values that a trained model can be evaluated with."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

SECTIONS = ("data", "objective", "generate")
MADE = ("data.tokenizer", "objective.type")  # fixed by the weights
TAKEN = ("train", "valid", "test", "longer", "generation")  # names in evaluation.json
NAME = re.compile(r"[a-z][a-z0-9_]*")


def value_problem(key: str) -> str:
    """Return why `key` cannot be changed for evaluating a trained model; empty if it can."""
    section, dot, _ = key.partition(".")
    if not dot or section not in SECTIONS:
        return f"what can be set of a trained model begins with {', '.join(f'{name}.' for name in SECTIONS)}"
    made = next((name for name in MADE if key == name or key.startswith(f"{name}.")), None)
    return "" if made is None else f"the model was trained with its {made}"


def _checked(evaluations: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name, values in evaluations.items():
        if not NAME.fullmatch(name) or name in TAKEN:
            taken = ", ".join(TAKEN)
            raise ValueError(f"'{name}' names no evaluation: use small letters, digits and _; {taken} are taken")
        if not values:
            raise ValueError(f"{name}: give at least one value by key, as in objective.block: 512")
        for key in values:
            if problem := value_problem(key):
                raise ValueError(f"{name}: {key}: {problem}")
    return evaluations


def _or_none(value: Any) -> Any:
    return {} if value is None else value


Evaluations = Annotated[dict[str, dict[str, Any]], BeforeValidator(_or_none), AfterValidator(_checked)]
