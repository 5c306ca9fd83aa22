"""What `tfkit parts` knows: every registered part, its options, what it can do, and a recipe with it that is right."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, BeforeValidator, Field
from rich.console import Console

from tfkit.components.attention import Attention
from tfkit.components.feedforward import MLP
from tfkit.components.position.base import Position
from tfkit.core.component import Component, Problem
from tfkit.core.inputs import CAPABILITIES
from tfkit.core.options import PositiveInt
from tfkit.core.registry import CATALOGUES, REGISTRY, register
from tfkit.data.tokenizer.base import TokenizerPart
from tfkit.recipe.load import load_recipe
from tfkit.recipe.text.source import parse
from tfkit.reports.parts import ARXIV, SLOTS, Minimal, line_data, minimal_recipe, part_data, recipe_text, slot_data
from tfkit.reports.parts_table import all_data, matrix_data, render_matrices, render_part, render_slot, render_slots

from ..sampling import each, looped

PARTS = [(slot, name) for slot in CATALOGUES for name in REGISTRY.names(slot)]
WIDTHS = (40, 80, 200)


class Linear(BaseModel):
    type: Literal["linear"] = Field(description="all alike")
    factor: float = Field(description="extension of the context length")


class Dynamic(BaseModel):
    type: Literal["dynamic"] = Field(description="as they come")
    alpha: float = Field(description="how fast")


@cache
def minimal_of(slot: str, name: str) -> Minimal:
    return minimal_recipe(REGISTRY.get(slot, name))


@cache
def data(slot: str, name: str) -> dict[str, Any]:
    return part_data(REGISTRY.get(slot, name))


def printed(render: Any, what: Any, width: int = 200) -> str:
    out = io.StringIO()
    render(what, Console(file=out, width=width))
    return out.getvalue()


def squeezed(text: str) -> str:
    """Text without the blanks and line ends that wrapping moves about."""
    return "".join(text.split())


def own(slot: str, base: type, name: str = "own_of_a_test", **attributes: Any) -> Any:
    """Register a part of a test's own."""
    return register(slot, name)(type("Own", (base,), {"__module__": __name__, **attributes}))


@pytest.mark.full
def test_the_smallest_recipe_with_a_part_is_right_at_any_width() -> None:
    def check(slot: str, name: str) -> None:
        minimal = minimal_of(slot, name)
        assert minimal.problem is None and minimal.data is not None
        read = []
        for width in WIDTHS:
            text = recipe_text(minimal.data, width)
            assert all(len(line) <= width for line in text.splitlines()) and re.search(rf"\b{name}\b", text)
            root, faults = parse(text, "recipe.yaml")
            assert not faults
            read.append(root.plain())
        assert all(other == read[0] for other in read)
        load_recipe(read[0])

    each(PARTS, check)


@looped("text", ["one {{ a + b }} of several words\n", "  two  blanks  'and' \"quotes\" \\ # \t: é ", "plain words"])
def test_a_long_text_is_broken_between_words_and_read_the_same(text: str) -> None:
    for width in (1, 10, 20, 40):
        data = {"objective": {"type": "chat", "template": text, "weight": 1}}
        written = recipe_text(data, width)
        assert yaml.safe_load(written) == data
        assert width < 40 or max(map(len, written.splitlines())) <= width


def test_a_part_says_what_it_is() -> None:
    def check(slot: str, name: str) -> None:
        about, part = data(slot, name), REGISTRY.get(slot, name)
        assert issubclass(part, Component)
        assert about["doc"].partition("\n\n")[0].endswith("."), "the docstring begins with a sentence"
        assert about["what"] and not about["own"] and about["file"].startswith("tfkit/")
        options = [field["name"] for field in about["fields"] if "." not in field["name"]]
        assert options == list(part.Config.model_fields)
        assert json.loads(json.dumps(about)) == about

    each(PARTS, check)


@looped("slot", [slot for slot in CATALOGUES if REGISTRY.names(slot)])
def test_the_line_that_writes_a_slot_is_right(slot: str) -> None:
    assert set(SLOTS) == set(CATALOGUES)
    key, _, value = SLOTS[slot].written.partition(": ")
    topology = "encoder_decoder" if "data." in key else "decoder"
    base = minimal_recipe(REGISTRY.get("corpus", "phrases") if "data." in key else REGISTRY.get("model", topology)).data
    recipe = load_recipe(base or {}, sets=[f"{key}={value}"])
    assert recipe.blueprint(100)


