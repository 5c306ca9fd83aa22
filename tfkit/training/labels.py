"""Class labels of a run, in labels.json."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.errors import RunError
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json, remove
from tfkit.training.folder import LABELS, RunFolder


def save_labels(folder: RunFolder, labels: Sequence[str]) -> None:
    """Write the labels in the order of the logits. Remove the file if there are none."""
    if labels:
        write_json(folder / LABELS, list(labels))
    else:
        remove(folder / LABELS)


def read_labels(folder: RunFolder) -> tuple[str, ...]:
    """Read the labels of a run, or () if it has none. Raise RunError if the file is damaged."""
    if not (folder / LABELS).is_file():
        return ()
    labels = read_json(folder / LABELS)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise RunError(f"{folder / LABELS}: not a list of labels")
    if len(set(labels)) != len(labels):
        raise RunError(f"{folder / LABELS}: contains duplicate labels")
    return tuple(labels)
