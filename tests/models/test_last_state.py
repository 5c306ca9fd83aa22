"""A recurrent encoder-decoder joined by the encoder's last state, without attention (`memory: last_state`)."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from tests.generation.searching import best
from tests.generation.test_cache import both, prompts_of, walk
from tfkit.core.errors import RecipeError, UsageError
from tfkit.generation.stepper import evaluating
from tfkit.models import Model
from tfkit.recipe.load import load_recipe
from tfkit.reports.diff import diff_architectures

from ..sampling import looped

D_MODEL, VOCABULARY = 8, 11
MIXERS = ("lstm", "gru", "rnn")


def recipe(mixer: Any = "lstm", layer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A small model; `more` are keys of `model:`."""
    model = {
        "type": "encoder_decoder",
        "d_model": D_MODEL,
        "vocab_size": VOCABULARY,
        "embedding": "tokens",
        "layer": {"residual": "none", "mixer": mixer, **(layer or {})},
        "encoder": {"num_layers": 2, "mask": "causal"},
        "decoder": {"num_layers": 2, "memory": "last_state"},
        "head": "language_model",
        **more,
    }
    return {"tfkit": 1, "model": model}


def built(mixer: Any = "lstm", **more: Any) -> Model:
    made: Model = tfkit.build(recipe(mixer, **more), seed=0).eval()
    return made


def ids(rows: int, time: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, (rows, time), generator=torch.Generator().manual_seed(seed))


