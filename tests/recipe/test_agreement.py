"""Contradictions between the sections of a recipe are reported with their place and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tfkit
from tfkit.cli.main import WRONG, main
from tfkit.core.component import Doubt, Problem
from tfkit.core.errors import RecipeError
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import load_recipe
from tfkit.recipe.rules import SECTION_PAIRS, pairs
from tfkit.training.metric import TextMetric
from tfkit.training.objective import CausalLm
from tfkit.training.schedule import Schedule

from ..sampling import looped
from . import small

pytestmark = pytest.mark.usefixtures("shipped_parts")

DECODER = """\
tfkit: 1
model:
  type: decoder
  d_model: 8
  vocab_size: tokenizer
  max_length: 16
  num_layers: 2
  embedding: tokens
  position: sinusoidal
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mlp, d_ff: 8}
  head: language_model
data:
  tokenizer: {type: word, vocab_size: 50}
  train: docstrings
  valid: docstrings
  batch: {size: 4}
objective: causal_lm
train:
  steps: 100
  schedule: {type: constant, lr: 0.01}
generate:
  strategy: greedy
"""
ENCODER = (
    DECODER.replace("type: decoder", "type: encoder")
    .replace("head: language_model", "head: masked_lm")
    .replace("causal_lm", "masked_lm")
    .replace("vocab_size: 50}", 'vocab_size: 50, special_tokens: {mask: "<mask>"}}')
)
PAIR = (
    DECODER.replace("type: decoder", "type: encoder_decoder")
    .replace("causal_lm", "seq2seq")
    .replace("docstrings", "phrases")
)
LABELS = (
    ENCODER.replace("head: masked_lm", "head: {type: classifier, num_classes: labels}")
    .replace("objective: masked_lm", "objective: classification")
    .replace("train: docstrings", "train: {type: labelled_text, file: mine.yaml}")
    .replace("valid: docstrings", "valid: {type: labelled_text, file: mine.yaml}")
)
GENERATOR = (
    "{type: encoder, d_model: 8, num_layers: 1, embedding: tokens, layer: {norm: layer_norm, "
    "attention: {type: multi_head, num_heads: 2}, feedforward: {type: mlp, d_ff: 8}}, head: masked_lm}"
)
ELECTRA = ENCODER.replace("head: masked_lm", "head: discriminator").replace(
    "objective: masked_lm", f"objective: {{type: replaced_token, generator: {GENERATOR}}}"
)


BASES = {"decoder": DECODER, "encoder": ENCODER, "pair": PAIR, "labels": LABELS, "electra": ELECTRA}
BASES["unvalidated"] = DECODER.replace("  valid: docstrings\n", "")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that places are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, *sets: str) -> Any:
    Path("mine.yaml").write_text(text)
    return load_recipe("mine.yaml", sets=sets)


def faults(text: str, *sets: str) -> list[str]:
    """Each fault as `path: message`."""
    Path("mine.yaml").write_text(text)
    return small.faults("mine.yaml", sets=sets)


def warned(text: str, *sets: str) -> list[str]:
    """Each warning as `path: message`; the recipe is accepted."""
    return small.warned(loaded(text, *sets))


def rows(table: str) -> Iterator[tuple[str, list[str], str]]:
    """The base, what is set, and the message of each row."""
    for row in table.replace("\n    ", " ").strip().splitlines():
        base, sets, *said = row.split(" | ")
        yield BASES[base], sets.split(" ; "), "".join(said)


def test_a_place_is_reported_though_the_option_is_not_written() -> None:
    Path("mine.yaml").write_text(DECODER.replace("max_length: 16\n  ", ""))
    assert small.said("mine.yaml") == [
        "mine.yaml:19:12: objective.block: joined texts are split into rows; set block, the number of tokens per row, "
        "or model.max_length"
    ]


# a base, what is set in it, and the beginning of the message; a long one is on a line of its own
WRONG_TOGETHER = """
decoder | train.metrics=[bleu] | train.metrics[0]: objective 'causal_lm' does not declare 'words'
pair | train.metrics=[bleu, pearson] | train.metrics[1]: objective 'seq2seq' does not declare 'numbers'
labels | train.metrics=[entity_f1] | train.metrics[0]: objective 'classification' does not declare 'tags'
encoder | train.metrics=[bits_per_character] | train.metrics[0]: objective 'masked_lm' does not declare
electra | train.metrics=[perplexity] | train.metrics[0]: objective 'replaced_token' does not declare 'likel
decoder | generate.logits=[{type: top_p, p: 0.9}] | generate.logits[0]: strategy 'greedy' does not declare
decoder | generate.strategy=beam ; generate.logits={type: temperature, temperature: 2} |
    generate.logits: strategy 'beam' does not declare 'draws' (samples tokens at random), which logits 'temperature' req
