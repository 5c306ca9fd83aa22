"""`tfkit diff`: equal architectures are equal however they are written, and one change is reported as one change."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tfkit
from tfkit.cli.comparing import split
from tfkit.cli.main import main
from tfkit.core.errors import RecipeError
from tfkit.recipe.load import Recipe
from tfkit.reports.diff import diff_architectures

from ..sampling import looped

SMALL = """\
tfkit: 1
model:
  type: decoder
  d_model: 32
  vocab_size: 50
  max_length: 64
  num_layers: 6
  embedding: {type: tokens, norm: true}
  position: learned
  layer:
    residual: pre_norm
    norm: layer_norm
    attention: {type: multi_head, num_heads: 4}
    feedforward: {type: mlp, d_ff: 32, activation: relu}
  layers:
    local: {mask: {type: window, size: 8}}
    global: {}
  pattern: [local*2, global]
  head: {type: language_model, tied: true}
variants:
  wide: {model.d_model: 64}
  heads: {model.layer.attention.num_heads: [1, 2]}
"""
# the same architecture in other words
REWRITTEN = """\
tfkit: 1
model:
  type: decoder
  num_layers: 6
  max_length: 64
  vocab_size: 50
  d_model: 32
  mask: {type: window, size: 8}
  position: {type: learned, offset: 0}
  embedding: {type: tokens, norm: layer_norm, dropout: 0}
  layer:
    feedforward: {type: mlp, d_ff: 32, activation: relu, bias: true}
    attention: {type: multi_head, num_heads: 4}
    residual: pre_norm
    norm: {type: layer_norm, eps: 1e-5}
  layers:
    far: {mask: none}
    near: {dropout: 0}
  pattern: [near, near, far]
  final_norm: true
  head: {type: language_model, tied: true}
  init: xavier
