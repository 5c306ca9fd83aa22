"""resolved.yaml: every value, where it comes from, and the same Blueprint again."""

from __future__ import annotations

import re

import pytest
import yaml

import tfkit
from tfkit.recipe.resolved import scalar
from tfkit.recipe.source import parse_value

BASE = """
tfkit: 1
model:
  type: decoder
  d_model: 16
  vocab_size: 50
  num_layers: 4
  embedding: tokens
  position: rotary
  layer:
    residual: pre_norm
    norm: rms_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 32}
  layers:
    local: {mask: {type: window, size: 4}}
    global: {position: none, feedforward: {d_ff: 64}}
  pattern: [local, global]
  head: {type: language_model, tied: true}
variants:
  wide: {model.d_model: 32}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_text(BASE, encoding="utf-8")
    return path


def origins(text: str) -> dict[str, str]:
    """Comment of each line by its dotted path."""
    found, path = {}, []
    for line in text.splitlines()[1:]:
        match = re.fullmatch(r"( *)([^:]+):(?: (.*?))?(?:  # (.*))?", line)
        assert match is not None, line
        path = [*path[: len(match[1]) // 2], match[2]]
        if match[4]:
            found[".".join(path)] = match[4]
    return found


def test_every_value_says_where_it_comes_from(file):
    recipe = tfkit.load_recipe(file, variant="wide", sets=["model.layer.dropout=0.2"], overrides={"train.seed": 7})
    known = origins(recipe.resolved())
    assert known["model.d_model"].startswith(f"{file}:21:")
    assert known["model.vocab_size"] == f"{file}:6:15"
    assert known["model.layers.kind_0.dropout"] == "--set model.layer.dropout=0.2"
    assert known["model.layers.kind_0.mask.size"] == f"{file}:16:40"
    assert known["model.layers.kind_1.feedforward.d_ff"] == f"{file}:17:50"
    assert known["model.layers.kind_0.feedforward.d_ff"] == f"{file}:14:36"
    assert known["model.layers.kind_0.feedforward.bias"] == "default"
    assert known["train.seed"] == "<overrides>"
    assert known["train.steps"] == "default"


def test_a_value_of_the_base_recipe_keeps_its_file(file, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: base.yaml\nmodel: {d_model: 64}\n", encoding="utf-8")
    known = origins(tfkit.load_recipe(tmp_path / "child.yaml").resolved())
    assert known["model.d_model"] == f"{tmp_path / 'child.yaml'}:2:18"
    assert known["model.vocab_size"].startswith(str(file))


def test_each_side_of_an_encoder_decoder_says_where_it_comes_from():
    known = origins(tfkit.load_recipe("transformer-base").resolved())
    assert "transformer-base.yaml" in known["model.encoder.num_layers"]
    assert "transformer-base.yaml" in known["model.decoder.layer.cross_attention.num_heads"]


@pytest.mark.parametrize("sharing", ["shared: true", "attention: {shared: true}"])
@pytest.mark.parametrize("pattern", ["[local*2, global*2]", "[local, global]", "[local, [global, local]]"])
def test_shared_weights_come_back_equal(file, tmp_path, sharing, pattern):
    text = BASE.replace("global: {", f"global: {{{sharing}, ").replace(
        "pattern: [local, global]", f"pattern: {pattern}"
    )
    file.write_text(text, encoding="utf-8")
    recipe = tfkit.load_recipe(file)
    again = tmp_path / "resolved.yaml"
    again.write_text(recipe.resolved(), encoding="utf-8")
    assert tfkit.load_recipe(again).blueprint() == recipe.blueprint()
    assert tfkit.load_recipe(again).blueprint().last.entries == recipe.blueprint().last.entries


def test_resolving_the_resolved_changes_nothing(file, tmp_path):
    again = tmp_path / "resolved.yaml"
    again.write_text(tfkit.load_recipe(file).resolved(), encoding="utf-8")
    first = yaml.safe_load(again.read_text(encoding="utf-8"))
    assert yaml.safe_load(tfkit.load_recipe(again).resolved()) == first


def test_architectures_written_differently_are_equal(file):
    other = (
        BASE.replace("pattern: [local, global]", "pattern: [b, a, b, a]")
        .replace("local:", "b:")
        .replace("global:", "a:")
    )
    written = file.with_name("other.yaml")
    written.write_text(other, encoding="utf-8")
    assert tfkit.load_recipe(written).blueprint() == tfkit.load_recipe(file).blueprint()


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 1e-9, 0.1, "relu", "none", "true", "no", "1e-9", "a b", "x: y", "#", "ü", '"', [1], {"a": [None]}],
)  # fmt: skip
def test_a_value_reads_back_as_itself(value):
    node, faults = parse_value(scalar(value), tfkit.core.errors.Place("test"), "x")
    assert not faults and node.plain() == value