@looped("slot", ["attention", "position", "feedforward", "norm", "residual", "mask", "init", "model"])
def test_parts_from_papers_name_them_and_their_year(slot: str) -> None:
    for line in slot_data(slot)["parts"]:
        assert line["paper"] and "(" not in line["paper"], line["name"]
        assert re.search(r"\b(19|20)\d\d\b", ARXIV.sub("", line["paper"])), line["paper"]


def test_papers_are_separated_from_the_sentence() -> None:
    line = line_data(REGISTRY.get("attention", "multi_head"))
    assert (line["paper"], line["arxiv"]) == ("Vaswani et al. 2017, arXiv 1706.03762", ["1706.03762"])
    assert "Vaswani" not in line["what"]
    two = line_data(REGISTRY.get("tokenizer", "bpe"))
    assert two["paper"] == "Sennrich 2016, arXiv 1508.07909; GPT-2, Radford 2019"
    assert line_data(REGISTRY.get("activation", "tanh"))["paper"] is None


def test_the_options_of_a_part() -> None:
    fields = {field["name"]: field for field in data("attention", "multi_head")["fields"]}
    heads, dropout = fields["num_heads"], fields["dropout"]
    assert heads["required"] and heads["default"] is None and heads["limits"]["ge"] == 1
    assert "query heads" in heads["meaning"]
    assert (dropout["default"], dropout["type"]) == (0.0, "number from 0, below 1")
    assert fields["qk_norm"]["type"] == "a norm (true, a name, or options), or none"
    assert "bias" in data("feedforward", "glu")["checked"]
    assert "num_kv_heads" in data("attention", "multi_head")["checked"]
    assert {"final", "lr"} <= set(data("schedule", "cosine")["checked"])


def test_the_options_of_mappings_follow_them() -> None:
    names = [field["name"] for field in data("tokenizer", "bpe")["fields"]]
    assert names.index("special_tokens") < names.index("special_tokens.pad") < names.index("vocab_size")
    text = printed(render_part, data("tokenizer", "bpe"))
    assert "as below" in text and '"<pad>"' in text

    class Config(Position.Config):
        scaling: Linear | Dynamic | None = None

    about = part_data(own("position", Position, Config=Config))
    meanings = {field["name"]: field["meaning"] for field in about["fields"]}
    assert meanings["scaling.factor"] == "linear: extension of the context length"
    assert meanings["scaling.alpha"] == "dynamic: how fast"


def test_what_a_part_can_and_cannot_do() -> None:
    about = part_data(own("attention", Attention, capabilities=frozenset({"causal", "padding"})))
    assert about["capabilities"]["causal"] is True and about["capabilities"]["rotation"] is False
    can, _, cannot = printed(render_part, about).partition("It cannot:")
    assert "ignores padding" in can and CAPABILITIES["rotation"] in cannot
    assert "It cannot:" not in printed(render_part, data("attention", "multi_head"))
    assert data("tokenizer", "bpe")["capabilities"] == {}


def test_what_a_part_asks_and_needs() -> None:
    assert data("position", "rotary")["asks"] == {"rotation": ["attention"]}
    assert data("mask", "prefix")["needs"] == ["prefix_length"]
    assert "Every call of the model must pass: prefix_length" in printed(render_part, data("mask", "prefix"), 80)


def test_a_part_of_ones_own_is_marked_with_its_file_and_may_have_no_docstring() -> None:
    part = own("feedforward", MLP)
    line = line_data(part)
    assert line["own"] and str(line["file"]).endswith("tests/reports/test_parts.py")
    assert "custom: " in printed(render_slot, slot_data("feedforward"))
    assert part_data(part)["recipe"].count("type: own_of_a_test") == 1
    for width in WIDTHS:
        assert "docstring" in printed(render_slot, slot_data("feedforward"), width)
        assert "docstring" in printed(render_part, part_data(part), width)


