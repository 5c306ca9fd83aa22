"""What an editor offers, shows and underlines in a recipe, by the real yaml-language-server.

It is no Python package. Install it anywhere (`npm install yaml-language-server`), put it in the PATH or say its command
in TFKIT_YAML_LANGUAGE_SERVER (`.../node_modules/.bin/yaml-language-server`), and run `pytest -m slow` on this file.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfkit.cli.main import main

from .editor import Server

COMMAND = os.environ.get("TFKIT_YAML_LANGUAGE_SERVER") or shutil.which("yaml-language-server")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMMAND is None,
        reason="yaml-language-server is not in the PATH, and TFKIT_YAML_LANGUAGE_SERVER does not say its command",
    ),
]

PART = '''\
from pydantic import Field

from tfkit import register
from tfkit.components.attention import MultiHead


@register("attention", "{name}")
class Mine(MultiHead):
    """Attention that is all mine (Doe 2031, arXiv 3101.00001)."""

    class Config(MultiHead.Config):
        sharpness: float = Field(1.0, description="how sharp it is")
'''
GOOD = """\
tfkit: 1
model:
  type: decoder
  d_model: 8
  vocab_size: 20
  max_length: 16
  num_layers: 4
  embedding: {type: tokens, dropout: 0.1}
  position: rotary
  layer:
    residual: pre_norm
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
    dropout: 0.1
  head: {type: language_model, tied: true}
train:
  steps: 100
"""
ATTENTION = "attention: {type: multi_head, num_heads: 2}"
LAYER = "tfkit: 1\nmodel:\n  type: decoder\n  layer:\n    "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schema, which knows a part of one's own."""
    folder = tmp_path_factory.mktemp("editor")
    (folder / "mine.py").write_text(PART.format(name="mine_of_the_editor"))
    command = ["schema", "--import", str(folder / "mine.py"), "--out", str(folder / "recipe.schema.json")]
    assert CliRunner().invoke(main, command, catch_exceptions=False).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server([*shlex.split(COMMAND or ""), "--stdio"], folder / "recipe.schema.json")
    yield server
    server.close()


def test_a_right_recipe_is_not_underlined(server: Server) -> None:
    assert server.diagnostics(GOOD) == []


# ---------------------------------------------------------------------------------------------------------- completion


def test_sections_and_keys_are_offered(server: Server) -> None:
    assert server.completions("¦\n")["model"] == "the architecture"
    keys = server.completions("tfkit: 1\nmodel:\n  ¦\n")
    assert keys["d_model"] == "width of the residual stream"
    assert {"type", "encoder", "layer", "layers", "pattern", "head", "init"} <= set(keys)
    assert {"attention", "feedforward_norm", "sublayers"} <= set(server.completions(f"{LAYER}¦\n"))
    assert {"optimizer", "steps"} <= set(server.completions("tfkit: 1\ntrain:\n  ¦\n"))


@pytest.mark.parametrize(
    "text", ["attention: {type: ¦", "attention: {type: ¦}", "attention:\n      type: ¦", "attention: ¦"]
)
def test_part_names_are_offered_with_their_papers(server: Server, text: str) -> None:
    offered = server.completions(f"{LAYER}{text}\n")
    assert "Vaswani et al. 2017, arXiv 1706.03762" in offered["multi_head"]
    assert offered["mine_of_the_editor"] == "Attention that is all mine (Doe 2031, arXiv 3101.00001)."
    assert "mlp" not in offered


def test_options_of_a_part_are_offered_with_their_defaults(server: Server) -> None:
    offered = server.completions(f"{LAYER}attention:\n      type: multi_head\n      ¦\n")
    assert offered["num_heads"] == "heads of the queries; 1 is single-head attention"
    assert offered["dropout"].endswith("Default: 0.0.")
    assert "sharpness" not in offered
    own = server.completions(f"{LAYER}attention:\n      type: mine_of_the_editor\n      ¦\n")
    assert own["sharpness"] == "how sharp it is. Default: 1.0."
    flow = server.completions(f"{LAYER}attention: {{type: multi_head, num_¦}}\n")
    assert {"num_heads", "num_kv_heads"} <= set(flow)


def test_words_of_an_option_are_offered(server: Server) -> None:
    assert {"relu", "gelu_tanh"} <= set(
        server.completions(f"{LAYER}feedforward:\n      type: mlp\n      activation: ¦\n")
    )
    assert {"none", "true", "rms_norm"} <= set(server.completions(f"{LAYER}feedforward_norm: ¦\n"))
    assert {"float32", "bfloat16"} == set(server.completions("tfkit: 1\ntrain:\n  precision: ¦\n"))


def test_an_overlay_is_offered_the_options_of_any_type(server: Server) -> None:
    kind = "tfkit: 1\nextends: bert-base\nmodel:\n  layers:\n    local:\n      "
    assert {"attention", "mask", "position"} <= set(server.completions(f"{kind}¦\n"))
    assert {"type", "num_heads", "sharpness"} <= set(server.completions(f"{kind}attention:\n        ¦\n"))


