"""What a newcomer reads when a recipe is wrong: every fault at once, with its place, its path and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.work import work
from tfkit.core.errors import RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count_parameters

from ..sampling import looped

pytestmark = pytest.mark.usefixtures("shipped_parts")

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
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder, so that places are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(folder: Any, text: str, **how: Any) -> Recipe:
    (folder / "mine.yaml").write_text(text)
    return load_recipe("mine.yaml", **how)


def said(folder: Any, text: str, **how: Any) -> list[str]:
    """The faults as they are printed."""
    with pytest.raises(RecipeError) as caught:
        load(folder, text, **how)
    return str(caught.value).splitlines()


def test_the_good_one_is_good(here):
    load(here, GOOD)


# ------------------------------------------------------------------------------------------------------- all at once

WRONG = """\
tfkit: 1
modle: {}
model:
  type: decoder
  d_model: 8.0
  d_modl: 8
  vocab_size: "20"
  max_length: true
  num_layers: 4
  embedding: {type: token, dropout: 0.1}
  position: {type: rotary, teta: 500}
  mask: {type: window, size: 0}
  layer:
    residual: pre-norm
    norm: {type: layer_norm, eps: tiny}
    attention: {type: multihed, num_heads: 2}
    feedforward: {type: mlp, dff: 16, dropout: 1.5, bias: no}
    dropot: 0.1
  layers:
    wide: {feedforward: {d_ff: -3}}
    deep: {atention: none}
  pattern: [wide, wid, deep*x]
  final_dropout: 1
  head: {type: language_model, tied: 1, scale: sqrt}
  heads: {topic: {type: classifier}}
  init: {type: normal, std: 0}
  special_ids: {pad: -1, begin: 2}
