"""What a newcomer reads when a recipe is wrong: every fault at once, with its place, its path and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.work import work
from tfkit.core.errors import RecipeError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.reports.counts import count_parameters

from ..sampling import looped
from . import small

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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, so that places are short."""
    monkeypatch.chdir(tmp_path)


def load(text: str, **how: Any) -> Recipe:
    Path("mine.yaml").write_text(text)
    return load_recipe("mine.yaml", **how)


def said(text: str, **how: Any) -> list[str]:
    """Faults as they are printed, without the name of the file."""
    Path("mine.yaml").write_text(text)
    return [fault.removeprefix("mine.yaml:") for fault in small.said("mine.yaml", **how)]


def changed(*changes: str) -> str:
    """GOOD with texts replaced: old, new, old, new."""
    text = GOOD
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


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
2:1: modle: unknown section. Did you mean 'model'?
5:12: model.d_model: expected a whole number from 1 to 268,435,456, got 8.0
6:3: model.d_modl: unknown option. Did you mean 'd_model'?
7:15: model.vocab_size: expected a whole number from 1 to 268,435,456, got '20'
8:15: model.max_length: expected a whole number from 1 to 268,435,456, got true
10:21: model.embedding.type: unknown embedding 'token'. Did you mean 'tokens'?
11:28: model.position.teta: unknown option. Did you mean 'theta'?
12:30: model.mask.size: must be at least 1, got 0
14:15: model.layer.residual: unknown residual 'pre-norm'. Did you mean 'pre_norm'?
15:35: model.layer.norm.eps: expected a number, got 'tiny'
16:23: model.layer.attention.type: unknown attention 'multihed'. Did you mean 'multi_head'?
17:18: model.layer.feedforward: needs the option 'd_ff'
17:30: model.layer.feedforward.dff: unknown option. Did you mean 'd_ff'?
17:48: model.layer.feedforward.dropout: must be less than 1, got 1.5
17:59: model.layer.feedforward.bias: 'no' is ambiguous in YAML; write true or false, or quote it if it is text
18:5: model.layer.dropot: unknown option. Did you mean 'dropout'?
20:32: model.layers.wide.feedforward.d_ff: must be at least 1, got -3
21:12: model.layers.deep.atention: unknown option. Did you mean 'attention'?
22:19: model.pattern[1]: unknown kind 'wid'; `layers:` names wide, deep. Did you mean 'wide'?
22:24: model.pattern[2]: expected a kind, such as local, local*3 or global+first
23:18: model.final_dropout: expected a rate from 0 to below 1, got 1
24:38: model.head.tied: expected true or false, got 1
24:48: model.head.scale: expected a number or 'sqrt_d_model' or '1/sqrt_d_model', got 'sqrt'
25:18: model.heads.topic: needs the option 'num_classes'
26:29: model.init.std: must be greater than 0, got 0
27:22: model.special_ids.pad: expected a token id, got -1
27:26: model.special_ids.begin: unknown option; available: end, pad, start
28:16: train.steps: must be at least 1, got 0
28:19: train.optimiser: unknown option. Did you mean 'optimizer'?
28:47: train.precision: expected 'float32' or 'bfloat16', got 'float16'. Did you mean 'bfloat16'?
"""


def test_every_fault_of_a_file_at_once():
    assert said(WRONG) == ALL_OF_THEM.splitlines()


def test_faults_are_data_too():
    with pytest.raises(RecipeError) as caught:
        load(changed("multi_head", "multihed"))
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.column) == ("mine.yaml", 13, 23)
    assert (fault.path, fault.message) == ("model.layer.attention.type", "unknown attention 'multihed'")
    assert fault.suggestion == "multi_head"


ATTENTION = "attention: {type: multi_head, num_heads: 2}"
HEADS = "13:46: model.layer.attention.num_heads:"
TRAINS = "trains a causal stack (model.type: decoder), but this model is a"
TOKENIZER = "data:\n  tokenizer: {type: word, vocab_size: 30}\n  train: {type: text, files: some.txt}\n"
FITS = "18:39: data.tokenizer.vocab_size: the tokenizer may have 30 tokens, but vocab_size is 20 (see mine.yaml:5:15)"
MESSAGES = [
    # versions and sections
    ("tfkit: 1\n", "", "1:1: tfkit: needs the version of the recipe language; add tfkit: 1"),
    ("tfkit: 1", "tfkit: 2", "1:8: tfkit: version 2 of the recipe language is newer than this tfkit, which supports v"),
    ("tfkit: 1", "tfkit: 1.0", "1:8: tfkit: expected the version of the recipe language, 1, got 1.0"),
    ("tfkit: 1", "tfkit: true", "1:8: tfkit: expected the version of the recipe language, 1, got true"),
    # wrong types
    ("num_heads: 2", "num_heads: true", f"{HEADS} expected a whole number, got true"),
    ("num_heads: 2", "num_heads: 8.0", f"{HEADS} expected a whole number, got 8.0"),
    ("num_heads: 2", "num_heads: [2]", f"{HEADS} expected a whole number, got [2]"),
    ("dropout: 0.1}", "dropout: true}", "8:38: model.embedding.dropout: expected a number, got true"),
    ("    dropout: 0.1", "    dropout: true", "15:14: model.layer.dropout: expected a rate from 0 to below 1, got tru"),
    ("norm: layer_norm", "norm: true", "12:11: model.layer.norm: expected the name of a norm, or a mapping with its t"),
    (ATTENTION, "attention: 8", "13:16: model.layer.attention: expected the name of an attention, or a mapping with i"),
    ("norm: layer_norm", f"norm: [{', '.join(['rms_norm'] * 5000)}]", "12:11: model.layer.norm: expected the name of "
     "a norm, or a mapping with its type, got ['rms_norm', 'rms_norm', 'rms_norm', 'rms_norm', 'rms_nor..."),
    ("num_layers: 4", "num_layers:", "7:3: model.num_layers: an empty value; write a value, none, or {} for no change"),
    # missing
    ("  num_layers: 4\n", "", "3:3: model: needs num_layers"),
    ("  type: decoder\n", "", "3:3: model: needs a type: encoder, decoder or encoder_decoder"),
    ("type: mlp, ", "", "14:18: model.layer.feedforward: type is missing; available feedforward types: "),
    (", d_ff: 16", "", "14:18: model.layer.feedforward: needs the option 'd_ff'"),
    ("    norm: layer_norm\n", "", "11:15: model.layer.residual: the layout 'pre_norm' needs a norm; set norm in the "),
    # sizes that cannot be
    ("num_heads: 2", "num_heads: 3", f"{HEADS} 3 heads do not divide d_model 8; use a divisor, or set head_dim"),
    ("num_heads: 2", "num_heads: 4, num_kv_heads: 3",
     "13:63: model.layer.attention.num_kv_heads: 3 key-value heads do not divide 4 heads; use a divisor"),
    ("position: rotary", "position: sinusoidal\n  mask: {type: window}", "10:9: model.mask: a window needs size, or b"),
    ("num_layers: 4", "num_layers: 0", "7:15: model.num_layers: expected a whole number from 1 to 10,000, got 0"),
    ("num_layers: 4", "num_layers: 10001", "7:15: model.num_layers: expected a whole number from 1 to 10,000, got 100"),
    ("d_ff: 16", "d_ff: 1000000000000", "14:36: model.layer.feedforward.d_ff: must be at most 268,435,456, got 100000"),
    ("position: rotary", "position: learned\n  # no kind\n  mask: {type: window, size: 2, before: 1}",
     "11:30: model.mask.size: cannot be combined with before and after; remove size, or both of them"),
    # contradictions
    ("    dropout: 0.1", "    mask: reverse_causal", "15:11: model.layer.mask: with both causal and reverse_causal in"),
    ("    dropout: 0.1", "    mask: [causal, reverse_causal]", "15:20: model.layer.mask[1]: with both causal and reve"),
    ("    dropout: 0.1", "    mask: global_tokens", "15:11: model.layer.mask: would show the future to a causal layer"),
    ("tied: true", "reads: encoder", "16:39: model.head.reads: reads the encoder, which this model does not have"),
    ("type: decoder", "type: decodr", "3:9: model.type: unknown model 'decodr'. Did you mean 'decoder'?"),
    ("vocab_size: 20", "vocab_size: tokenizer", "5:15: model.vocab_size: needs a data.tokenizer to take the size from"),
]  # fmt: skip


@looped(("old", "new", "expected"), MESSAGES)
def test_messages(old, new, expected):
    (fault,) = said(changed(old, new))
    assert fault.startswith(expected), fault


SHARED = ("type: decoder", "type: encoder_decoder", "dropout: 0.1}", "shared: true}")
NARROW = ("dropout: 0.1}", "d_embedding: 6}")  # its half is odd, that of d_model 8 is not
TIED = "{type: language_model, tied: true}"
ENCODER_HEAD = ("type: decoder", "type: encoder_decoder", TIED, "{type: language_model, reads: encoder}")
ACCEPTED = [
    (GOOD, {}),
    (changed(*NARROW), {}),
    (changed(*ENCODER_HEAD), {}),  # without an objective it is a model to call
    (changed(*ENCODER_HEAD).replace("reads: encoder", "reads: decoder") + "objective: seq2seq\n", {}),
    (changed("vocab_size: 20", "vocab_size: tokenizer") + TOKENIZER, {}),
    (changed("vocab_size: 20", "vocab_size: 31") + TOKENIZER, {}),
]
REFUSED: list[tuple[str, dict[str, Any], list[str]]] = [
    (changed("  vocab_size: 20\n", ""), {}, [
        "7:14: model.embedding: tokens needs a vocab_size in the model: a number or `tokenizer`",
        "15:9: model.head: language_model needs a vocab_size in the model: a number or `tokenizer`",
    ]),
    (changed(*SHARED) + "  encoder: {vocab_size: 30}\n", {}, [
        "8:37: model.embedding.shared: a shared table needs a single vocab_size, got 30 (mine.yaml:17:25) and 20 "
        "(mine.yaml:5:15)",
    ]),
    ("tfkit: 1\nmodel: {type: decoder}\n", {}, [
        "2:8: model: needs num_layers", "2:8: model: needs d_model", "2:8: model: needs `layer`, which describes its",
    ]),
    (changed("dropout: 0.1}", "d_embedding: 8}", "d_model: 8", "d_model: 6"), {}, [
        "9:13: model.position: rotary rotates pairs of channels, so head_dim must be even and at least 2, got 3",
    ]),
    # from the command line and from Python
    (GOOD, {"sets": ["model.layer.feedforward=glu"]}, [
        "--set model.layer.feedforward=glu: model.layer.feedforward: needs the option 'd_ff' (dropped with the "
        "other options of the previous type; it was set at mine.yaml:14:36)",
    ]),
    (GOOD, {"sets": ["model.num_layers=four"]}, ["--set model.num_layers=four: model.num_layers: expected a whole nu"]),
    (GOOD, {"overrides": {"model.dmodel": 3}}, ["<overrides>: model.dmodel: unknown option. Did you mean 'd_model'?"]),
    # between the sections
    (GOOD + "objective: masked_lm\n", {}, [
        "17:12: objective: 'masked_lm' trains a bidirectional stack (model.type: encoder), but this model is a causal "
        "stack (model.type: decoder), see mine.yaml:3:9",
    ]),
    (changed("type: decoder", "type: encoder") + "objective: {type: causal_lm}\n", {}, [
        f"17:19: objective.type: 'causal_lm' {TRAINS} bidirectional stack (model.type: encoder), see mine.yaml:3:9",
    ]),
    (GOOD + "objective: seq2seq\n", {}, [
        "17:12: objective: 'seq2seq' trains an encoder_decoder, but this model is a causal stack (model.type: decoder)",
    ]),
    (changed(TIED, "hidden") + "objective: causal_lm\n", {}, [
        "16:9: model.head: objective 'causal_lm' needs a head of type language_model or masked_lm; the head is 'hidden",
    ]),
    (changed(*ENCODER_HEAD) + "objective: seq2seq\n", {}, [
        "16:39: model.head.reads: 'seq2seq' trains this head on the decoder; set reads: decoder, or remove reads",
    ]),
    (GOOD + TOKENIZER, {}, [FITS]),
    ((GOOD + TOKENIZER).replace("files: some.txt", "fils: some.txt") + "  batch: {tokens: 0}\n", {}, [
        FITS, "19:10: data.train: needs the option 'files'",
        "19:23: data.train.fils: unknown option. Did you mean 'files'?",
        "20:19: data.batch.tokens: must be at least 1, got 0",
    ]),
    ((GOOD + TOKENIZER).replace("vocab_size: 30", "vocab_siz: 30") + "objective: seq2seq\n", {}, [
        "18:27: data.tokenizer.vocab_siz: unknown option. Did you mean 'vocab_size'?",
        "19:10: data.train: 'seq2seq' needs the fields source, target; this corpus has text",
        "20:12: objective: 'seq2seq' trains an encoder_decoder",
    ]),
]  # fmt: skip


@looped(("text", "how", "expected"), REFUSED)
def test_what_is_refused(text, how, expected):
    found = said(text, **how)
    assert [fault[: len(start)] for fault, start in zip(found, expected, strict=True)] == expected, found


@looped(("text", "how"), ACCEPTED)
def test_what_is_accepted(text, how):
    load(text, **how)


def test_a_mapping_is_named():
    assert small.said({"tfkit": 1})[0].startswith("<mapping>: model: needs a `model:` section")


@pytest.mark.parametrize("tokenizer", ["{type: word, vocab_size: 30}", "{type: word}"])
def test_a_vocabulary_of_unknown_size_has_room_for_special_ids(tokenizer):
    text = (GOOD + "  special_ids: {pad: 3}\n" + TOKENIZER).replace("vocab_size: 20", "vocab_size: tokenizer")
    recipe = load(text.replace("{type: word, vocab_size: 30}", tokenizer))
    assert recipe.blueprint(4).special_ids == (("pad", 3),)
    with pytest.raises(RecipeError, match="expected a token id below vocab_size 3, got 3"):
        recipe.blueprint(3)


def test_none_takes_a_section_out():
    recipe = load(GOOD + "data: none\nobjective: none\ntrain: none\ngenerate: none\n")
    assert (recipe.data, recipe.objective, recipe.train.steps) == (None, None, 10_000)


def test_sizes_beyond_sense_resolve_at_once_and_take_no_memory():
    big = changed("d_model: 8", "d_model: 1048576", "d_ff: 16", "d_ff: 134217728")
    load(GOOD)  # which imports what it needs
    assert work(lambda: load(big)) < 2 * work(lambda: load(GOOD))
    assert count_parameters(load(big).blueprint()) > 10**15


@pytest.mark.parametrize("shared", ["false", "true"])
def test_the_most_layers_resolve_at_once(shared):
    few = changed("residual:", f"shared: {shared}\n    residual:")
    few += "  layers: {a: {}, b: {mask: {type: window, size: 2}}}\n  pattern: [a, [b, a]]\n"
    deep = few.replace("num_layers: 4", "num_layers: 10000")
    blueprint = load(deep).blueprint()
    more = work(lambda: load(deep).blueprint()) - work(lambda: load(few).blueprint())
    assert more < 5 * 10_000  # functions entered
    assert (blueprint.last.num_layers, len(blueprint.last.layers)) == (10_000, 2)