# --------------------------------------------------------------------------------------------------------------- hover


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("num_heads: 2", "num_heads: 2, num_kv_h¦eads: 1", "heads of keys and values; none: as many as num_heads"),
        ("  d_model", "  d_mo¦del", "width of the residual stream"),
        ("multi_head", "multi_¦head", "(Vaswani et al. 2017, arXiv 1706.03762)"),
        ("position: rotary", "position: rot¦ary", "(Su et al. 2021, arXiv 2104.09864)"),
        ("type: decoder", "type: deco¦der", "Decoder-only: a token sees itself and the past"),
        ("steps: 100", "st¦eps: 100", "optimizer steps in all"),
    ],
)  # fmt: skip
def test_a_word_is_explained(server: Server, old: str, new: str, shown: str) -> None:
    assert GOOD.count(old) == 1
    assert shown in server.hover(GOOD.replace(old, new))


# --------------------------------------------------------------------------------------------------------- diagnostics


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        # unknown words
        ("train:", "trian:", "trian"),
        ("  d_model:", "  d_modl:", "d_modl"),
        ("    dropout:", "    dropot:", "dropot"),
        ("tied: true", "tied: true, scal: 1", "scal"),
        ("num_heads: 2", "num_head: 2", "num_head"),
        ("type: mlp", "typ: mlp", "typ"),
        ("steps:", "stpes:", "stpes"),
        ("norm: layer_norm", "norm: {type: layer_norm, epss: 1}", "epss"),
        ("norm: layer_norm", "norm: layer_norm\n    attention_norm: {epss: 1}", "epss"),
        ("d_ff: 16", "d_ff: 16, activation: {type: leaky_relu, slope: 1}", "slope"),
        # unknown names
        ("type: decoder", "type: decodr", "decodr"),
        ("multi_head", "multihed", "multihed"),
        ("pre_norm", "pre-norm", "pre-norm"),
        ("position: rotary", "position: rotery", "rotery"),
        ("position: rotary", "position: [rotery]", "rotery"),
        ("position: rotary", "position: rotary\n  mask: [causal, {type: windw}]", "windw"),
        ("d_ff: 16", "d_ff: 16, activation: rellu", "rellu"),
        (ATTENTION, "attention: multihed", "multihed"),
        ("steps: 100", "optimizer: adm", "adm"),
        # wrong values
        ("num_heads: 2", "num_heads: two", "two"),
        ("num_heads: 2", "num_heads: true", "true"),
        ("num_heads: 2", "num_heads: 0", "0"),
        ("num_heads: 2", "num_heads: 2, bias: 1", "1"),
        ("num_heads: 2", "num_heads: 2, scale: sqrt", "sqrt"),
        ("dropout: 0.1}", "dropout: 1}", "1"),
        ("tied: true", "tied: yes", "yes"),
        ("norm: layer_norm", "norm: true", "true"),
        (ATTENTION, "attention: 8", "8"),
        ("tfkit: 1", "tfkit: 2", "2"),
        ("num_layers: 4", "num_layers: 4\n  layers: {a: {}}\n  pattern: [a*x]", "a*x"),
        # what is missing is said at the key of the mapping that lacks it
        (ATTENTION, "attention: {type: multi_head}", "attention"),
        (ATTENTION, "attention: {num_heads: 2}", "attention"),
        ("  num_layers: 4\n", "", "model"),
        # a name alone says no options
        (ATTENTION, "attention: multi_head", "multi_head"),
        # variants
        ("train:", "variants: {wide: {model.d_modl: 16}}\ntrain:", "model.d_modl"),
        ("train:", "variants: {heads: {model.layer.attention.num_heads: [1, two]}}\ntrain:", "two"),
    ],
)  # fmt: skip
def test_exactly_the_wrong_word_is_underlined(server: Server, old: str, new: str, word: str) -> None:
    assert GOOD.count(old) == 1
    found = server.diagnostics(GOOD.replace(old, new))
    assert [one.word for one in found] == [word], found


def test_a_name_alone_is_told_its_options(server: Server) -> None:
    (found,) = server.diagnostics(GOOD.replace(ATTENTION, "attention: multi_head"))
    assert found.message == "needs options: {type: multi_head, num_heads: ...}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("multi_head", "multihed", '"multi_head"'),
        ("position: rotary", "position: {type: rotary, layout: halvs}", '"halves", "interleaved"'),
        ("d_ff: 16", "d_ff: 16, activation: rellu", '"relu"'),
        ("pre_norm", "pre-norm", '"pre_norm"'),
    ],
)
def test_a_wrong_word_is_told_the_right_ones(server: Server, old: str, new: str, said: str) -> None:
    (found,) = server.diagnostics(GOOD.replace(old, new))
    assert found.message.startswith("Value is not accepted. Valid values: ") and said in found.message


def test_ones_own_part_is_known(server: Server) -> None:
    assert server.diagnostics(GOOD.replace("multi_head", "mine_of_the_editor")) == []
    (found,) = server.diagnostics(GOOD.replace("{type: multi_head", "{type: mine_of_the_editor, sharpnes: 2"))
    assert found.word == "sharpnes"


def test_a_recipe_may_name_its_schema(folder: Path) -> None:
    server = Server([*shlex.split(COMMAND or ""), "--stdio"], None)
    line = "# yaml-language-server: $schema=recipe.schema.json\n"
    found = server.diagnostics(line + GOOD.replace("multi_head", "multihed"), folder)
    server.close()
    assert [one.word for one in found] == ["multihed"]
