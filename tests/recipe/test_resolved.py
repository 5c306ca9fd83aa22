"""resolved.yaml: every value, where it comes from, and the same Blueprint again."""

from __future__ import annotations

import re

import pytest
import yaml

import tfkit
from tfkit.recipe.text.source import parse_value
from tfkit.recipe.views.resolved import scalar

from ..sampling import each, shares
from ..shipped import NAMES, shipped

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time
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
    assert known["model.d_model"].endswith(", variant wide")
    assert known["model.layers.kind_0.dropout"] == "--set model.layer.dropout=0.2"
    assert known["model.layers.kind_0.mask.size"] == f"{file}:16:40, kind local"
    assert known["model.layers.kind_1.feedforward.d_ff"] == f"{file}:17:50, kind global"
    assert known["model.layers.kind_0.feedforward.d_ff"] == f"{file}:14:36"
    assert known["model.layers.kind_0.feedforward.bias"].startswith("default: biases: all, none, ")
    assert known["train.seed"] == "Python"
    assert known["train.steps"].startswith("default: number of optimizer steps")
    assert known["model.final_norm.type"] == f"{file}:12:11, from model.layer.norm"
    assert known["model.pattern"] == f"{file}:18:12"


def test_a_value_of_the_base_recipe_keeps_its_file(file, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: base.yaml\nmodel: {d_model: 64}\n", encoding="utf-8")
    known = origins(tfkit.load_recipe(tmp_path / "child.yaml").resolved())
    assert known["model.d_model"] == f"{tmp_path / 'child.yaml'}:2:18"
    assert known["model.vocab_size"] == f"{file}:6:15, base base"


def test_a_variant_of_the_base_says_both(file, tmp_path):
    (tmp_path / "child.yaml").write_text("extends: base.yaml\n", encoding="utf-8")
    known = origins(tfkit.load_recipe(tmp_path / "child.yaml", variant="wide").resolved())
    assert known["model.d_model"] == f"{file}:21:25, variant wide of base base"


def test_a_norm_that_stands_elsewhere_says_which_one_it_is(file):
    file.write_text(BASE.replace("embedding: tokens", "embedding: {type: tokens, norm: true}"), encoding="utf-8")
    known = origins(tfkit.load_recipe(file).resolved())
    assert known["model.embedding.norm.type"] == f"{file}:12:11, from model.layer.norm"


def test_a_depth_that_nobody_says_comes_from_the_pattern(file):
    file.write_text(BASE.replace("  num_layers: 4\n", ""), encoding="utf-8")
    known = origins(tfkit.load_recipe(file).resolved())
    assert known["model.num_layers"] == f"{file}:17:12, from model.pattern"


@pytest.mark.parametrize("names", shares(NAMES))
def test_the_comments_end_on_their_line_and_every_default_has_a_sentence(names):
    def check(name):
        text = shipped(name).resolved()
        lines = text.splitlines()
        rooms = ("model.", "train.", "generate.")
        assert not [key for key, said in origins(text).items() if said == "default" and key.startswith(rooms)]
        assert all(len(line) <= 120 for line in lines if "# default" in line)
        without = "\n".join(line.rpartition("  # ")[0] or line for line in lines)
        assert yaml.load(text, LOADER) == yaml.load(without, LOADER)

    each(names, check)


def test_the_name_of_a_file_cannot_break_the_text(tmp_path):
    odd = tmp_path / "a\a\nb  # c\udcff.yaml"
    odd.write_text(BASE, encoding="utf-8")
    recipe = tfkit.load_recipe(odd)
    again = tmp_path / "again.yaml"
    again.write_text(recipe.resolved(), encoding="utf-8")
    assert tfkit.load_recipe(again).blueprint() == recipe.blueprint()


def test_what_the_command_line_says_stays_on_its_line(file, tmp_path):
    recipe = tfkit.load_recipe(file, sets=["model.head.type=  'language_model' \n ", "model.layer.dropout=0.25"])
    again = tmp_path / "again.yaml"
    again.write_text(recipe.resolved(), encoding="utf-8")
    assert tfkit.load_recipe(again).blueprint() == recipe.blueprint()


def test_each_side_of_an_encoder_decoder_says_where_it_comes_from():
    known = origins(shipped("transformer-base").resolved())
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
