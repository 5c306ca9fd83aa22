"""The classes of a head: how many a config.json says, what they are called, and what the outputs of a text mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.settings import look

Tree = dict[str, Any]
SEVERAL, NUMBER = "multi_label_classification", "regression"  # their words for a problem_type; else one class a text
OF_TEXTS = ("classifier", "regression")  # our heads that their ForSequenceClassification is


def class_count(config: Mapping[str, Any]) -> int:
    """How many classes a classifier of theirs has."""
    return len(config.get("id2label") or ()) or int(config.get("num_labels", 2))


def class_names(config: Mapping[str, Any], blueprint: Blueprint) -> list[str]:
    """What the classes of the head are called, as their programs call them; none of a head without classes.

    Raises DataError where names are missing, or one stands twice.
    """
    if blueprint.head is None or blueprint.head.part.part_name not in ("classifier", "token_classifier"):
        return []
    labels = config.get("id2label") or {}
    if not isinstance(labels, Mapping):
        raise DataError(f"config.json: id2label: expected a mapping of numbers to names, got {labels!r:.60}")
    count = class_count(config)
    names = [labels.get(str(number), f"LABEL_{number}") if labels else f"LABEL_{number}" for number in range(count)]
    if labels and (set(labels) != set(map(str, range(count))) or len(set(names)) < count):
        raise DataError(f"config.json: id2label: expected a name of its own for each of the classes 0 to {count - 1}")
    return [str(name) for name in names]


def bring_classes(model: Tree, config: Mapping[str, Any]) -> None:
    """Say in `model` what the outputs of its head are; raises DataError for what no head of ours gives."""
    head, count, problem = model["head"], class_count(config), config.get("problem_type")
    kind = look(model, "head.type")
    if kind == "token_classifier":
        head["num_classes"] = count
    elif kind == "classifier" and problem == NUMBER:
        if count != 1:
            raise DataError(f"config.json: problem_type: regression of {count} numbers cannot be brought in; one can")
        head["type"] = "regression"
    elif kind == "classifier":
        head["num_classes"] = count
        if count == 1 or problem == SEVERAL:
            head["independent"] = True


def say_classes(config: Tree, model: Mapping[str, Any]) -> None:
    """Say in `config` how many classes the head has, and what its outputs are."""
    kind, count = look(model, "head.type"), look(model, "head.num_classes")
    if kind == "regression":
        config |= {"problem_type": NUMBER, **named_classes(["LABEL_0"])}
    elif count is not None:
        config |= named_classes([f"LABEL_{number}" for number in range(count)])
        if look(model, "head.independent") and count > 1:
            config["problem_type"] = SEVERAL


def named_classes(names: Sequence[str]) -> Tree:
    """The keys of a config.json that say what classes are called."""
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