train: {steps: 0, optimiser: adam, precision: float16}
"""
ALL_OF_THEM = """\
mine.yaml:2:1: modle: unknown section. Did you mean 'model'?
mine.yaml:5:12: model.d_model: expected a whole number from 1 to 268,435,456, got 8.0
mine.yaml:6:3: model.d_modl: unknown option. Did you mean 'd_model'?
mine.yaml:7:15: model.vocab_size: expected a whole number from 1 to 268,435,456, got '20'
mine.yaml:8:15: model.max_length: expected a whole number from 1 to 268,435,456, got true
mine.yaml:10:21: model.embedding.type: unknown embedding 'token'. Did you mean 'tokens'?
mine.yaml:11:28: model.position.teta: unknown option. Did you mean 'theta'?
mine.yaml:12:30: model.mask.size: must be at least 1, got 0
mine.yaml:14:15: model.layer.residual: unknown residual 'pre-norm'. Did you mean 'pre_norm'?
mine.yaml:15:35: model.layer.norm.eps: expected a number, got 'tiny'
mine.yaml:16:23: model.layer.attention.type: unknown attention 'multihed'. Did you mean 'multi_head'?
mine.yaml:17:18: model.layer.feedforward: needs the option 'd_ff'
mine.yaml:17:30: model.layer.feedforward.dff: unknown option. Did you mean 'd_ff'?
mine.yaml:17:48: model.layer.feedforward.dropout: must be less than 1, got 1.5
mine.yaml:17:59: model.layer.feedforward.bias: 'no' is ambiguous in YAML; write true or false, or quote it if it is text
mine.yaml:18:5: model.layer.dropot: unknown option. Did you mean 'dropout'?
mine.yaml:20:32: model.layers.wide.feedforward.d_ff: must be at least 1, got -3
mine.yaml:21:12: model.layers.deep.atention: unknown option. Did you mean 'attention'?
mine.yaml:22:19: model.pattern[1]: unknown kind 'wid'; `layers:` names wide, deep. Did you mean 'wide'?
mine.yaml:22:24: model.pattern[2]: expected a kind, such as local, local*3 or global+first
mine.yaml:23:18: model.final_dropout: expected a rate from 0 to below 1, got 1
mine.yaml:24:38: model.head.tied: expected true or false, got 1
mine.yaml:24:48: model.head.scale: expected a number or 'sqrt_d_model' or '1/sqrt_d_model', got 'sqrt'
mine.yaml:25:18: model.heads.topic: needs the option 'num_classes'
mine.yaml:26:29: model.init.std: must be greater than 0, got 0
mine.yaml:27:22: model.special_ids.pad: expected a token id, got -1
mine.yaml:27:26: model.special_ids.begin: unknown option; available: end, pad, start
mine.yaml:28:16: train.steps: must be at least 1, got 0
mine.yaml:28:19: train.optimiser: unknown option. Did you mean 'optimizer'?
mine.yaml:28:47: train.precision: expected 'float32' or 'bfloat16', got 'float16'. Did you mean 'bfloat16'?
"""


def test_every_fault_of_a_file_at_once(here):
    assert said(here, WRONG) == ALL_OF_THEM.splitlines()


def test_faults_are_data_too(here):
    with pytest.raises(RecipeError) as caught:
        load(here, GOOD.replace("multi_head", "multihed"))
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.column) == ("mine.yaml", 13, 23)
    assert (fault.path, fault.message) == ("model.layer.attention.type", "unknown attention 'multihed'")
    assert fault.suggestion == "multi_head"


# -------------------------------------------------------------------------------------------------------- one by one


MESSAGES = [
    # versions and sections
    ("tfkit: 1\n", "", "1:1: tfkit: needs the version of the recipe language; add tfkit: 1"),
    (
        "tfkit: 1",
        "tfkit: 2",
        "1:8: tfkit: version 2 of the recipe language is newer than this tfkit, which supports version 1; "
        "install a newer tfkit",
    ),
    ("tfkit: 1", "tfkit: 1.0", "1:8: tfkit: expected the version of the recipe language, 1, got 1.0"),
    ("tfkit: 1", "tfkit: true", "1:8: tfkit: expected the version of the recipe language, 1, got true"),
    # wrong types
    (
        "num_heads: 2",
        "num_heads: true",
        "13:46: model.layer.attention.num_heads: expected a whole number, got true",
    ),
    ("num_heads: 2", 'num_heads: "8"', "13:46: model.layer.attention.num_heads: expected a whole number, got '8'"),
    ("num_heads: 2", "num_heads: 8.0", "13:46: model.layer.attention.num_heads: expected a whole number, got 8.0"),
    ("num_heads: 2", "num_heads: [2]", "13:46: model.layer.attention.num_heads: expected a whole number, got [2]"),
    (
        "tied: true",
        "tied: off",
        "16:38: model.head.tied: 'off' is ambiguous in YAML; write true or false, or quote it if it is text",
    ),
    ("dropout: 0.1}", "dropout: true}", "8:38: model.embedding.dropout: expected a number, got true"),
    (
        "    dropout: 0.1",
        "    dropout: true",
        "15:14: model.layer.dropout: expected a rate from 0 to below 1, got true",
    ),
    (
        "norm: layer_norm",
        "norm: true",
        "12:11: model.layer.norm: expected the name of a norm, or a mapping with its type, got true",
    ),
    (
        "attention: {type: multi_head, num_heads: 2}",
        "attention: 8",
        "13:16: model.layer.attention: expected the name of an attention, or a mapping with its type, got 8",
    ),
    (
        "norm: layer_norm",
        f"norm: [{', '.join(['rms_norm'] * 5000)}]",
        "12:11: model.layer.norm: expected the name of a norm, or a mapping with its type, "
        "got ['rms_norm', 'rms_norm', 'rms_norm', 'rms_norm', 'rms_nor...",
    ),
    (
        "num_layers: 4",
        "num_layers:",
        "7:3: model.num_layers: an empty value; write a value, none, or {} for no change",
    ),
    # missing
    ("  num_layers: 4\n", "", "3:3: model: needs num_layers"),
    ("  type: decoder\n", "", "3:3: model: needs a type: encoder, decoder or encoder_decoder"),
    (", d_ff: 16", "", "14:18: model.layer.feedforward: needs the option 'd_ff'"),
    (
        "    norm: layer_norm\n",
        "",
        "11:15: model.layer.residual: the layout 'pre_norm' needs a norm; set norm in the layer, or norm: none",
    ),
    # sizes that cannot be
    (
        "num_heads: 2",
        "num_heads: 3",
        "13:46: model.layer.attention.num_heads: 3 heads do not divide d_model 8; use a divisor, or set "
        "head_dim",
    ),
    (
        "num_heads: 2",
        "num_heads: 4, num_kv_heads: 3",
        "13:63: model.layer.attention.num_kv_heads: 3 key-value heads do not divide 4 heads; use a divisor",
    ),
    (
        "position: rotary",
        "position: sinusoidal\n  mask: {type: window}",
        "10:9: model.mask: a window needs size, or before or after",
    ),
    (
        "num_layers: 4",
        "num_layers: 0",
        "7:15: model.num_layers: expected a whole number from 1 to 10,000, got 0",
    ),
    (
        "num_layers: 4",
        "num_layers: 10001",
        "7:15: model.num_layers: expected a whole number from 1 to 10,000, got 10001",
    ),
    (
        "d_ff: 16",
        "d_ff: 1000000000000",
        "14:36: model.layer.feedforward.d_ff: must be at most 268,435,456, got 1000000000000",
    ),
    (
        "position: rotary",
        "position: learned\n  # none of a kind\n  mask: {type: window, size: 2, before: 1}",
        "11:30: model.mask.size: cannot be combined with before and after; remove size, or both of them",
    ),
    # contradictions
    (
        "    dropout: 0.1",
        "    mask: reverse_causal",
        "15:11: model.layer.mask: with both causal and reverse_causal in a layer, each token sees only itself",
    ),
    (
        "    dropout: 0.1",
        "    mask: global_tokens",
        "15:11: model.layer.mask: would show the future to a causal layer; use it in an encoder",
    ),
    ("tied: true", "reads: encoder", "16:39: model.head.reads: reads the encoder, which this model does not have"),
    ("type: decoder", "type: decodr", "3:9: model.type: unknown model 'decodr'. Did you mean 'decoder'?"),
    (
        "vocab_size: 20",
        "vocab_size: tokenizer",
        "5:15: model.vocab_size: needs a data.tokenizer to take the size from; add one, or set a number",
    ),
]  # fmt: skip


@looped(("old", "new", "expected"), MESSAGES)
def test_messages(here, old, new, expected):
    assert GOOD.count(old) == 1
    assert said(here, GOOD.replace(old, new)) == [f"mine.yaml:{expected}"]


def test_a_part_without_a_type_names_those_there_are(here):
    known = ", ".join(REGISTRY.names("feedforward"))
    assert said(here, GOOD.replace("type: mlp, ", "")) == [
        f"mine.yaml:14:18: model.layer.feedforward: type is missing; available feedforward types: {known}"
    ]


def test_a_vocabulary_is_missed_where_it_is_needed(here):
    needed = "needs a vocab_size in the model: a number or `tokenizer`"
    assert said(here, GOOD.replace("  vocab_size: 20\n", "")) == [
        f"mine.yaml:7:14: model.embedding: tokens {needed}",
        f"mine.yaml:15:9: model.head: language_model {needed}",
    ]


def test_two_places_of_a_contradiction(here):
    shared = GOOD.replace("type: decoder", "type: encoder_decoder").replace("dropout: 0.1}", "shared: true}")
    assert said(here, shared + "  encoder: {vocab_size: 30}\n") == [
        "mine.yaml:8:37: model.embedding.shared: a shared table needs a single vocab_size, got 30 (mine.yaml:17:25) "
        "and 20 (mine.yaml:5:15)"
    ]


def test_a_model_that_says_only_its_type(here):
    assert said(here, "tfkit: 1\nmodel: {type: decoder}\n") == [
        "mine.yaml:2:8: model: needs num_layers",
        "mine.yaml:2:8: model: needs d_model",
        "mine.yaml:2:8: model: needs `layer`, which describes its layers",
    ]


def test_rotation_turns_heads_whatever_the_width_of_the_embedding(here):
    narrow = GOOD.replace("dropout: 0.1}", "d_embedding: 6}")  # its half is odd, that of d_model 8 is not
    load(here, narrow)
    odd = narrow.replace("d_model: 8", "d_model: 6").replace("d_embedding: 6", "d_embedding: 8")
    assert said(here, odd) == [
        "mine.yaml:9:13: model.position: rotary rotates pairs of channels, "
        "so head_dim must be even and at least 2, got 3"
    ]


def test_where_a_dropped_option_stood(here):
    assert said(here, GOOD, sets=["model.layer.feedforward=glu"]) == [
        "--set model.layer.feedforward=glu: model.layer.feedforward: needs the option 'd_ff' (dropped with the "
        "other options of the previous type; it was set at mine.yaml:14:36)"
    ]


def test_values_from_the_command_line_and_from_python(here):
    assert said(here, GOOD, sets=["model.num_layers=four"]) == [
        "--set model.num_layers=four: model.num_layers: expected a whole number from 1 to 10,000, got 'four'"
    ]
    assert said(here, GOOD, overrides={"model.dmodel": 3}) == [
        "<overrides>: model.dmodel: unknown option. Did you mean 'd_model'?"
    ]
    with pytest.raises(RecipeError, match=r"^<mapping>: model: needs a `model:` section"):
        load_recipe({"tfkit": 1})


# --------------------------------------------------------------------------------------------- between the sections

DATA = """\
data:
  tokenizer: {type: word, vocab_size: 30}
  train: {type: text, files: some.txt}