decoder | generate.strategy=contrastive ; generate.logits={type: min_p, p: 0.9} | generate.logits: strategy
decoder | generate.strategy={type: contrastive, k: 51} | generate.strategy.k: 51 exceeds the vocabulary
decoder | generate.strategy=sample ; generate.logits={type: top_k, k: 51} | generate.logits.k: 51 exceeds the vocabulary
decoder | generate.logits=[{type: regex, pattern: a}, {type: choices, choices: b}] |
    generate.logits[1]: choices comes after regex, which already constrains the text
decoder | data.tokenizer.special_tokens={end: none} ; generate.logits={type: min_length, tokens: 2} |
    generate.logits.ends: the tokenizer has no end token; list the end tokens here
decoder | model.layer={attention: none, mixer: lstm} ; generate.strategy=speculative ; model.position=none |
    generate.strategy: mixer 'lstm' does not declare 'rewind'
decoder | model.layer.attention=linear ; generate.strategy=speculative ; model.layer.attention.num_heads=2 |
    generate.strategy: attention 'linear' does not declare 'rewind'
encoder | data.tokenizer=character | data.tokenizer.special_tokens.mask: 'masked_lm' requires a special token for mask;
pair | data.tokenizer.special_tokens={start: none} | data.tokenizer.special_tokens.start: 'seq2seq' requires
pair | objective=denoising ; data.train=docstrings ; data.valid=docstrings |
    data.tokenizer.special_tokens.mask: 'denoising' requires a special token for mask
pair | objective=span_corruption ; data.train=docstrings ; data.valid=docstrings |
    data.tokenizer.special_tokens.sentinels: 'span_corruption' requires at least two sentinel tokens
encoder | data.tokenizer={type: file, path: t.json, special_tokens: {pad: x}} |
    data.tokenizer.special_tokens.mask: 'masked_lm' requires a special token for mask
encoder | model.embedding={type: token_dropout, mask_id: 3} | model.embedding.mask_id: is 3, but the tokenizer's mask
decoder | model.embedding=none | model.embedding: the decoder reads vectors, but 'causal_lm' trains on
labels | model.embedding=features | model.embedding: the encoder reads vectors, but 'classification'
pair | model.encoder.embedding=features | model.encoder.embedding: the encoder reads vectors, but 'seq2seq' trains on to
decoder | data.batch.pack=true ; objective.join=false | data.batch.length: packing needs a row length
decoder | data.batch.pack=true ; data.batch.length=8 | data.batch.pack: blocks of joined texts are full and cannot be pa
decoder | objective.block=17 | objective.block: 17 exceeds the limit of 16 tokens set by model.max_length
decoder | objective.block=9 ; data.batch.length=8 | objective.block: 9 exceeds the limit of 8 tokens set by data.batch.l
decoder | objective={type: causal_lm, join: false, block: 8} | objective.block: with join: false each text
decoder | data.batch={tokens: 15, size: none} | objective.block: a row of 16 tokens does not fit in a batch of data.batc
encoder | model.max_length=2 | model.max_length: 'masked_lm' requires rows of at least 3 tokens
encoder | data.batch.length=2 | data.batch.length: 'masked_lm' requires rows of at least 3 tokens
encoder | data.batch={tokens: 2, size: none} | data.batch.tokens: a batch must hold a row of 'masked_lm', which
pair | model.decoder.max_length=1 | model.decoder.max_length: 'seq2seq' requires rows of at least 2 tokens
decoder | train.freeze=[decoder.layer.0] | train.freeze[0]: no parameter name starts with 'decoder.layer.0'
decoder | train.freeze=['decoder.layer.*.bias'] | train.freeze[0]: no parameter name matches 'decoder.layer.*.bias'
decoder | train.freeze=['*'] | train.freeze: nothing to train: every parameter is frozen
decoder | train.freeze=[decoder, head] | train.freeze: nothing to train: every parameter is frozen
labels | train.freeze=[encoder, head] ; model.heads={other: hidden, third: {type: classifier, num_classes: 2}} |
    train.freeze: nothing to train: every parameter is frozen