def sentence(cells: list[nn.RNNBase], x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
    """The paper's model: layer after layer, each from a state of its own."""
    after = []
    for cell, state in zip(cells, states, strict=True):
        x, last = cell(x, state)
        after.append(last)
    return x, after


# ------------------------------------------------------------------------------------------------------ the equation


@pytest.mark.parametrize("mixer", MIXERS)
@torch.no_grad()
def test_each_layer_of_the_decoder_starts_from_the_last_state_of_the_encoders_layer(mixer):
    """Sutskever et al. 2014, arXiv 1409.3215; a source padded on the right ends at its last real token."""
    model = built(mixer)
    sides: dict[str, Any] = {side: model.stack(side) for side in ("encoder", "decoder")}
    cells = {side: [layer.mixer.forwards for layer in stack.layers] for side, stack in sides.items()}
    source, target = ids(3, 6), ids(3, 5, seed=1)
    lengths = [6, 4, 1]
    real = torch.tensor([[1] * length + [0] * (6 - length) for length in lengths])
    out = model(source, attention_mask=real, decoder_input_ids=target)
    for row, length in enumerate(lengths):
        x = sides["encoder"].embedding.tokens(source[row : row + 1, :length])
        _, states = sentence(cells["encoder"], x, [None, None])
        y = sides["decoder"].embedding.tokens(target[row : row + 1])
        hidden, _ = sentence(cells["decoder"], y, states)
        torch.testing.assert_close(out.hidden[row : row + 1], hidden)


@torch.no_grad()
def test_an_encoder_that_reads_both_ways_hands_over_both_ends():
    model = built("gru", encoder={"num_layers": 2})
    ways: Any = model.stack("encoder").layers[0].mixer  # type: ignore[union-attr]
    x = model.stack("encoder").embedding.tokens(ids(2, 5))  # type: ignore[union-attr]
    ends = torch.cat((ways.forwards(x)[1], ways.backwards(x.flip(1))[1]), dim=-1)
    memory = model(ids(2, 5), decoder_input_ids=ids(2, 3)).memory
    assert memory is not None
    torch.testing.assert_close(memory[:, 0, :D_MODEL], ends[0])


def test_the_source_reaches_the_decoder_and_every_weight_learns():
    model = built("lstm").train()
    out = model(ids(2, 5), decoder_input_ids=ids(2, 4))
    assert out.memory is not None and out.memory.shape == (2, 1, 2 * 2 * D_MODEL)  # two layers of a state and a cell
    out.logits.square().sum().backward()  # type: ignore[union-attr]
    unused = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert unused == []


@torch.no_grad()
def test_the_last_state_may_be_handed_over_by_the_caller():
    model, source, target = built(), ids(2, 5), ids(2, 4)
    whole = model(source, decoder_input_ids=target)
    mask = torch.ones_like(source)
    again = model(attention_mask=mask, encoder_hidden_states=whole.memory, decoder_input_ids=target)
    torch.testing.assert_close(again.hidden, whole.hidden)
    with pytest.raises(UsageError, match=r"encoder_hidden_states .* \[batch 1 32\], got shape \[2, 5, 8\]"):
        model(encoder_hidden_states=torch.zeros(2, 5, D_MODEL), decoder_input_ids=target)


@torch.no_grad()
def test_equal_rows_are_not_told_apart_by_what_stands_beside_them():
    """A source of padding alone hands over zeros, and changes no other row."""
    model, source, target = built("gru"), ids(2, 4), ids(2, 3)
    alone = model(source[:1], decoder_input_ids=target[:1]).hidden
    real = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    out = model(source, attention_mask=real, decoder_input_ids=target)
    torch.testing.assert_close(out.hidden[:1], alone)
    assert not out.memory[1].any()


# -------------------------------------------------------------------------------------------------------- generation


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("encoder", [{"mask": "causal"}, {}])
def test_decoding_from_a_state_is_as_reading_the_whole_text(mixer, encoder):
    """Rows of several sources are written, repeated and dropped; equal sources are read once."""
    draw = random.Random(f"{mixer} {encoder}")
    net = built(mixer, vocab_size=23, encoder={"num_layers": 2, **encoder}).double()
    with evaluating(net):
        prompts = prompts_of(draw, 3, 1, 3)
        walk(net, draw, *both(net, [*prompts, prompts[0]], [*prompts_of(draw, 4, 2, 4), [1, 2]]))


@pytest.mark.parametrize("strategy", ["greedy", {"type": "beam", "num_beams": 3}])
def test_a_search_keeps_the_state_of_each_hypothesis(strategy):
    model, sources = built("lstm", init={"type": "normal", "std": 1.5}), [[1, 2, 3], [4], [1, 2, 3]]
    found = [
        best(model, [[1]] * 3, 6, strategy=strategy, sources=sources, use_cache=cached) for cached in (True, False)
    ]
    assert found[0] == found[1]
    assert found[0][0] == found[0][2] != found[0][1]


@pytest.mark.full
def test_it_is_trained_continued_and_answers(tmp_path):
    corpus = {"type": "copying", "shortest": 1, "longest": 4, "symbols": 4, "count": 60}
    data = {"tokenizer": "word", "batch": {"size": 8}, "train": corpus, "valid": {**corpus, "split": "valid"}}
    train = {"steps": 4, "device": "cpu", "checkpoint_every": 2, "evaluate_every": 2, "samples": 0}
    text = recipe(vocab_size="tokenizer") | {"data": data, "objective": "seq2seq", "train": train}
    run = tfkit.train(text, out=tmp_path / "run", progress=False)
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [line["valid.loss"] for line in lines if "valid.loss" in line]
    assert losses[-1] < losses[0]
    again = tfkit.load_run(run.folder)
    assert again.samples(3) == run.samples(3)


# ----------------------------------------------------------------------------------------------------------- the text


def test_it_is_written_out_shown_and_compared(tmp_path: Path):
    for encoder in ({}, {"mask": "causal"}):
        loaded = load_recipe(recipe(encoder={"num_layers": 2, **encoder}))
        (tmp_path / "resolved.yaml").write_text(loaded.resolved(), encoding="utf-8")
        again = load_recipe(tmp_path / "resolved.yaml")
        assert again.blueprint() == loaded.blueprint()
        assert again.warnings == loaded.warnings == ()
        assert "memory: last_state" in loaded.resolved()
        assert "memory: last_state" in repr(loaded.blueprint())
    attention = {"cross_attention": {"type": "multi_head", "num_heads": 2}}
    other = load_recipe(recipe(layer=attention, decoder={"num_layers": 2}))
    changes = [str(change) for change in diff_architectures(other.blueprint(), loaded.blueprint())]
    assert any("last_state" in change for change in changes)


@pytest.mark.parametrize(
    ("layer", "unread"),
    [
        ({"feedforward": {"type": "mlp", "d_ff": 8}}, "feedforward"),
        ({"residual": "post_norm", "norm": "layer_norm"}, "its last norm"),
        ({"mixer": {"type": "gru", "d_hidden": 5}}, "the projection to d_model"),
    ],
)
def test_what_nothing_reads_is_warned_of(layer, unread):
    (warning,) = load_recipe(recipe(layer=layer)).warnings
    assert f"nothing reads {unread} of the encoder's last layer" in str(warning)


def test_a_kind_for_the_last_layer_leaves_out_what_nothing_reads():
    layer = {"residual": "pre_norm", "norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 8}}
    kinds = {"whole": {}, "last": {"feedforward": "none"}}
    side = {"num_layers": 2, "layers": kinds, "pattern": ["whole", "last"]}
    text = recipe(layer=layer, encoder=side)
    assert load_recipe(text).warnings == ()
    model = tfkit.build(text, seed=0)
    model(ids(2, 5), decoder_input_ids=ids(2, 4)).logits.square().sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def faults(data: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        tfkit.load_recipe(data)
    return [f"{fault.path}: {fault.message}" for fault in caught.value.faults]


NEEDS = "the decoder starts from the encoder's last state"
WRONG = [
    (recipe(decoder={"num_layers": 3, "memory": "last_state"}), "model.decoder.num_layers", "3 layers.*encoder has 2"),
    (recipe("fourier"), "model.layer.mixer", "'fourier' has no last state to pass on.*lstm, gru or rnn"),
    (recipe("short_convolution"), "model.layer.mixer", "'short_convolution' has no last state to pass on"),
    (
        recipe(None, {"attention": {"type": "multi_head", "num_heads": 2}}),
        "model.layer.attention",
        "'multi_head' has no last state to pass on"
    ),
    (recipe(None, {"feedforward": {"type": "mlp", "d_ff": 8}}), "model.layer", "no recurrence"),
    (
        recipe(encoder={"num_layers": 2, "layer": {"mixer": "gru"}}),
        "model.encoder.layer.mixer",
        "layer 0 .*'gru' .*'lstm'"
    ),
    (
        recipe(encoder={"num_layers": 2, "mask": "causal", "layer": {"mixer": {"d_hidden": 5}}}),
        "model.encoder.layer.mixer",
        "of width 5 .* 8"
    ),
    (
        recipe("gru", {"mixer": {"type": "gru", "d_hidden": 8}}, encoder={"num_layers": 2}),
        "model.layer.mixer",
        "of width 16 in the bidirectional encoder .* 8"
    ),
    (
        recipe(layer={"cross_attention": {"type": "multi_head", "num_heads": 2}}),
        "model.layer.cross_attention",
        "there is no memory to attend to"
    ),
    (recipe(memory="last_state", decoder={"num_layers": 2}), "model.memory", "set it in decoder:"),
    (recipe(encoder={"num_layers": 2, "memory": "last_state"}), "model.encoder.memory", "a decoder"),
    (recipe(decoder={"num_layers": 2, "memory": "last"}), "model.decoder.memory", "last_state"),
    (recipe(heads={"topic": {"type": "classifier", "num_classes": 2, "pool": "mean", "reads": "encoder"}}),
     "model.heads.topic.reads", "last state"),
    (recipe(encoder={"num_layers": 2, "final_norm": "layer_norm"}), "model.encoder.final_norm", "last state")
]  # fmt: skip


@looped(("data", "path", "text"), WRONG)
def test_what_does_not_fit_is_refused_with_its_place(data, path, text):
    found = [fault for fault in faults(data) if re.search(rf"^{re.escape(path)}: .*{text}", fault)]
    assert len(found) == 1, faults(data)
    assert len(faults(data)) == 1 or "fourier" in text  # which cannot decode either


def test_a_model_of_one_stack_has_no_last_state_to_start_from():
    data = recipe()
    data["model"] |= {"type": "decoder", "num_layers": 2, "memory": "last_state"}
    del data["model"]["encoder"], data["model"]["decoder"]
    assert faults(data)[0].startswith("model.memory: a model with one stack has no encoder")


# ------------------------------------------------------------------------------------- attention in the place of it


@torch.no_grad()
def test_without_residual_connections_a_recurrence_passes_through_cross_attention():
    """Bahdanau et al. 2014, arXiv 1409.0473, with the attention of Transformers: y = attend(lstm(x), memory)."""
    attention = {"cross_attention": {"type": "multi_head", "num_heads": 2}}
    model = built("lstm", layer=attention, decoder={"num_layers": 1}, encoder={"num_layers": 1})
    encoder, decoder = (model.stack(side) for side in ("encoder", "decoder"))
    layer: Any = decoder.layers[0]
    source, target = ids(2, 5), ids(2, 4, seed=1)
    forwards, backwards = encoder.layers[0].mixer.forwards, encoder.layers[0].mixer.backwards  # type: ignore[union-attr]
    x = encoder.embedding.tokens(source)  # type: ignore[union-attr]
    memory = torch.cat((forwards(x)[0], backwards(x.flip(1))[0].flip(1)), dim=-1)  # type: ignore[operator]
    y = layer.mixer.forwards(decoder.embedding.tokens(target))[0]  # type: ignore[union-attr]
    cross = layer.cross_attention

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], 2, -1).transpose(1, 2)  # [batch heads time dim]

    query, key, value = heads(cross.query(y)), heads(cross.key(memory)), heads(cross.value(memory))
    weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(dim=-1)
    expected = cross.output((weights @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(model(source, decoder_input_ids=target).hidden, expected)


def test_a_residual_layout_without_a_path_around_cross_attention_is_accepted_from_file(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text("tfkit: 1\nextends: transformer-base\nmodel: {layer: {residual: none, norm: none}}\n")
    assert load_recipe(path).warnings == ()
