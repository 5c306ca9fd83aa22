"""Pictures: complete, the same twice, no text over another or outside its box, and differences marked."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.recipe.fuzz.drawn import drawn
from tests.recipe.fuzz.tree import plain
from tests.sampling import each, looped, shares
from tests.shipped import shipped
from tests.work import work
from tfkit.components.residual import Residual
from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import TfkitError
from tfkit.core.registry import REGISTRY, register
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count
from tfkit.reports.letters import lines, width
from tfkit.reports.picture import compared, picture
from tfkit.reports.picture_text import mermaid, text
from tfkit.reports.show import as_data
from tfkit.reports.svg import svg
from tfkit.reports.table import FIGURES, figure, weight_groups

SIZES = {"t": 12.5, "h": 18.0}


class Area(NamedTuple):
    """A rectangle of a picture."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Area) -> bool:
        slack = 0.11  # numbers of an SVG have one decimal
        return (
            self.left <= other.left + slack
            and self.top <= other.top + slack
            and self.right + slack >= other.right
            and self.bottom + slack >= other.bottom
        )

    def meets(self, other: Area) -> bool:
        return (
            min(self.right, other.right) - max(self.left, other.left) > 0.2
            and min(self.bottom, other.bottom) - max(self.top, other.top) > 0.2
        )


def _text_area(node: ET.Element) -> Area:
    """The most that a text takes: from its ascent to its descent, as wide as the table of letters says."""
    kind = next((word for word in node.get("class", "").split() if word in SIZES), "")
    size = SIZES.get(kind, 11.0)
    wide = float(node.get("textLength") or width("".join(node.itertext()), size, bool(kind)))
    x, y = float(node.get("x", 0)), float(node.get("y", 0))
    left = x - wide / 2 if node.get("text-anchor") == "middle" else x
    return Area(left, y - 0.8 * size, left + wide, y + 0.25 * size)


def _rect_area(node: ET.Element) -> Area:
    x, y = float(node.get("x", 0)), float(node.get("y", 0))
    return Area(x, y, x + float(node.get("width", 0)), y + float(node.get("height", 0)))


def _plain(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]


def check_places(markup: str) -> None:
    """Every text lies within its box and the page, and no two texts and no two boxes lie over each other."""
    root = ET.fromstring(markup)
    page = _rect_area(next(node for node in root if node.get("class") == "page"))
    texts, boxes = [], []
    for group in root:
        if _plain(group) == "text":
            texts.append(_text_area(group))
        if _plain(group) == "g":
            inside = [node for node in group.iter() if _plain(node) == "text"]
            rects = [_rect_area(node) for node in group.iter() if _plain(node) == "rect"]
            boxes.append(rects[0])
            assert all(rects[0].holds(area) for area in [*rects, *map(_text_area, inside)]), ET.tostring(group)
            texts += map(_text_area, inside)
    assert all(page.holds(area) for area in [*texts, *boxes])
    for areas in (texts, boxes):
        areas.sort(key=lambda area: area.top)
        for number, one in enumerate(areas):
            for other in areas[number + 1 :]:
                if other.top > one.bottom:
                    break
                assert not one.meets(other), (one, other)


def _squeezed(words: str) -> str:
    return re.sub(r"\s", "", words)