"""
PAIR = """\
tfkit: 1
model:
  type: encoder_decoder
  d_model: 16
  vocab_size: 40
  embedding: {type: tokens, shared: true}
  position: sinusoidal
  num_layers: 2
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 16}
  head: {type: language_model, tied: true}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("small", SMALL), ("rewritten", REWRITTEN), ("pair", PAIR)):
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def command(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["diff", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def changes(before: Recipe, after: Recipe) -> list[str]:
    """Each change in a line: `layers 0-1: layer.mask: none -> causal`."""
    found = diff_architectures(before.blueprint(), after.blueprint())
    return [f"{f'{one.where}: ' * bool(one.where)}{one.what}: {one.before} -> {one.after}" for one in found]


def changed(source: str, *sets: str) -> list[str]:
    return changes(tfkit.load_recipe(source), tfkit.load_recipe(source, sets=sets))


def test_one_architecture_in_other_words_is_equal() -> None:
    assert changes(tfkit.load_recipe("small.yaml"), tfkit.load_recipe("rewritten.yaml")) == []
    result = command("small.yaml", "rewritten.yaml")
    assert result.exit_code == 0
    assert "the same architecture" in result.stdout
    assert "the settings of data, objective, training and generation are the same too" in result.stdout


def test_kinds_and_per_layer_are_equal() -> None:
    kinds = SMALL.replace("global: {}", "global: {mask: {type: window, size: 4}}")
    text = kinds.replace("  layers:\n", "").replace("  pattern: [local*2, global]\n", "")
    text = re.sub(r"    (local|global): \{mask.*\n", "", text)
    text = text.replace(
        "    norm: layer_norm\n",
        "    norm: layer_norm\n    mask: {type: window, size: {per_layer: [8, 8, 4, 8, 8, 4]}}\n",
    )
    Path("kinds.yaml").write_text(kinds, encoding="utf-8")
    Path("numbers.yaml").write_text(text, encoding="utf-8")
    assert "per_layer" in text and "pattern" not in text
    assert changes(tfkit.load_recipe("kinds.yaml"), tfkit.load_recipe("numbers.yaml")) == []


# a recipe, a key that is set in it, and the changes, by their beginnings
CHANGES = """
gpt2 | model.position=rotary | position: learned -> rotary (theta 10000, fraction 1, layout halves)
gpt2 | model.layer.attention.num_kv_heads=4 | layer.attention.num_kv_heads: none -> 4
gpt2 | model.layer.feedforward.activation=relu | layer.feedforward.activation: gelu_tanh -> relu
gpt2 | model.d_model=384 | d_model: 768 -> 384
gpt2 | model.head.tied=false | head.tied: true -> false
gpt2 | model.init.std=0.1 | init.std: 0.02 -> 0.1
gpt2 | model.init=xavier | init: scaled_residual (std 0.02) -> xavier
gpt2 | model.embedding.dropout=0 | embedding.dropout: 0.1 -> 0
gpt2 | model.final_norm=none | final_norm: layer_norm (eps 1e-5, bias true, affine true) -> none
gpt2 | model.layer.shared=true | layer.shared: false -> true
gpt2 | model.num_layers=14 | num_layers: 12 -> 14 | layers 12-13: none -> as layer 0
gpt2 | model.num_layers=11 | num_layers: 12 -> 11 | layer 11: as layer 0 -> none
gpt2 | model.mask={type: window, size: 9} | layer.mask: none -> window (size 9)
gpt2 | model.special_ids={pad: 3} | special_ids.pad: none -> 3
gpt2 | model.heads={a: {type: classifier, num_classes: 2, pool: mean}} | heads.a: none -> classifier
gpt2 | model.layer.norm.eps=1e-3 | layer.norm.eps: 1e-5 -> 0.001
bert-base | model.layer.norm=rms_norm | layer.norm: layer_norm
pair.yaml | model.layer.attention.num_heads=4 | layer.attention.num_heads: 2 -> 4
pair.yaml | model.d_model=32 | d_model: 16 -> 32
pair.yaml | model.decoder.layer.attention.num_heads=4 | decoder: layer.attention.num_heads: 2 -> 4
pair.yaml | model.layer.cross_attention.num_heads=4 | decoder: layer.cross_attention.num_heads: 2
pair.yaml | model.embedding.shared=false | embedding.shared: true -> false
small.yaml | model.layers.local.mask.size=4 | layers 0-1, 3-4: layer.mask.window.size: 8 -> 4
small.yaml | model.layers.local.mask=none | layers 0-1, 3-4: layer.mask: window (size 8) -> none
small.yaml | model.layers.global={dropout: 0.5} | layers 2, 5: layer.dropout: 0 -> 0.5
small.yaml | model.layers.global.position=alibi | layers 2, 5: layer.position: the stack's -> alibi
small.yaml | model.layers.global={attention: none} | layers 2, 5: layer.attention: multi_head
small.yaml | model.layer.sublayers=[feedforward, attention] | order of sublayers: attention, feedforward -> feedforward
small.yaml | model.layer.sublayers=[attention, feedforward, feedforward] | layer.feedforward_2: none -> mlp (d_ff 32
small.yaml | model.layers.global={attention_norm: none} | layers 2, 5: layer.attention_norm: layer.norm -> none
small.yaml | model.pattern=[local, global, local] | layers 1, 4: layer.mask: window | layers 2, 5: layer.mask: none ->
"""


@looped("line", CHANGES.strip().splitlines())
def test_one_change_is_reported_as_that_change(line: str) -> None:
    source, sets, *expected = line.split(" | ")
    found = [change.replace("1e-05", "1e-5") for change in changed(source, sets)]
    assert [change[: len(start)] for change, start in zip(found, expected, strict=True)] == expected, found


def test_layers_of_like_make_stand_for_each_other_in_stacks_of_other_depth() -> None:
    text = SMALL.replace("pattern: [local*2, global]", "pattern: [[local], global]")
    Path("deep.yaml").write_text(text, encoding="utf-8")
    assert changed("deep.yaml", "model.num_layers=8", "model.layers.global={dropout: 0.5}") == [
        "num_layers: 6 -> 8",
        "layer 5 (layer 7 of the other): layer.dropout: 0 -> 0.5",
        "layers 5-6: none -> as layer 0",
    ]


def test_weights_that_are_shared_in_other_groups_and_heads_in_another_order() -> None:
    sets = ["model.layer.shared=true", "model.pattern=[global*6]"]
    other_groups = ["model.layer.shared=true", "model.pattern=[global*3, global*3]"]
    one, other = (tfkit.load_recipe("small.yaml", sets=groups) for groups in (sets, other_groups))
    assert changes(one, other) == ["layers that share weights: layers 0-5 -> layers 0-2; layers 3-5"]
    heads = [f"{name}: {{type: classifier, num_classes: 2, pool: mean}}" for name in "ab"]
    one, other = (
        tfkit.load_recipe("small.yaml", sets=[f"model.heads={{{', '.join(order)}}}"]) for order in (heads, heads[::-1])
    )
    assert changes(one, other) == ["order of heads: a, b -> b, a"]


def test_an_encoder_against_a_decoder() -> None:
    found = changes(tfkit.load_recipe("bert-base"), tfkit.load_recipe("gpt2"))
    for start in ("type: encoder -> decoder", "layer.mask: none -> causal", "layer.residual: post_norm"):
        assert any(line.startswith(start) for line in found)
    assert not [line for line in found if line.startswith(("encoder: ", "decoder: "))]


def test_one_stack_against_two() -> None:
    pair = tfkit.load_recipe("pair.yaml")
    single = tfkit.load_recipe("pair.yaml", sets=["model.type=decoder", "model.embedding.shared=false"])
    found = changes(single, pair)
    assert found[0] == "type: decoder -> encoder_decoder"
    assert any(line.startswith("encoder: none -> d_model 16, embedding tokens (") for line in found)
    assert any(line.startswith("decoder: layer.cross_attention: none -> multi_head (num_heads 2") for line in found)
    back = changes(pair, single)
    assert len(back) == len(found)
    assert any(line.startswith("encoder: d_model 16") and line.endswith("-> none") for line in back)


VALUES: dict[str, list[str]] = {
    "model.d_model": ["32", "64"],
    "model.num_layers": ["3", "5", "6", "9"],
    "model.max_length": ["64", "32"],
    "model.position": ["learned", "rotary", "none", "[learned, alibi]", "{type: learned, offset: 2}"],
    "model.mask": ["none", "prefix", "causal", "[{type: window, size: 8}, prefix]"],
    "model.embedding": ["tokens", "{norm: none}", "{norm: {eps: 1e-3}}", "{dropout: 0.1}"],
    "model.layer.residual": ["pre_norm", "post_norm", "parallel", "sandwich"],
    "model.layer.norm": ["layer_norm", "rms_norm", "{eps: 1e-3}", "{eps: 1e-5}"],
    "model.layer.attention": ["{num_heads: 2}", "{num_kv_heads: 2}", "{shared: true}", "{qk_norm: true}"],
    "model.layer.feedforward": ["{type: glu, d_ff: 16}", "{d_ff: 32}", "none", "{activation: gelu}"],
    "model.layer.sublayers": ["[feedforward, attention]", "[attention, feedforward]"],
    "model.layer.shared": ["true", "false"],
    "model.layer.dropout": ["0", "0.1"],
    "model.layers.local": ["{}", "{mask: none}", "{mask: {size: 4}}", "{attention_norm: none}", "{position: none}"],
    "model.layers.global": ["{}", "{mask: {type: window, size: 8}}", "{feedforward: {d_ff: 8}}", "{mask: causal}"],
    "model.pattern": ["[local, global]", "[local*2, global]", "[local*3]", "[[local], global]", "[local, local]"],
    "model.final_norm": ["true", "none", "rms_norm"],
    "model.head": ["{tied: false}", "{tied: true}", "none"],
    "model.heads": ["{a: {type: classifier, num_classes: 2, pool: mean}}", "{}"],
    "model.init": ["xavier", "{type: normal, std: 0.02}"],
    "model.special_ids": ["{pad: 0}", "{pad: 0, start: 1}", "{start: 1, pad: 0}"],
}  # fmt: skip
SETS = st.dictionaries(st.sampled_from(sorted(VALUES)), st.integers(0, 4), max_size=4).map(
    lambda picks: [f"{key}={VALUES[key][number % len(VALUES[key])]}" for key, number in picks.items()]
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SETS, SETS)
def test_nothing_differs_exactly_where_the_blueprints_are_equal(first: list[str], second: list[str]) -> None:
    try:
        one, other = (tfkit.load_recipe("small.yaml", sets=sets) for sets in (first, second))
    except RecipeError:
        return
    equal = one.blueprint() == other.blueprint()
    assert (changes(one, other) == []) is (changes(other, one) == []) is equal


def test_without_b_the_values_are_laid_over_a() -> None:
    out = command("gpt2", "--set", "model.position=rotary").stdout
    assert out.startswith("A: gpt2\nB: gpt2 --set model.position=rotary\n")
    assert "position: learned -> rotary (theta 10000, fraction 1, layout halves)" in out
    parameters = next(line for line in out.splitlines() if line.startswith("parameters"))
    assert parameters.split()[1:] == ["124,439,808", "123,653,376", "-786,432", "(-0.632%)"]


def test_variants_of_a_recipe() -> None:
    for expected, *arguments in (
        ("d_model: 32 -> 64", "small.yaml", "small.yaml@wide"),
        ("d_model: 32 -> 64", "small.yaml", "--variant", "wide"),
        ("layer.attention.num_heads: 1 -> 2", "small.yaml@heads=1", "small.yaml@heads=2"),
        ("layer.attention.num_heads: 4 -> 1", "small.yaml", "small.yaml@wide@heads=1"),
        ("num_layers: 6 -> 9000", "small.yaml", "--set", "model.num_layers=9000"),
    ):
        assert expected in command(*arguments).stdout
    both = command("small.yaml@wide", "--set", "model.max_length=32").stdout
    assert "max_length: 64 -> 32" in both and "d_model: 32" not in both


def test_a_file_that_has_an_at_sign_in_its_name_wins(here: Path) -> None:
    (here / "small.yaml@wide").write_text(PAIR, encoding="utf-8")
    assert split("small.yaml@wide") == ("small.yaml@wide", ())
    assert split("small.yaml@wide@heads=1") == ("small.yaml@wide", ("heads=1",))
    assert split("gpt2@wide") == ("gpt2", ("wide",))
    assert split("nowhere.yaml@wide") == ("nowhere.yaml", ("wide",))
    assert "type: decoder -> encoder_decoder" in command("small.yaml", "small.yaml@wide").stdout


def test_runs_folders_are_compared(here: Path) -> None:
    (here / "run").mkdir()
    recipe = tfkit.load_recipe("small.yaml", sets=["train.steps=7", "train.optimizer={type: adam, eps: 1e-7}"])
    (here / "run" / "resolved.yaml").write_text(recipe.resolved(), encoding="utf-8")
    result = command("small.yaml", "run")
    out = " ".join(result.stdout.split()).replace("1e-09", "1e-9").replace("1e-07", "1e-7")
    assert result.exit_code == 0 and "the same architecture" in out  # equal architectures may train differently
    assert "train.steps: 10000 -> 7 train.optimizer.eps: 1e-9 -> 1e-7" in out


def test_a_run_equals_the_recipe_whose_tokenizer_was_not_trained_yet(here: Path) -> None:
    data = "data: {tokenizer: character, train: {type: text, files: [a.txt]}}\nobjective: causal_lm\n"
    Path("task.yaml").write_text(SMALL.replace("vocab_size: 50", "vocab_size: tokenizer") + data, encoding="utf-8")
    (here / "run").mkdir()
    text = tfkit.load_recipe("task.yaml").resolved(vocab_size=33)
    (here / "run" / "resolved.yaml").write_text(text, encoding="utf-8")
    for pair in (("task.yaml", "run"), ("run", "task.yaml")):
        out = " ".join(command(*pair).stdout.split())
        assert "the same architecture" in out
        assert "task.yaml: vocabulary unknown until the tokenizer is trained: costs assume 33 tokens, as in the" in out
    assert "costs assume 1 token" in " ".join(command("task.yaml", "task.yaml").stdout.split())


@looped(
    ("arguments", "message"),
    [
        (("gpt2",), "pass a second recipe, or --set or --variant"),
        (("gpt2", "gtp2"), "Did you mean 'gpt2'?"),
        (("small.yaml", "small.yaml@wied"), "unknown variant 'wied'"),
        (("small.yaml", "gpt2", "--length", "65"), "length 65 exceeds the decoder's max_length 64"),
        (("small.yaml", "--set", "model.d_model=wide"), "--set model.d_model=wide: model.d_model: expected a whole nu"),
    ],
)
def test_what_cannot_be_compared(arguments: tuple[str, ...], message: str) -> None:
    result = command(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@looped("width", [20, 40, 80, 300])
def test_nothing_is_cut_however_narrow_the_terminal(width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        out = " ".join(command("bert-base", "gpt2").stdout.split())
    figures = ("109,514,298", "124,439,808", "+14,925,510 (+13.6%)")
    assert all(text in out for text in (*figures, "init: normal (std 0.02) -> scaled_residual (std 0.02)"))
    assert "…" not in out and "\x1b" not in out


def test_as_data() -> None:
    data = json.loads(
        command("small.yaml", "--set", "model.layers.local.mask.size=4", "--json", "--dtype", "bfloat16").stdout
    )
    assert (data["a"], data["b"]) == ("small.yaml", "small.yaml --set model.layers.local.mask.size=4")
    assert (data["same_architecture"], data["same_settings"], data["settings"]) == (False, True, [])
    assert data["architecture"] == [{"what": "layer.mask.window.size", "where": "layers 0-1, 3-4", "a": "8", "b": "4"}]
    assert (data["length"], data["batch"], data["dtype"]) == (64, 1, "bfloat16")
    assert data["figures"]["a"]["parameters"] == data["figures"]["b"]["parameters"] > 0