def test_an_example_makes_the_recipe_of_an_option_that_no_table_knows() -> None:
    class Config(MLP.Config):
        runes: dict[str, int]

    wild = own("feedforward", MLP, Config=Config)
    about = part_data(wild)
    assert about["recipe"] is None and "runes" in about["recipe_problem"]
    assert "no minimal recipe" in printed(render_part, about, 80)
    wild.example = {"runes": {"a": 1}}
    assert "runes: {a: 1}" in part_data(wild)["recipe"]


def test_required_options_outside_the_model_are_found_by_their_type() -> None:
    class Config(TokenizerPart.Config):
        count: PositiveInt
        share: float
        flag: bool
        files: list[str]
        pair: Annotated[tuple[int, float], BeforeValidator(tuple)]
        names: dict[str, str]

    minimal = minimal_recipe(own("tokenizer", TokenizerPart, Config=Config))
    assert minimal.problem is None
    said = (minimal.data or {})["data"]["tokenizer"]
    assert (said["pair"], said["names"]) == ([8, 0.5], {"text": "text"})


def test_a_check_that_fails_is_reported_in_a_sentence() -> None:
    class Config(MLP.Config):
        def check(self, shape: Any) -> Any:
            yield Problem("d_ff", str(1 // 0))

    about = part_data(own("feedforward", MLP, Config=Config))
    assert about["recipe"] is None and "ZeroDivisionError" in about["recipe_problem"]


@looped("width", WIDTHS)
def test_a_list_is_wrapped_and_never_cut(width: int) -> None:
    slots = [slot_data(slot) for slot in CATALOGUES]
    text = printed(render_slots, slots, width)
    assert max(map(len, text.splitlines())) <= width
    assert not any(line != line.rstrip() for line in text.splitlines())
    for slot in slots:
        assert squeezed(f"{slot['slot']}: {slot['purpose']}") in squeezed(text)
        for part in slot["parts"]:
            about = part["what"] + (f" ({part['paper']})" if part["paper"] else "")
            for word in (part["name"], *about.split()):
                # a word may be broken where it is longer than its column, in a terminal too narrow for it
                assert word in text or (len(word) > 20 and squeezed(word)[:18] in squeezed(text))


@pytest.mark.full
def test_a_part_is_wrapped_and_never_cut() -> None:
    def check(slot: str, name: str) -> None:
        for width in WIDTHS:
            about = data(slot, name) | {"recipe": recipe_text(minimal_of(slot, name).data or {}, width)}
            text = printed(render_part, about, width)
            drawn = {line for line in about["doc"].splitlines() if "  " in line.strip()}
            assert max(len(line) for line in text.splitlines() if line not in drawn) <= width
            said = [f"{field['name']} {field['type']} {field['meaning']}" for field in about["fields"]]
            for word in " ".join([*said, about["doc"], about["recipe"]]).split():
                assert word in text or len(word) > 14, f"{word} is cut"
            assert "…" not in text

    each(PARTS, check)


def test_the_matrix_marks_what_works_and_says_why_not() -> None:
    own("attention", Attention, "stiff", capabilities=frozenset({"causal", "bidirectional", "bias", "masks"}))
    table = matrix_data("position", "attention")
    assert table["refused"]["rotary"]["multi_head"] is None
    assert "rotation" in table["refused"]["rotary"]["stiff"]
    for width in WIDTHS:
        text = printed(render_matrices, all_data(), width)
        assert max(map(len, text.splitlines())) <= width and "yes" in text
        assert squeezed(table["refused"]["rotary"]["stiff"]) in squeezed(text)
    lines = [line.split() for line in text.splitlines()]
    names = next(line for line in lines if "stiff" in line)
    row = next(line for line in lines if line[:1] == ["rotary"])
    assert row[1 + names.index("multi_head")] == "yes" and row[1 + names.index("stiff")].isdigit()


def test_equal_reasons_have_one_number() -> None:
    reason = "they never met"
    tables = [{"slot": "a", "other": "b", "refused": {"x": {"y": reason, "z": None}, "w": {"y": reason, "z": "other"}}}]
    text = printed(render_matrices, tables, 80)
    assert text.count(reason) == 1
    assert printed(render_matrices, tables, 40).split()[3:9] == ["x", "y:", "1", "z:", "yes", "w"]
    assert [line.split() for line in text.splitlines()[2:4]] == [["x", "1", "yes"], ["w", "1", "2"]]