def shown(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What `show` prints: the name of each part, and a word, shape, figure or tie of it."""
    for row in data["rows"]:
        for part in row["parts"]:
            name = "" if part["name"] in ("residual", "once") else part["name"]  # in the band, or the stack's input
            for options in part["options"]:
                yield name, options["type"]
            for word in weight_groups(part["weights"]):
                yield name, word
            for cost in FIGURES:
                if part[cost]:
                    yield name, figure(cost, part[cost])
        for rule in [*row.get("mask", ()), *(row.get("position") or ())]:
            yield "", rule
    yield "", f"{data['parameters']:,}"
    for stack in data["stacks"].values():
        for name, value in stack.items():
            if value and name != "num_layers":
                yield "", f"{name} {value:,}"


def check_picture(blueprint: Blueprint, sizes: bool = True) -> None:
    """All that is promised of the picture of one model."""
    counts = count(blueprint, 8 if (blueprint.last.max_length or 8) >= 8 else 1) if sizes else None
    first = picture(blueprint, counts)
    markup = svg([first])
    assert markup == svg([picture(blueprint, counts)])
    check_places(markup)
    pictured = [_squeezed(" ".join(node.itertext())) for node in ET.fromstring(markup).iter() if _plain(node) == "g"]
    everything = _squeezed(" ".join(ET.fromstring(markup).itertext()))
    if counts is not None:
        for name, word in shown(as_data(counts.blueprint, counts)):
            found = [box for box in pictured if _squeezed(name) in box] if name else [everything]
            assert any(_squeezed(word).replace("·", "") in box.replace("·", "") for box in found), (name, word)
    heads = [blueprint.head, *dict(blueprint.heads).values()]
    tied = [head for head in heads if head is not None and head.is_tied()]
    assert markup.count('class="tie"') == len(tied) + blueprint.shared_embedding
    assert len(text(first)) > 100
    assert mermaid([first]).startswith("flowchart BT\n")


@pytest.mark.parametrize("seeds", shares(range(300), 20))
def test_random_recipes_are_drawn(seeds: list[int]) -> None:
    def check_drawn(seed: int) -> None:
        try:
            blueprint = load_recipe(plain(drawn(Random(seed)))).blueprint()
        except TfkitError:
            return
        check_picture(blueprint, sizes=False)
        check_places(svg(compared(picture(blueprint), picture(shipped("t5-small").blueprint()))))

    each(seeds, check_drawn)


@looped(
    ("change", "key"),
    [
        ("layer.attention.num_heads=4", "stack/0/attention"),
        ("layer.feedforward.d_ff=64", "stack/0/feedforward"),
        ("layer.attention_norm=rms_norm", "stack/0/attention_norm"),
        ("layer.dropout=0.3", "stack/0"),
        ("position=sinusoidal", "stack/position"),
        ("max_length=64", "stack/input"),
        ("init=xavier", "init"),
        ("head.bias=true", "head"),
        ("head.bias=false", None),
    ],
)
def test_one_changed_line_marks_one_box(change: str, key: str | None) -> None:
    sides = compared(*(picture(load_recipe("gpt2", sets=sets).blueprint()) for sets in ([], [f"model.{change}"])))
    check_places(svg(sides))
    for side in sides:
        assert {box for box, mark in side.marks.items() if mark is not None} == ({key} if key else set())


LAYOUTS = {
    "post_norm": "(+), attention_norm",
    "pre_norm": "attention_norm, attention, (+)",
    "sandwich": "attention_norm, attention, attention_output_norm, (+)",
    "branch_norm": "attention, attention_norm, (+)",
    "deep_norm": "× 1.414, attention, (+), attention_norm",
    "parallel": "norm, attention, feedforward, (+), (+)",
    "parallel_two_norms": "attention_norm, attention, feedforward_norm, feedforward, (+)",
    "plain": "attention, feedforward",
    **dict.fromkeys(  # sums of streams, which are no arrows
        ("hyper_connections", "attention_residuals"), "attention, feedforward, attention_norm, feedforward_norm"
    ),
}


def outline(layout: Any) -> str:
    """The boxes and sums of one layer, in the order of the text."""
    recipe = load_recipe("gpt2", overrides={"model.layer.residual": layout, "model.num_layers": 2})
    found = [
        re.match(r"  │ .*?(\(\+\)|× [\d.]+|\w+(?=:))", line) for line in text(picture(recipe.blueprint())).splitlines()
    ]
    return ", ".join(one[1] for one in found if one)


@looped("layout", REGISTRY.names("residual"))
def test_each_layout_is_drawn_as_its_equation_says(layout: str) -> None:
    assert LAYOUTS[layout] in outline(layout)


def test_a_layout_of_one_s_own_is_drawn_from_its_forward() -> None:
    with REGISTRY.recording() as entries:

        @register("residual", "halved_for_a_test")
        class Halved(Residual):
            """x = x + 0.5 * Sublayer(Norm(x)), and one that looks at the shape of the stream."""

            class Config(Residual.Config):
                looks: bool = False

            def forward(self, x: Any, branches: Any) -> Any:
                for branch in branches:
                    x = x + 0.5 * branch(branch.norm(x[:1] if self.config.looks else x))  # type: ignore[attr-defined]
                return x

    try:
        assert "attention_norm, attention, × 0.5, (+)" in outline("halved_for_a_test")
        assert outline({"type": "halved_for_a_test", "looks": True}).count("(+)") == 0
    finally:
        REGISTRY.take_back(iter(entries))


def test_ten_thousand_layers_are_drawn_at_once() -> None:
    recipe = {"tfkit": 1, "model": {**shipped("gpt2").root.plain()["model"], "num_layers": 10_000}}
    recipe["model"]["layer"]["feedforward"]["d_ff"] = {"per_layer": [1 + n * n % 199 for n in range(10_000)]}
    blueprint = load_recipe(recipe).blueprint()
    found: list[str] = []
    assert work(lambda: found.append(svg([picture(blueprint)]))) < 1_000_000
    markup = found[0]
    assert "more kinds of layers" in markup and len(markup) < 200_000
    check_places(markup)


HOSTILE = ("<script>alert(1)</script>", "x" * 500, "مرحبا بالعالم", "変換器の模型" * 20, "\x1b[2J\u202e]]>&amp;")


@looped("name", HOSTILE)
def test_names_of_strangers_are_text_that_fits(name: str) -> None:
    heads = {"model.heads": {"more": {"type": "classifier", "num_classes": 2, "pool": "last"}}}
    blueprint = load_recipe("gpt2", overrides=heads).blueprint()
    named = replace(blueprint, name=name, heads=((name, blueprint.heads[0][1]),))
    markup = svg([picture(named)])
    check_places(markup)
    assert "<script" not in markup and "\x1b" not in markup and "\u202e" not in markup
    assert "<script" not in mermaid([picture(named)])


def test_lines_break_between_words_before_they_break_words() -> None:
    assert lines(["one", "two"], 1000, 11) == ["one · two"]
    assert lines(["one two"], width("one two", 11) - 1, 11) == ["one", "two"]
    assert "".join(lines(["m" * 50], 60, 11)) == "m" * 50