unvalidated | train.patience=2 | train.patience: needs validations
labels | model.head.independent=true | model.head.independent: 'classification' requires exclusive classes
encoder | objective=next_sentence ; model.heads={next_sentence: {type: classifier, num_classes: 1}} |
    model.heads.next_sentence.num_classes: 'next_sentence' has two classes
electra | objective.generator.d_model=16 | objective.generator: the generator's token table is 16 wide, the model's 8; s
electra | objective.generator.max_length=8 | objective.generator.max_length: the generator accepts at most 8 tokens
electra | objective.generator.embedding=none | objective.generator: embedding: a generator reads token ids
electra | objective.generator.mask=global_tokens | objective.generator: 'replaced_token' does not provide global_attenti
electra | objective.generator.layer.attention=none ; objective.generator.layer.mixer=fourier |
    objective.generator: mixer 'fourier' cannot mask padding, which 'replaced_token' requires
pair | train.recompute=99 | train.recompute: 99 exceeds the 2 layers of the model
pair | train.recompute=all ; train.compile=true | train.compile: train.recompute cannot be compiled
"""
DOUBTED = """
encoder | generate.strategy=sample | generate.strategy: has no effect: this model cannot generate text without
encoder | generate.max_new_tokens=5 | generate.max_new_tokens: has no effect: this model cannot generate text
decoder | generate.length_ratio=2 | generate.length_ratio: has no effect: only an encoder_decoder
decoder | train.schedule.warmup=100 | train.schedule.warmup: the warmup of 100 steps must be shorter
decoder | train.schedule=inverse_square_root | train.schedule.warmup: the warmup of 4,000 steps
decoder | train.keep={mean: 2} | train.keep.mean: averages 2 checkpoints, but 100 steps produce only 1;
decoder | train.evaluate_every=200 | train.evaluate_every: exceeds steps: 100, so the only validation is
decoder | train.patience=4 ; train.evaluate_every=25 | train.patience: has no effect: there are only
unvalidated | train.evaluate_every=20 | train.evaluate_every: has no effect
unvalidated | train.metrics=[perplexity] | train.metrics: have no effect
"""
ACCEPTED = """
pair | train.metrics=[bleu, exact_match, perplexity, bits_per_character, accuracy]
labels | train.metrics=[pearson, macro_f1, perplexity]
decoder | generate.strategy={type: beam, sampled: true} ; generate.logits={type: top_p, p: 0.9}
decoder | generate.strategy=speculative
pair | generate.length_ratio=1.5
pair | train.recompute=1
pair | train.recompute=all
decoder | train.freeze=[decoder.layers, decoder.embedding]
decoder | train.freeze=['*.attention.*', 'decoder.layers.?.feedforward*']
decoder | data.batch={size: 2, pack: true, length: 40} ; objective.join=false
encoder | model.embedding={type: token_dropout, mask_id: 4}
electra | objective.generator.d_model=16 ; objective.shared=false
electra | train.freeze=[encoder, head]
encoder | data.tokenizer={type: file, path: t.json}
decoder | train.schedule.warmup=99
decoder | train.keep={mean: 2} ; train.checkpoint_every=60
decoder | train.patience=3 ; train.evaluate_every=25
decoder | train.evaluate_every=100
"""


@looped(("text", "sets", "said"), rows(WRONG_TOGETHER))
def test_what_cannot_be_combined(text: str, sets: list[str], said: str) -> None:
    (fault,) = faults(text, *sets)
    assert said and fault.startswith(said), fault


@looped(("text", "sets", "said"), rows(DOUBTED))
def test_what_is_seldom_meant_is_a_warning(text: str, sets: list[str], said: str) -> None:
    (warning,) = warned(text, *sets)
    assert said and warning.startswith(said), warning


@looped(("text", "sets"), [(text, sets) for text, sets, _ in rows(ACCEPTED)])
def test_what_can_be_combined(text: str, sets: list[str]) -> None:
    assert warned(text, *sets) == []


@looped("text", list(BASES.values())[:5])
def test_the_bases_are_right(text: str) -> None:
    assert warned(text) == []


def test_every_fault_has_its_place_and_all_are_reported_at_once() -> None:
    Path("mine.yaml").write_text(DECODER.replace("strategy: greedy", "logits: [{type: top_k, k: 60}]"))
    sets = ["train.metrics=[perplexity, rouge]", "train.freeze=[nobody]"]
    with pytest.raises(RecipeError) as caught:
        load_recipe("mine.yaml", sets=sets)
    assert [(fault.file, fault.line, fault.path) for fault in caught.value.faults] == [
        ("--set train.freeze=[nobody]", 0, "train.freeze[0]"),
        ("--set train.metrics=[perplexity, rouge]", 0, "train.metrics[1]"),
        ("mine.yaml", 25, "generate.logits[0]"),
        ("mine.yaml", 25, "generate.logits[0].k"),
    ]


def test_a_model_with_faults_is_not_held_against_the_other_sections() -> None:
    """Consequences of a fault are not reported."""
    assert faults(DECODER.replace("max_length: 16", "max_length: true")) == [
        "model.max_length: expected a whole number from 1 to 268,435,456, got true"
    ]
    found = faults(DECODER.replace("max_length: 16", "max_length: true"), "train.metrics=[bleu]")
    assert len(found) == 2 and found[0].startswith("train.metrics[0]: objective 'causal_lm'")


def test_a_deep_stack_is_not_built_for_the_names_in_it() -> None:
    loaded(DECODER, "model.num_layers=10000", "train.freeze=[nobody]")


@pytest.mark.parametrize(("slot", "other"), SECTION_PAIRS)
def test_the_table_of_pairs_decides(slot: str, other: str) -> None:
    """What the table refuses is refused in a recipe with that reason, and nothing else is."""
    for name, partner, why in pairs(slot, other):
        config = REGISTRY.get(slot, name).Config
        if slot != "logits" or any(field.is_required() for field in config.model_fields.values()):
            continue
        switch = "" if why is not None or "sampled" not in _options(other, partner) else ", sampled: true"
        sets = [f"generate.logits={name}", f"generate.strategy={{type: {partner}{switch}}}"]
        if why is None:
            loaded(DECODER, *sets)
        else:
            assert why in faults(DECODER, *sets)[0]


def _options(slot: str, name: str) -> set[str]:
    return set(REGISTRY.get(slot, name).Config.model_fields)


def test_a_metric_and_an_objective_of_ones_own_declare_the_same() -> None:
    @tfkit.register("metric", "tag_count")
    class TagCount(TextMetric):
        compares = "tags"

        def compare(self, outputs: list[str], references: list[str]) -> float:
            return 0.0

    @tfkit.register("objective", "spelling")
    class Spelling(CausalLm):
        capabilities = frozenset({"likelihood", "words"})

    @tfkit.register("objective", "guess")
    class Guess(CausalLm):
        capabilities = frozenset()

    assert faults(DECODER, "train.metrics=[tag_count]")[0].startswith("train.metrics[0]: objective 'causal_lm' does")
    assert faults(DECODER, "objective=spelling", "train.metrics=[tag_count]")[0].startswith("train.metrics[0]: ")
    loaded(DECODER, "objective=spelling", "train.metrics=[accuracy, perplexity]")
    (fault,) = faults(DECODER, "objective=guess", "train.metrics=[perplexity]")
    assert fault.startswith("train.metrics[0]: objective 'guess' does not declare 'likelihood'")


def test_a_part_of_ones_own_checks_the_recipe_around_it() -> None:
    @tfkit.register("schedule", "fussy")
    class Fussy(Schedule):
        class Config(Schedule.Config):
            every: int = 3

            def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
                if facts.steps != 99:
                    yield Problem("every", "99 steps are wanted", at="train.schedule")
                    yield Problem("steps", "say 99", at="train")
                yield Doubt("", "seldom meant")

    assert faults(DECODER, "train.schedule={type: fussy, every: 2}") == [
        "train.schedule.every: 99 steps are wanted",
        "train.steps: say 99",
    ]
    assert warned(DECODER, "train.schedule=fussy", "train.steps=99") == ["train.schedule: seldom meant"]


def test_check_warns_of_files_that_are_not_there_and_refuses_missing_data() -> None:
    text = DECODER.replace("train: docstrings", "train: {type: text, files: [corpus.txt, mine.yaml]}")
    text = text.replace("embedding: tokens", "embedding: {type: tokens, vectors: glove.txt}")
    Path("mine.yaml").write_text(text)
    Path("corpora.txt").touch()
    options = ["--set", "train.init_from=mine.yaml", "--set", "generate.strategy={type: speculative, draft: other}"]
    result = CliRunner().invoke(main, ["check", "mine.yaml", *options])
    assert result.exit_code == 2
    here = Path.cwd()
    assert result.stderr.splitlines() == [
        f"--set generate.strategy={{type: speculative, draft: other}}: warning: generate.strategy.draft: "
        f"no such run folder: {here}/other; to use another one: --set generate.strategy.draft=PATH",
        f"--set train.init_from=mine.yaml: warning: train.init_from: {here}/mine.yaml is a file; expected a run folder",
        f"mine.yaml:8:38: warning: model.embedding.vectors: no such file: {here}/glove.txt; to use another one: "
        "--set model.embedding.vectors=PATH",
        f"mine.yaml:17:31: data.train.files[0]: no such file: {here}/corpus.txt. Did you mean '{here}/corpora.txt'?",
    ]


def test_training_refuses_them_all_before_it_reads_anything(tmp_path: Path) -> None:
    text = DECODER.replace("train: docstrings", "train: {type: text, files: corpus.txt}")
    recipe = loaded(text.replace("valid: docstrings", "valid: {type: text, files: .}"))
    with pytest.raises(RecipeError) as caught:
        tfkit.train(recipe, out=tmp_path / "run", progress=False)
    assert [(fault.line, fault.path) for fault in caught.value.faults] == [
        (17, "data.train.files"),
        (18, "data.valid.files"),
    ]
    assert "is a folder; expected a file" in caught.value.faults[1].message
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_with_the_status_of_a_wrong_recipe() -> None:
    Path("mine.yaml").write_text(DECODER)
    result = CliRunner().invoke(main, ["check", "mine.yaml", "--set", "train.metrics=[bleu]"])
    assert (result.exit_code, result.stdout) == (WRONG, "")
    start = "--set train.metrics=[bleu]: train.metrics[0]: objective 'causal_lm'"
    end = "bits_per_character, bits_per_symbol, perplexity, none (see mine.yaml:20:12)"
    assert result.stderr.startswith(start) and result.stderr.rstrip().endswith(end)
