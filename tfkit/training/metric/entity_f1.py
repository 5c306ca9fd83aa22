"""The F1 of whole entities, as they are tagged word by word."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.training.metric.base import TextMetric

Entity = tuple[str, int, int]  # its type, its first word and its last


@register("metric", "entity_f1")
class EntityF1(TextMetric):
    """100 * 2 * right / (predicted + wanted) entities, each right as a whole (Tjong Kim Sang and De Meulder 2003).

    Entities are read from tags B-type, I-type, O (also E- and S-) as conlleval and seqeval read them: an entity ends
    where a tag cannot go on with it, and I-type begins one where nothing of that type stands before it.
    """

    samples = (
        ("B-place I-place O", "O B-time O B-place", "B-time I-time I-time"),
        ("B-place O O", "O B-place O B-time", "O B-time I-time"),
    )

    compares: ClassVar = "tags"

    class Config(TextMetric.Config):
        """Options of entity_f1."""

    def check_reference(self, reference: str) -> None:
        entities(reference.split(" "))

    def compare(self, outputs: list[str], references: list[str]) -> float:
        """The F1 in percent, over all entities of all texts; 0 where there is no entity at all."""
        predicted, wanted, right = 0, 0, 0
        for output, reference in zip(outputs, references, strict=True):
            one, other = entities(output.split(" ")), entities(reference.split(" "))
            predicted, wanted, right = predicted + len(one), wanted + len(other), right + len(one & other)
        return 100.0 * 2 * right / (predicted + wanted) if predicted + wanted else 0.0


def entities(tags: list[str]) -> set[Entity]:
    """The entities that tags mark."""
    found: set[Entity] = set()
    start, before, kind = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, type_ = parted(tag)
        ends = before in "BI" and (prefix in "BSO" or type_ != kind)
        if before != "O" and (ends or before in "ES"):
            found.add((kind, start, place - 1))
        begins = prefix in "BS" or (prefix != "O" and (before in "ESO" or type_ != kind))
        start = place if begins else start
        before, kind = prefix, type_
    return found


def parted(tag: str) -> tuple[str, str]:
    """A tag's letter and the type after it; raises UsageError for a tag that marks no entity."""
    prefix, _, kind = tag.partition("-")
    if prefix not in ("B", "I", "E", "S", "O") or (prefix == "O" and kind):
        raise UsageError(f"entity_f1 reads tags such as B-place, I-place and O, got '{tag}'; take accuracy or macro_f1")
    return prefix, kind
