"""Class labels of a head in config.json: their number, names and problem_type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError, UsageError
from tfkit.data.corpus.base import cells
from tfkit.interop.huggingface.settings import ConfigJson, look

SEVERAL, NUMBER = "multi_label_classification", "regression"  # problem_type; None: one class per text
OF_TEXTS = ("classifier", "regression")  # head types of ForSequenceClassification


def class_count(config: ConfigJson) -> int:
    """Return the number of classes in a config.json."""
    return len(config.get("id2label") or ()) or int(config.get("num_labels", 2))


def class_names(config: ConfigJson, blueprint: Blueprint) -> list[str]:
    """Return the class names in the config, or an empty list if the head has no classes.

    Raises DataError for missing or duplicate names.
    """
    name = "" if blueprint.head is None else blueprint.head.part.part_name
    if name not in ("classifier", "token_classifier") and not (name == "regression" and class_count(config) > 1):
        return []
    labels = config.get("id2label") or {}
    if not isinstance(labels, Mapping):
        raise DataError(f"config.json: id2label: expected a mapping of numbers to names, got {labels!r:.60}")
    count = class_count(config)
    names = [labels.get(str(number), f"LABEL_{number}") if labels else f"LABEL_{number}" for number in range(count)]
    if labels and (set(labels) != set(map(str, range(count))) or len(set(names)) < count):
        raise DataError(f"config.json: id2label: expected distinct names for the classes 0 to {count - 1}")
    return [str(name) for name in names]


def read_classes(model: Tree, config: ConfigJson) -> None:
    """Complete the head in `model` from the config. Raise DataError for an unsupported problem_type."""
    head, count, problem = model["head"], class_count(config), config.get("problem_type")
    kind = look(model, "head.type")
    if kind == "token_classifier":
        head["num_classes"] = count
    elif kind == "classifier" and problem == NUMBER:
        head["type"] = "regression"
        if count > 1:
            head |= {"num_targets": count, "standardize": False}
    elif kind == "classifier":
        head["num_classes"] = count
        if count == 1 or problem == SEVERAL:
            head["independent"] = True


def write_classes(config: Tree, model: ModelSection) -> None:
    """Write the number of classes and the problem_type to `config`."""
    kind, count = look(model, "head.type"), look(model, "head.num_classes")
    if kind == "regression":
        names = [f"LABEL_{number}" for number in range(look(model, "head.num_targets") or 1)]
        config |= {"problem_type": NUMBER, **named_classes(names)}
    elif count is not None:
        config |= named_classes([f"LABEL_{number}" for number in range(count)])
        if look(model, "head.independent") and count > 1:
            config["problem_type"] = SEVERAL


def named_classes(names: Sequence[str]) -> Tree:
    """Return the config.json keys that name the classes. Raise UsageError for those of several targets."""
    if any("" not in cells(name) for name in names):
        raise UsageError("transformers has no problem_type for several classification targets; train one run for each")
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
