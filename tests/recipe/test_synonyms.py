"""Words of other libraries: each target exists, no word is right where it is hinted, and typical lines get a hint."""

from __future__ import annotations

from typing import get_args

import pytest
import yaml
from click.testing import CliRunner

from tfkit.cli.main import main
from tfkit.core.errors import RecipeError
from tfkit.core.options import Slot
from tfkit.core.registry import CATALOGUES, REGISTRY
from tfkit.core.synonyms import SYNONYMS, TARGETS, is_own, slot_of, split_target
from tfkit.recipe.architecture.heads import SPECIAL
from tfkit.recipe.keys import LAYER, MODEL, STACK, TOP
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Batch, Data, Generate, Train

from ..sampling import looped

SECTIONS = {
    "": set(TOP),
    "model": {*MODEL, *STACK},
    "model.encoder": set(STACK),
    "model.decoder": set(STACK),
    "model.memory": {"d_model"},
    "model.layer": set(LAYER),
    "model.special_ids": set(SPECIAL),
    "data": set(Data.model_fields),
    "data.batch": set(Batch.model_fields),
    "train": set(Train.model_fields),
    "generate": set(Generate.model_fields),
}
PAIRS = [(word, target) for word, targets in SYNONYMS.items() for target in targets]


def keys_at(parent: str) -> set[str]:
    """The keys of a section, or the options that some part of a slot has."""
    if parent in SECTIONS:
        return SECTIONS[parent]
    above = parent.rpartition(".")[0].replace("model.encoder.layer", "model.layer")
    above = above.replace("model.decoder.layer", "model.layer")
    if parent.endswith(".layer"):
        return SECTIONS["model.layer"]
    assert parent.rpartition(".")[2] in keys_at(above)
    return set().union(*choices_at(parent))


def choices_at(parent: str) -> list[set[str]]:
    """The keys of a section, or the options of each part of a slot."""
    if slot_of(parent) in CATALOGUES and parent not in SECTIONS:
        return [set(part.Config.model_fields) for part in REGISTRY.load(slot_of(parent)).values()]
    return [keys_at(parent)]


@looped("target", TARGETS)
def test_every_target_exists(target: str) -> None:
    path, value = split_target(target)
    parent, _, last = path.rpartition(".")
    assert last in keys_at(parent)
    if path == "train.precision":
        assert not value or value in get_args(Train.model_fields["precision"].annotation)
    elif value.startswith("{"):
        Slot(slot_of(path)).validate(yaml.safe_load(value))
    elif value:
        assert REGISTRY.has(slot_of(path), value)


@looped(("word", "target"), [pair for pair in PAIRS if not is_own(*pair)])
def test_no_word_is_right_where_it_is_hinted(word: str, target: str) -> None:
    path, value = split_target(target)
    assert not any({word, path.rpartition(".")[2]} <= keys for keys in choices_at(path.rpartition(".")[0]))
    if value and path != "train.precision":
        assert not REGISTRY.has(slot_of(path), word)


def test_words_are_written_as_they_are_looked_up() -> None:
    assert [word for word in SYNONYMS if word != word.casefold() or "-" in word] == []
    assert [target for target, words in TARGETS.items() if len(words.split()) != len(set(words.split()))] == []


