"""Patterns are written as short as they are read: what `shortest` says of layers, `expand` makes of it again."""

from __future__ import annotations

import random

from tfkit.core.errors import Place
from tfkit.recipe.architecture.pattern import expand, shortest
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.source import from_value

from ..sampling import looped


@looped(
    ("kinds", "once", "pattern"),
    [
        ("llllg", 0, ["l*4", "g"]),
        ("lglgl", 0, ["l", "g"]),
        ("ggg", 0, ["g"]),
        ("dllgllg", 1, ["d", ["l*2", "g"]]),
        ("ddlglg", 2, ["d*2", ["l", "g"]]),
        ("dd", 2, ["d"]),
        ("dlg", 0, ["d", "l", "g"]),
    ],
)
def test_the_shortest_pattern(kinds: str, once: int, pattern: list[object]) -> None:
    assert shortest(kinds, once) == pattern


@looped("seed", range(40))
def test_a_pattern_gives_the_layers_that_it_was_made_of(seed: int) -> None:
    draw = random.Random(seed)
    part = [draw.choice("abc") for _ in range(draw.randint(1, 6))]
    kinds = (part * draw.randint(1, 4) + part[: draw.randint(0, len(part))])[: draw.randint(1, 30)]
    once = draw.randint(0, len(kinds))
    faults = Faults()
    node, _ = from_value(shortest(kinds, once), Place("<mapping>"), "model.pattern")
    entries = expand(node, len(kinds), "abc", faults)
    assert [entry.kinds for entry in entries] == [(kind,) for kind in kinds] and not faults.errors