"""


def test_an_objective_wants_a_direction(here):
    assert said(here, GOOD + "objective: masked_lm\n")[0] == (
        "mine.yaml:17:12: objective: 'masked_lm' trains a bidirectional stack (model.type: encoder), but "
        "this model is a causal stack (model.type: decoder), see mine.yaml:3:9"
    )
    encoder = GOOD.replace("type: decoder", "type: encoder")
    assert said(here, encoder + "objective: {type: causal_lm}\n") == [
        "mine.yaml:17:19: objective.type: 'causal_lm' trains a causal stack (model.type: decoder), but this model is a "
        "bidirectional stack (model.type: encoder), see mine.yaml:3:9"
    ]
    assert said(here, GOOD + "objective: seq2seq\n") == [
        "mine.yaml:17:12: objective: 'seq2seq' trains an encoder_decoder, but this model is a causal stack "
        "(model.type: decoder), see mine.yaml:3:9"
    ]


def test_an_objective_wants_a_head(here):
    text = GOOD.replace("{type: language_model, tied: true}", "hidden")
    assert said(here, text + "objective: causal_lm\n") == [
        "mine.yaml:16:9: model.head: objective 'causal_lm' needs a head of type language_model or masked_lm; the "
        "head is "
        "'hidden'"
    ]


def test_an_objective_trains_the_head_that_the_model_answers_with(here):
    pair = GOOD.replace("type: decoder", "type: encoder_decoder")
    head = "{type: language_model, reads: encoder}"
    assert said(here, pair.replace("{type: language_model, tied: true}", head) + "objective: seq2seq\n") == [
        "mine.yaml:16:39: model.head.reads: 'seq2seq' trains this head on the decoder; set reads: decoder, or "
        "remove reads"
    ]
    load(here, pair.replace("{type: language_model, tied: true}", head.replace("encoder}", "decoder}")))
    load(here, pair.replace("{type: language_model, tied: true}", head))  # without an objective it is a model to call


def test_a_tokenizer_fits_the_model(here):
    assert said(here, GOOD + DATA) == [
        "mine.yaml:18:39: data.tokenizer.vocab_size: the tokenizer may have 30 tokens, but vocab_size is "
        "20 (see mine.yaml:5:15)"
    ]
    load(here, (GOOD + DATA).replace("vocab_size: 20", "vocab_size: tokenizer"))
    load(here, (GOOD + DATA).replace("vocab_size: 20", "vocab_size: 31"))


def test_a_tokenizer_must_fit_whatever_is_wrong_beside_it(here):
    text = (GOOD + DATA).replace("files: some.txt", "fils: some.txt") + "  batch: {tokens: 0}\n"
    assert said(here, text) == [
        "mine.yaml:18:39: data.tokenizer.vocab_size: the tokenizer may have 30 tokens, but vocab_size is "
        "20 (see mine.yaml:5:15)",
        "mine.yaml:19:10: data.train: needs the option 'files'",
        "mine.yaml:19:23: data.train.fils: unknown option. Did you mean 'files'?",
        "mine.yaml:20:19: data.batch.tokens: must be at least 1, got 0",
    ]


def test_an_objective_needs_fields_whatever_is_wrong_beside_them(here):
    text = (GOOD + DATA).replace("vocab_size: 30", "vocab_siz: 30") + "objective: seq2seq\n"
    faults = said(here, text)
    assert "mine.yaml:18:27: data.tokenizer.vocab_siz: unknown option. Did you mean 'vocab_size'?" in faults
    assert "mine.yaml:19:10: data.train: 'seq2seq' needs the fields source, target; this corpus has text" in faults


@pytest.mark.parametrize("tokenizer", ["{type: word, vocab_size: 30}", "{type: word}"])
def test_a_vocabulary_of_unknown_size_has_room_for_special_ids(here, tokenizer):
    text = (GOOD + "  special_ids: {pad: 3}\n" + DATA).replace("vocab_size: 20", "vocab_size: tokenizer")
    recipe = load(here, text.replace("{type: word, vocab_size: 30}", tokenizer))
    assert recipe.blueprint(4).special_ids == (("pad", 3),)
    with pytest.raises(RecipeError, match="expected a token id below vocab_size 3, got 3"):
        recipe.blueprint(3)


def test_none_takes_a_section_out(here):
    recipe = load(here, GOOD + "data: none\nobjective: none\ntrain: none\ngenerate: none\n")
    assert (recipe.data, recipe.objective, recipe.train.steps) == (None, None, 10_000)


# ------------------------------------------------------------------------------------------------- sizes beyond sense


def test_sizes_beyond_sense_resolve_at_once_and_take_no_memory(here):
    big = GOOD.replace("d_model: 8", "d_model: 1048576").replace("d_ff: 16", "d_ff: 134217728")
    load(here, GOOD)  # which imports what it needs
    assert work(lambda: load(here, big)) < 2 * work(lambda: load(here, GOOD))
    assert count_parameters(load(here, big).blueprint()) > 10**15


@pytest.mark.parametrize("shared", ["false", "true"])
def test_the_most_layers_resolve_at_once(here, shared):
    few = GOOD.replace("residual:", f"shared: {shared}\n    residual:")
    few += "  layers: {a: {}, b: {mask: {type: window, size: 2}}}\n  pattern: [a, [b, a]]\n"
    deep = few.replace("num_layers: 4", "num_layers: 10000")
    blueprint = load(here, deep).blueprint()
    more = work(lambda: load(here, deep).blueprint()) - work(lambda: load(here, few).blueprint())
    assert more < 5 * 10_000  # functions entered
    assert (blueprint.last.num_layers, len(blueprint.last.layers)) == (10_000, 2)