# what is set, and the hint: a key here or elsewhere, a value, a part with options, an own word at a wrong place, a typo
LINES = {
    "model.n_embd=8": "d_model",
    "model.n_head=2": "model.layer.attention.num_heads",
    "model.layer.resid_pdrop=0.1": "dropout",
    "model.layer.feedforward.activation=gelu_new": "gelu_tanh",
    "model.layer.attention.num_key_value_heads=2": "num_kv_heads",
    "model.layer.attention_dropout=0.1": "model.layer.attention.dropout",
    "model.layer.norm.rms_norm_eps=0.1": "eps",
    "model.rope_theta=10000": "model.position.theta",
    "model.tie_word_embeddings=true": "model.head.tied",
    "model.sliding_window=8": "model.layer.mask: {type: window, size: 4096}",
    "model.num_encoder_layers=8": "model.encoder.num_layers",
    "model.norm_first=true": "model.layer.residual: pre_norm",
    "model.layer.ffn={}": "feedforward",
    "model.layer.attention=mha": "multi_head",
    "model.layer.attention={type: GQA, num_heads: 4}": "{type: multi_head, num_heads: 8, num_kv_heads: 2}",
    "model.layer.feedforward=SwiGLU": "glu",
    "model.layer.feedforward=geglu": "{type: glu, d_ff: 2048, activation: gelu}",
    "model.layer.norm=LayerNorm": "layer_norm",
    "model.layer.residual=pre-ln": "pre_norm",
    "model.layers={local: {residual: postnorm}}": "post_norm",
    "data.batch_size=8": "data.batch.size",
    "data.batch.batch_size=8": "size",
    "train.num_epochs=8": "epochs",
    "lr=0.1": "train.schedule.lr",
    "train.optimizer={type: adamw, learning_rate: 0.1}": "train.schedule.lr",
    "train.schedule={type: inverse_square_root, lr: 0.1}": "peak",
    "train.schedule.warmup_steps=8": "warmup",
    "train.bf16=true": "precision: bfloat16",
    "train.precision=fp16": "bfloat16",
    "generate.strategy.temperature=1": "generate.logits: {type: temperature, temperature: 0.8}",
    "model.num_heads=8": "model.layer.attention.num_heads",
    "steps=8": "train.steps",
    "data.max_length=8": "data.batch.length",
    "train.max_length=8": "model.max_length",
    "study={base: x, over: [], seed: 8}": "seeds",
    "model.d_modell=8": "d_model",
    "model.head.norm=layer_norm": None,
    "model.layer.attention={type: linear, num_heads: 12, num_key_value_heads: 2}": None,
}


def hints(name: str, *sets: str) -> list[str | None]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, sets=sets)
    return [fault.suggestion for fault in caught.value.faults]


@looped(("line", "hint"), LINES.items())
def test_lines_of_other_libraries_get_a_hint(line: str, hint: str | None) -> None:
    assert hint in hints("gpt-docstrings", line)


def test_the_hint_of_a_layer_of_one_side_or_kind_belongs_to_its_place() -> None:
    sides = ("model.decoder.layer.attention.n_head=8", "model.encoder.n_layers=2")
    assert hints("transformer-base", *sides) == ["num_heads", "num_layers"]


@looped(
    ("typed", "hint"),
    [
        ("train gpt-docstrings --lr 0.1", "'--lr'. Did you mean --set train.schedule.lr=0.1?"),
        ("train gpt-docstrings --learning-rate=0.1", "'--learning-rate'. Did you mean --set train.schedule.lr=0.1?"),
        ("train gpt-docstrings --fp16", "'--fp16'. Did you mean --set train.precision=bfloat16?"),
        ("train gpt-docstrings --batch-size --force", "Did you mean --set data.batch.size=VALUE?"),
        ("train gpt-docstrings --train.steps 5", "Did you mean --set train.steps=5?"),
        ("check gpt2 --sliding-window 8", "Did you mean --set 'model.layer.mask={type: window, size: 4096}'?"),
        ("generate run --num_beams 4", "'--num-beams'"),
        ("runs --lr 3", "No such option '--lr'."),
        ("parts swiglu", "It may be feedforward 'glu': tfkit parts feedforward"),
        ("parts feedforward swiglu", "unknown feedforward 'swiglu'. Did you mean 'glu'?"),
    ],
)
def test_unknown_options_of_commands_get_a_hint(typed: str, hint: str) -> None:
    result = CliRunner().invoke(main, typed.split())
    assert result.exit_code == 2 and hint in result.stderr
    assert ("--set" in hint) == ("--set" in result.stderr)
