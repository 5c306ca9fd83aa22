"""resolved.yaml: every value, where it comes from, and the same Blueprint again."""

from __future__ import annotations

import re

import pytest
import yaml

import tfkit
from tfkit.core.errors import Place
from tfkit.recipe.text.source import parse_value
from tfkit.recipe.views.resolved import scalar

from ..sampling import looped
from ..shipped import shipped
from .small import read_again

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
    file.write_text(BASE.replace("embedding: tokens", "embedding: {type: tokens, norm: true}"), encoding="utf-8")
    recipe = tfkit.load_recipe(file, variant="wide", sets=["model.layer.dropout=0.2"], overrides={"train.seed": 7})
    known = origins(recipe.resolved())
    assert known["model.d_model"].startswith(f"{file}:21:") and known["model.d_model"].endswith(", variant wide")
    for key, expected in {
        "vocab_size": f"{file}:6:15",
        "layers.kind_0.dropout": "--set model.layer.dropout=0.2",
        "layers.kind_0.mask.size": f"{file}:16:40, kind local",
        "layers.kind_1.feedforward.d_ff": f"{file}:17:50, kind global",
        "layers.kind_0.feedforward.d_ff": f"{file}:14:36",
        "final_norm.type": f"{file}:12:11, from model.layer.norm",
        "embedding.norm.type": f"{file}:12:11, from model.layer.norm",
        "pattern": f"{file}:18:12",
    }.items():
        assert known[f"model.{key}"] == expected
    assert known["model.layers.kind_0.feedforward.bias"].startswith("default: biases: all, none, ")
    assert (known["train.seed"], known["train.steps"][:32]) == ("Python", "default: number of optimizer ste")


def test_values_of_the_base_recipe_and_its_variants_keep_their_file(file, tmp_path):
    child = tmp_path / "child.yaml"
    child.write_text("extends: base.yaml\nmodel: {num_layers: 2}\n", encoding="utf-8")
    known = origins(tfkit.load_recipe(child, variant="wide").resolved())
    assert known["model.num_layers"] == f"{child}:2:21"
    assert known["model.vocab_size"] == f"{file}:6:15, base base"
    assert known["model.d_model"] == f"{file}:21:25, variant wide of base base"
    known = origins(shipped("transformer-base").resolved())
    assert "transformer-base.yaml" in known["model.decoder.layer.cross_attention.num_heads"]


def test_names_of_files_and_the_command_line_cannot_break_the_text(tmp_path):
    odd = tmp_path / "a\a\nb  # c\udcff.yaml"
    odd.write_text(BASE, encoding="utf-8")
    recipe = tfkit.load_recipe(odd, sets=["model.head.type=  'language_model' \n ", "model.layer.dropout=0.25"])
    assert read_again(recipe).blueprint() == recipe.blueprint()


def test_resolving_the_resolved_changes_nothing(file):
    first = tfkit.load_recipe(file)
    assert yaml.safe_load(read_again(first).resolved()) == yaml.safe_load(first.resolved())


@looped(
    "value",
    [None, True, 3, 1e-9, 0.1, "relu", "none", "true", "no", "1e-9", "a b", "x: y", "#", "ü", '"', [1], {"a": [None]}],
)
def test_a_value_reads_back_as_itself(value):
    node, faults = parse_value(scalar(value), Place("test"), "x")
    assert not faults and node.plain() == value
