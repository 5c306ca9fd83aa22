"""Edits of recipe text: the value changes by the merge rule, and everything else stays as it was written."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfkit.core.errors import RecipeError, UsageError
from tfkit.recipe.changes.edit import edited, rewritten, written
from tfkit.recipe.changes.outline import outline
from tfkit.recipe.overlays.merge import merge
from tfkit.recipe.overlays.overlay import override_overlay
from tfkit.recipe.shipped import shipped_recipes
from tfkit.recipe.text.node import inline
from tfkit.recipe.text.source import parse

TEXT = """\
# A recipe.
tfkit: 1   # the language
model:
  type: decoder
  d_model: 64     # narrow

  layer:
    # as in the paper
    attention: {type: multi_head, num_heads: 8,   # eight
                bias: false}
    norm: {type: layer_norm, eps: 1e-12}
    feedforward:
      type: mlp   # the original
      d_ff: 256
  pattern:
    - a
    - b
# about training
train: {steps: 10}
"""


def read(text: str) -> Any:
    root, faults = parse(text, "r.yaml")
    assert not faults, faults
    return root.plain()


def changes(before: str, after: str) -> list[str]:
    """The lines that went and came, in order."""
    lines = difflib.ndiff(before.splitlines(keepends=True), after.splitlines(keepends=True))
    return [line.rstrip("\n") for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model.d_model", 128, ["-  d_model: 64     # narrow", "+  d_model: 128     # narrow"]),
        ("model.d_model", 64, []),
        ("model.layer.norm.eps", 1e-12, []),
        ("model.layer.norm.eps", 0.00001, ["-    norm: {type: layer_norm, eps: 1e-12}"]),
        ("model.layer.norm", "rms_norm", ["+    norm: rms_norm"]),
        ("model.layer.norm", "layer_norm", []),
        ("model.layer.norm", None, ["+    norm: none"]),
        ("model.layer.attention.num_heads", 4, ["+    attention: {type: multi_head, num_heads: 4,   # eight"]),
        ("model.layer.attention.softcap", 50, ["+                bias: false, softcap: 50}"]),
        ("model.layer.feedforward", "mlp", []),
        (
            "model.layer.feedforward",
            {"type": "glu", "d_ff": 8},
            ["+      type: glu   # the original", "+      d_ff: 8"],
        ),
        ("model.layer.feedforward", {"type": "glu"}, ["+    feedforward: {type: glu}"]),
        ("model.layer.feedforward.bias", False, ["+      bias: false"]),
        ("model.layer.dropout", 0.1, ["+    dropout: 0.1"]),
        ("model.pattern", ["b"], ["+  pattern: [b]"]),
        ("model.encoder.layer.dropout", 0.1, ["+  encoder:", "+    layer: {dropout: 0.1}"]),
        ("train.optimizer.eps", 1e-9, ["-train: {steps: 10}", "+train: {steps: 10, optimizer: {eps: 1e-9}}"]),
        ("data.tokenizer.vocab_size", 600, ["+data:", "+  tokenizer: {vocab_size: 600}"]),
        ("train", {"steps": 3}, ["-train: {steps: 10}", "+train: {steps: 3}"]),
    ],
)
def test_only_the_value_changes(key: str, value: Any, expected: list[str]) -> None:
    made = changes(TEXT, edited(TEXT, key, value))
    marked = [line for line in made if line.startswith(("+ ", "- ", "+", "-"))]
    for line in expected:
        assert line[0] + " " + line[1:] in marked
    assert bool(expected) == bool(marked)


def test_comments_stay_where_a_part_is_replaced_beside_them() -> None:
    after = edited(TEXT, "model.layer.attention", {"type": "mine", "num_heads": 2})
    assert "    # as in the paper\n    attention: {type: mine, num_heads: 2}\n    norm:" in after


def test_a_part_too_wide_for_a_line_is_written_in_lines() -> None:
    options = {f"option_{n}": f"value_{n}" for n in range(8)}
    after = edited(TEXT, "model.layer.feedforward", {"type": "wide", **options})
    assert "    feedforward:\n      type: wide\n      option_0: value_0\n" in after
    assert max(map(len, after.splitlines())) <= 120
    assert read(after)["model"]["layer"]["feedforward"] == {"type": "wide", **options}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "   # last", "\n# last\n", "\n\n"])
def test_new_lines_take_the_files_line_ends(newline: str, end: str) -> None:
    text = newline.join(["a: 1", "b:", "  c: 2"]) + end.replace("\n", newline)
    after = edited(edited(text, "b.d", 3), "e", 4)
    assert read(after) == {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}
    assert after.count("\n") == after.count(newline)
    assert after.startswith(text.rstrip("\r\n").split(newline + "#")[0])


def test_a_byte_order_mark_stays() -> None:
    assert edited("\ufeffa: 1\n", "a", 2) == "\ufeffa: 2\n"


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("a: {}\n", "a.b", 1, "a: {b: 1}\n"),
        ("{}", "a.b", 1, "{a: {b: 1}}"),
        ("a: {b: 1,}\n", "a.c", 2, "a: {b: 1, c: 2,}\n"),
        ('a: {"b":1}\n', "a.b", "x", 'a: {"b":x}\n'),
        ("a: |\n  text\n\nb: 1\n", "a", "word", "a: word\n\nb: 1\n"),
        ("a: |+\n  text\n\n", "b", 1, "a: |+\n  text\n\nb: 1\n"),
        ("a: one\n  two\nb: 1\n", "a", 3, "a: 3\nb: 1\n"),
        ("a:  # why\n- 1\n- 2\n", "a", [3], "a:  # why\n  [3]\n"),
        ("a: 1\n...\n", "b", 2, "a: 1\nb: 2\n...\n"),
        ("---\na: 'x'  # é 😀\n", "a", "y z", '---\na: "y z"  # é 😀\n'),
        ("norm: word\n", "norm.eps", 1, "norm: {type: word, eps: 1}\n"),
        ("norm: true\n", "norm.eps", 1, "norm: {eps: 1}\n"),
        ("a: 1\n", "b", "no\u2028\x85\x7f", 'a: 1\nb: "no\\u2028\\u0085\\u007f"\n'),
    ],
)
def test_every_style(text: str, key: str, value: Any, after: str) -> None:
    assert edited(text, key, value) == after


# ------------------------------------------------------------------------------------------------------------- anchors

ANCHORED = """\
encoder: &side {num_layers: 2, d_model: 8}
decoder: *side
both:
  <<: *side
  type: x
