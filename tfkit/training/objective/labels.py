"""Labels of the training corpus, in the order of the head's logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tfkit.core.errors import UsageError
from tfkit.training.objective.rows import Example, Rows


def ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort distinct labels, numerically if all are integers."""
    different = set(labels)
    numbers = all(label.removeprefix("-").isdecimal() for label in different)
    return tuple(sorted(different, key=lambda label: (int(label) if numbers else 0, label)))


def learn(rows: Rows, examples: Sequence[Example]) -> None:
    """Collect the labels of the training examples, unless they are already known."""
    if rows.labelled and not rows.labels:
        rows.labels = ordered(label for example in examples for label in rows.labels_in(example))


def unknown(labels: Iterable[str], known: Sequence[str]) -> str:
    """Name the labels that are missing from the training corpus, as the reason for excluding examples."""
    others = sorted(set(labels) - set(known))
    return f"not in the training corpus: {', '.join(map(repr, others[:6]))}" + ", ..." * (len(others) > 6)


def check_classes(head: Any, labels: Sequence[str]) -> None:
    """Raise UsageError if the head has fewer classes than there are labels."""
    classes = head.output.out_features if hasattr(head, "output") else len(labels)
    if labels and classes < len(labels):
        raise UsageError(
            f"the head has {classes} classes, but the training corpus has {len(labels)} labels; use num_classes: labels"
        )


def one_word(label: str) -> str:
    """Replace spaces with no-break spaces, because metrics compare words."""
    return label.replace(" ", "\u00a0")


def named(labels: Sequence[str], classes: int) -> list[str]:
    """Return a name for each class: its label, or its index if it has none."""
    return [labels[number] if number < len(labels) else str(number) for number in range(classes)]