"""


def test_what_an_anchor_names_is_not_changed_elsewhere() -> None:
    with pytest.raises(UsageError, match=r"<text>:1: the value &side is used at line 2 too"):
        edited(ANCHORED, "encoder.num_layers", 3)
    with pytest.raises(UsageError, match="&side is used at line 3 too"):
        edited(ANCHORED.replace("encoder: &side", "position:\n  encoder: &side"), "position", "none")


def test_a_merge_key_is_a_use_too() -> None:
    with pytest.raises(UsageError):
        edited(ANCHORED.replace("decoder: *side\n", ""), "encoder.num_layers", 3)


def test_an_alias_is_written_out_where_it_changes() -> None:
    after = edited(ANCHORED, "decoder.num_layers", 3)
    assert changes(ANCHORED, after) == ["- decoder: *side", "+ decoder: {num_layers: 3, d_model: 8}"]


def test_a_key_that_comes_by_a_merge_key_is_said_anew() -> None:
    assert changes(ANCHORED, edited(ANCHORED, "both.d_model", 3)) == ["+   d_model: 3"]


def test_an_anchor_that_nobody_uses_is_in_nobodys_way() -> None:
    assert edited("a: &x {b: 1}\n", "a.b", 2) == "a: &x {b: 2}\n"


# -------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("text", "key", "value", "message"),
    [
        ("a: [1\n", "a", 1, "mine.yaml:1:4: this bracket is never closed"),
        ("a: 1\na: 2\n", "a", 1, "said twice"),
        (TEXT, "model.pattern.x", 1, "options without a type cannot be laid over a list (at mine.yaml:16:5)"),
        (TEXT, "model..x", 1, "'model..x' is no dotted key"),
        (TEXT, "extends", "gpt2", "'extends' cannot be laid over a recipe; write it in the file"),
        (TEXT, "model.pattern[0]", 1, "a list is replaced whole"),
        (TEXT, "model.d_model", float("inf"), "a number in a recipe is finite"),
        (TEXT, "model.d_model", object(), "an object is no recipe value"),
    ],
)
def test_what_is_wrong_is_a_fault(text: str, key: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        edited(text, key, value, "mine.yaml")
    assert message in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- removing


@pytest.mark.parametrize(
    ("text", "wanted", "after"),
    [
        ("a: 1\nb: 2  # two\nc: 3\n", {"a": 1, "c": 3}, "a: 1\nc: 3\n"),
        ("a: {b: 1, c: 2, d: 3}\n", {"a": {"b": 1, "d": 3}}, "a: {b: 1, d: 3}\n"),
        ("a: {b: 1, c: 2, d: 3}\n", {"a": {"b": 1}}, "a: {b: 1}\n"),
        ("a: {b: 1, c: 2, d: 3}\n", {"a": {"d": 3}}, "a: {d: 3}\n"),
        ("a: {b: 1, c: 2}\n", {"a": {}}, "a: {}\n"),
        ("a: {b: 1,  # one\n    c: 2}\n", {"a": {"b": 1}}, "a: {b: 1,  # one\n    }\n"),
        ("a:\n  b: 1\n", {"a": {}}, "a: {}\n"),
        ("a:\n  b: 1  # here\n  c: 2\n", {"a": {"d": True, "c": 2}}, "a:\n  d: true  # here\n  c: 2\n"),
        ("a:\n- b: 1\n  c: 2\n", {"a": [{"c": 2}]}, "a: [{c: 2}]\n"),
    ],
)
def test_keys_go_with_their_lines(text: str, wanted: Any, after: str) -> None:
    assert rewritten(text, wanted) == after


# ----------------------------------------------------------------------------------------------------------- properties

KEYS = st.sampled_from(["model", "layer", "encoder", "norm", "type", "attention", "x", "y", "per_layer"])
WORDS = st.sampled_from(["rms_norm", "mlp", "a b", "x: y", "# no", "1", "none", "", "Größe 😀", "it's", "two\nlines"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([0.1, 1e-9, 2.0, -0.0]), WORDS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
PATHS = st.lists(KEYS.filter(lambda key: key != "per_layer"), min_size=1, max_size=4).map(".".join)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Recipe text in every style: blocks and brackets, quotes, comments, blank lines, both line ends."""
    data = draw(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    lines = list(_mapping_lines(draw, data, 0))
    return newline.join(lines) + draw(st.sampled_from(["", newline, f"{newline}# end{newline}"]))


def _mapping_lines(draw: st.DrawFn, data: dict[str, Any], indent: int) -> list[str]:
    lines = []
    for key, value in data.items():
        lines += draw(st.sampled_from([[], [], [""], [" " * indent + "# note"]]))
        head = " " * indent + key + draw(st.sampled_from([":", " :"]))
        tail = draw(st.sampled_from(["", "", "  # why", " "]))
        block = draw(st.booleans())
        if block and isinstance(value, dict) and value:
            lines += [head + tail, *_mapping_lines(draw, value, indent + draw(st.sampled_from([1, 2, 4])))]
        elif block and isinstance(value, list) and value:
            step = draw(st.sampled_from([0, 2]))
            lines += [head + tail, *(f"{' ' * (indent + step)}- {inline(item)}{tail}" for item in value)]
        elif block and isinstance(value, str) and "\n" in value:
            lines += [f"{head} |-{tail}", *(f"{' ' * (indent + 2)}{line}" for line in value.split("\n"))]
        elif block and isinstance(value, str) and "\n" not in value:
            lines.append(f"{head} '{value.replace(chr(39), chr(39) * 2)}'{tail}")
        else:
            lines.append(f"{head} {_broken(draw, inline(value), indent)}{tail}")
    return lines


def _broken(draw: st.DrawFn, text: str, indent: int) -> str:
    """What stands in brackets, over several lines."""
    if text[0] not in "{[" or '"' in text or not draw(st.booleans()):
        return text
    return text.replace(", ", f",  # then\n{' ' * (indent + 3)}")


def merged(text: str, key: str, value: Any) -> Any:
    """What the merge rule makes of it, or None where it refuses."""
    faults: list[Any] = []
    overlay = override_overlay(key, value, faults)
    assert overlay is not None
    result = merge(parse(text, "r.yaml")[0], overlay, faults)
    return None if faults else result.plain()


def strict(data: Any) -> str:
    """Text that tells true from 1 and 1 from 1.0."""
    return json.dumps(data, sort_keys=True)


def folded(data: Any) -> Any:
    """A part without options as the word that it is short for, so that both ways to write it are one."""
    if isinstance(data, dict):
        inner = {key: folded(value) for key, value in data.items()}
        return inner["type"] if set(inner) == {"type"} and isinstance(inner["type"], str) else inner
    return [folded(item) for item in data] if isinstance(data, list) else data


@settings(max_examples=200, deadline=None)
@given(texts(), PATHS, VALUES)
def test_the_text_reads_as_the_merge(text: str, key: str, value: Any) -> None:
    expected = merged(text, key, value)
    if expected is None:
        with pytest.raises(RecipeError):
            edited(text, key, value)
        return
    after = edited(text, key, value)
    assert strict(folded(read(after))) == strict(folded(expected))
    if "per_layer" not in text:  # beside it nothing stays
        assert set(lines_lost(text, after)) <= lines_of(text, re.split(r"\.type\b", key)[0])


def lines_lost(before: str, after: str) -> list[int]:
    """The lines, from 0, that are not in the text any more."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(True), after.splitlines(True), autojunk=False)
    kept = {n for block in matcher.get_matching_blocks() for n in range(block.a, block.a + block.size)}
    lines = before.splitlines(True)
    unended = {len(lines) - 1} if lines and not lines[-1].endswith("\n") else set()
    return sorted(set(range(len(lines))) - kept - unended)


def lines_of(text: str, key: str) -> set[int]:
    """The lines, from 0, that may change: those of the value at `key`, or of the brackets around where it will be."""
    piece, start = outline(text), 0
    for name in key.split("."):
        found = next((entry for entry in piece.entries or () if entry.name == name), None)
        if found is None:
            break
        piece, start = found.value, found.key.start
    if piece.block and found is None and piece.entries is not None:
        return set()
    return set(range(text.count("\n", 0, start), text.count("\n", 0, piece.end) + 1))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_written_reads_back(data: dict[str, Any]) -> None:
    assert read(written(data)) == read(inline(data))


@settings(max_examples=150, deadline=None)
@given(texts(), st.dictionaries(KEYS, VALUES, max_size=4))
@example("y: 1\nx: {model: 1,  # stays\n   layer: 2,  # goes\n   encoder: 3}", {"y": 1, "x": {"model": 1}})
def test_any_text_becomes_any_data(text: str, data: dict[str, Any]) -> None:
    wanted = read(inline(data))
    assert strict(read(rewritten(text, wanted))) == strict(wanted)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_said_again_is_the_same_text(name: str) -> None:
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert rewritten(text, read(text)) == text
    # a recipe that extends another may not say it, or have the whole model on one line
    said = "d_model" in read(text)["model"] or "\nmodel: {" in text
    assert len(changes(text, edited(text, "model.d_model", 8))) == 1 + said
