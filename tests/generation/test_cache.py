"""Decoding from a state equals decoding without one, whatever is forgotten, shared, taken back or read in pieces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tfkit.core.errors import RecipeError, UsageError
from tfkit.functional.attend import announce
from tfkit.functional.view import SLACK
from tfkit.generation import stepper
from tfkit.generation.search import prepare
from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from ..models.small import small

WINDOW = {"type": "window", "size": 3}
ATTENTIONS: dict[str, Any] = {
    "grouped": {"type": "multi_head", "num_heads": 4, "num_kv_heads": 2},
    "latent": {"type": "latent", "num_heads": 4, "kv_rank": 8, "head_dim": 4, "rotary_head_dim": 4},
    "differential": {"type": "differential", "num_heads": 4},
    "linear": {"type": "linear", "num_heads": 4},
    "performer": {"type": "performer", "num_heads": 4},
}
MIXERS: dict[str, Any] = {name: name for name in ("lstm", "gru", "rnn", "mamba", "short_convolution")}
MIXERS |= {name: {"type": name, "num_heads": 2} for name in ("gated_delta_net", "kimi_delta")}
MIXERS["mamba2"] = {"type": "mamba2", "head_dim": 8}
MASKS: dict[str, Any] = {
    "causal": [],
    "window": [WINDOW],
    "itself": [{"type": "window", "size": 1}],
    "chunk": [{"type": "chunk", "size": 4}],
    "dilated": [{"type": "dilated", "dilation": 2}],
    "dilated_window": [{"type": "window", "size": 9}, {"type": "dilated", "dilation": 2}],
    "window_and_chunk": [{"type": "window", "size": 6}, {"type": "chunk", "size": 5}],
}
LONGER = {"type": "longrope", "short": [1.0, 1.5], "long": [3.0, 9.0], "original_length": 9}
POSITIONS: dict[str, Any] = {
    "none": "none",
    "sinusoidal": "sinusoidal",
    "rotary": "rotary",
    "alibi": "alibi",
    "t5_bias": "t5_bias",
    "dynamic": {"type": "rotary", "scaling": {"type": "dynamic", "factor": 2.0, "original_length": 7}},
    "longrope": {"type": "rotary", "scaling": LONGER},
}


def model(
    part: str = "grouped", mask: str = "causal", position: str = "rotary", kind: str = "decoder", **more: Any
) -> Model:
    """A small model in float64; mamba's sums are in float32 all the same."""
    layer: dict[str, Any] = {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 24}}
    layer |= {"mixer": MIXERS[part]} if part in MIXERS else {"attention": ATTENTIONS[part]}
    layer |= {"mask": MASKS[mask]} if MASKS[mask] else {}
    sides = {"encoder": {"num_layers": 1}, "decoder": {"num_layers": 2}} if kind != "decoder" else {"num_layers": 2}
    sizes = {"d_model": 16, "vocab_size": 23, "max_length": 400, "init": {"type": "normal", "std": 0.3}}
    recipe = {"type": kind, "embedding": "tokens", "position": POSITIONS[position], "head": "language_model"}
    recipe |= {"layer": layer, **sizes, **sides, **more}
    return build_model(load_recipe({"tfkit": 1, "model": recipe}).blueprint(), seed=2).double()


def prompts_of(draw: random.Random, *lengths: int, common: int = 0) -> list[list[int]]:
    """Prompts of such lengths after a beginning that is common to all."""
    begin = [draw.randint(1, 22) for _ in range(common)]
    return [begin + [draw.randint(1, 22) for _ in range(length)] for length in lengths]


def agree(cached: Stepper, plain: Stepper, tolerance: float = 1e-9) -> None:
    """The logits of both are the same, and so are the hidden states after them."""
    logits, expected = cached.logits(), plain.logits()
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)
    assert cached.hidden is not None and plain.hidden is not None
    torch.testing.assert_close(cached.hidden[:, -1], plain.hidden[:, -1], rtol=0, atol=tolerance)


def both(net: Model, prompts: list[list[int]], sources: Any = None, room: int = 0) -> tuple[Stepper, Stepper]:
    cached = Stepper(net, prompts, sources, rooms=[room] * len(prompts))
    plain = Stepper(net, prompts, sources, use_cache=False)
    assert cached.state is not None and plain.state is None
    return cached, plain


def walk(net: Model, draw: random.Random, cached: Stepper, plain: Stepper, tolerance: float = 1e-9) -> None:
    """Tokens are written, one or a few at a time, rows reordered, repeated and dropped, tokens taken back."""
    for step in range(8):
        agree(cached, plain, tolerance)
        if draw.random() < 0.3:
            rows = torch.tensor([draw.randrange(cached.rows) for _ in range(draw.randint(1, 4))])
            for stepper in (cached, plain):
                stepper.keep(rows)
        for _ in range(2 if step % 3 == 1 else 1):
            tokens = torch.tensor([draw.randint(1, 22) for _ in range(cached.rows)])
            for stepper in (cached, plain):
                stepper.append(tokens)
        if step % 4 == 2:
            agree(cached, plain, tolerance)
            take_back(cached, plain, draw.randint(1, 3))


def take_back(cached: Stepper, plain: Stepper, count: int) -> None:
    """Take tokens back and write others; a state that cannot says so, and goes on."""
    try:
        cached.rewind(count)
    except UsageError as refused:
        assert "cannot be rewound" in str(refused)
    else:
        plain.rewind(count)
    tokens = torch.arange(cached.rows) + 5
    for one in (cached, plain):
        one.append(tokens)


COMBINATIONS = list(itertools.product([*ATTENTIONS, *MIXERS], MASKS, POSITIONS, ["decoder", "encoder_decoder"]))
# one of each part, mask and position
SOME = [
    ("grouped", "causal", "longrope", "decoder"),
    ("grouped", "window", "t5_bias", "decoder"),
    ("grouped", "window", "dynamic", "decoder"),
    ("grouped", "dilated_window", "alibi", "encoder_decoder"),
    ("latent", "chunk", "rotary", "decoder"),
    ("differential", "window_and_chunk", "sinusoidal", "encoder_decoder"),
    ("grouped", "itself", "none", "decoder"),
    ("linear", "causal", "sinusoidal", "encoder_decoder"),
    ("lstm", "causal", "none", "decoder"),
    ("short_convolution", "causal", "none", "decoder"),
    ("kimi_delta", "causal", "none", "decoder"),
    ("mamba2", "causal", "none", "decoder"),
]


# lengths of prompts after a common beginning of that length, read in such pieces
BATCHES = (((3, 1, 12), 0, 4096), ((2, 2), 9, 8), ((5, 2, 5), 4, 7))


def check(
    combination: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch, batches: Sequence[Any] = BATCHES
) -> None:
    """Prompts of one length and not, with sources where there are any, read in pieces or whole."""
    part, mask, position, kind = combination
    draw = random.Random(f"{part} {mask} {position} {kind}")
    net = model(part, mask, position, kind)
    monkeypatch.setattr(stepper, "WORTHWHILE", 2)
    tolerance = 1e-4 if part == "mamba" else 1e-9
    with evaluating(net):
        for lengths, common, piece in batches:
            monkeypatch.setattr(stepper, "PIECE", piece)
            prompts = prompts_of(draw, *lengths, common=common)
            prompts.append(prompts[0])
            sources = None if kind == "decoder" else [*prompts_of(draw, 4, 2, 4)[: len(lengths)], [1, 2]]
            walk(net, draw, *both(net, prompts, sources, room=draw.choice([0, 30])), tolerance)


@pytest.mark.parametrize("number", range(len(SOME)), ids=lambda number: "-".join(SOME[number]))
def test_a_state_changes_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(SOME[number], monkeypatch, [BATCHES[number % len(BATCHES)]])


@pytest.mark.slow
@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_a_state_changes_nothing_in_any_combination(
    combination: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        model(*combination)
    except RecipeError as refused:  # the rule table says so, by name
        assert "needs the option" not in str(refused)
        pytest.skip(str(refused))
    check(combination, monkeypatch)


def calls_of(net: Model, side: str) -> list[tuple[int, int]]:
    """Rows and tokens of each call of a stack from now on."""
    seen: list[tuple[int, int]] = []
    net.stack(side).register_forward_pre_hook(lambda _, called: seen.append(tuple(called[0].tokens.shape[:2])))
    return seen


def test_equal_rows_are_read_once() -> None:
    net = model()
    seen = calls_of(net, "decoder")
    with evaluating(net):
        cached, plain = both(net, [[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3]])
        agree(cached, plain)
    assert seen == [(2, 3), (4, 3)]


def test_what_all_begin_with_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "WORTHWHILE", 8)
    net = model(position="alibi")
    seen = calls_of(net, "decoder")
    prompts = prompts_of(random.Random(0), 2, 3, 1, common=5)
    with evaluating(net):
        cached, plain = both(net, prompts)
        agree(cached, plain)
        assert seen == [(1, 5), (3, 3), (3, 8)]
        whole = Stepper(net, prompts)
        whole.logits()
        assert whole.hidden is not None and whole.real is not None and plain.hidden is not None
        torch.testing.assert_close(whole.hidden[whole.real], plain.hidden[whole.real], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("mask", "lengths", "calls"),
    [
        ("window", (2, 2), [(1, 9), (2, 2)]),  # of one length: nothing stands between
        ("window", (2, 1), [(2, 11)]),  # padding after the beginning would count as places
        ("chunk", (2, 1), [(2, 11)]),
    ],
)
def test_a_beginning_is_shared_only_where_no_mask_counts_padding(
    mask: str, lengths: tuple[int, ...], calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepper, "WORTHWHILE", 4)
    net = model(mask=mask)
    seen = calls_of(net, "decoder")
    with evaluating(net):
        Stepper(net, prompts_of(random.Random(0), *lengths, common=9)).logits()
    assert seen == calls


def test_a_long_prompt_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "PIECE", 8)
    net = model(mask="window")
    seen = calls_of(net, "decoder")
    with evaluating(net):
        cached, plain = both(net, prompts_of(random.Random(1), 10, 7))
        agree(cached, plain)
    assert seen == [(2, 4), (2, 4), (2, 2), (2, 10)]


def test_each_different_source_is_read_once_and_its_keys_are_not_made_again() -> None:
    net = model(position="sinusoidal", kind="encoder_decoder")
    seen, made = calls_of(net, "encoder"), []
    for layer in net.stack("decoder").layers:
        layer.cross_attention.key.register_forward_pre_hook(lambda *_: made.append(1))  # type: ignore[union-attr]
    with evaluating(net):
        stepper = Stepper(net, [[1], [1], [1], [1]], [[3, 4], [5, 6, 7], [3, 4], [3, 4]])
        for _ in range(3):
            stepper.logits()
            stepper.append(torch.tensor([1, 2, 3, 4]))
    assert seen == [(2, 3)]
    assert len(made) == 2  # once a layer


def test_beams_of_one_source_leave_its_keys_where_they_are() -> None:
    net = model(position="sinusoidal", kind="encoder_decoder")
    with evaluating(net):
        stepper = Stepper(net, [[1]] * 4, [[3, 4], [3, 4], [5], [5]])
        stepper.logits()
        assert stepper.state is not None
        held = stepper.state.layers[0]["cross_attention"].stored()[0]
        stepper.keep(torch.tensor([1, 0, 3, 3]))
        assert stepper.state.layers[0]["cross_attention"].stored()[0].data_ptr() == held.data_ptr()
        before = held.clone()
        stepper.keep(torch.tensor([2, 1, 0, 3]))
        torch.testing.assert_close(
            stepper.state.layers[0]["cross_attention"].stored()[0], before[torch.tensor([2, 1, 0, 3])]
        )


def test_a_window_bounds_what_is_held_and_other_layers_keep_all() -> None:
    layers = {"near": {"mask": WINDOW}, "far": {}}
    net = model(layers=layers, pattern=["near", "far"])
    with evaluating(net):
        stepper = Stepper(net, [[1, 2]])
        held = []
        for _ in range(30):
            stepper.logits()
            assert stepper.state is not None
            held.append([layer["attention"].bytes() for layer in stepper.state.layers])
            stepper.append(torch.tensor([3]))
    token = 2 * 2 * 4 * 8  # keys and values of two heads
    assert held == [[2 * token, (2 + step) * token] for step in range(30)]


def test_what_cannot_forget_keeps_all() -> None:
    prefix = model(mask="window", layers={"open": {"mask": [WINDOW, "prefix"]}}, pattern=["open"])
    state = prefix.new_state()
    with torch.no_grad():
        prefix(torch.ones(1, 12, dtype=torch.long), prefix_length=torch.tensor([4]), state=state)
    assert state.layers[0]["attention"].stored()[0].shape[2] == 12


def test_so_many_tokens_can_be_taken_back_behind_a_window_and_no_more() -> None:
    net = model(mask="window")
    state = net.new_state()
    with torch.no_grad():
        net(torch.randint(1, 23, (1, 300)), state=state)
    with pytest.raises(UsageError, match=r"attention 'multi_head' has dropped .* of 300 tokens can be rewound to 236"):
        state.rewind(300 - SLACK - 1)
    assert state.length == 300
    state.rewind(300 - SLACK)
    assert state.length == 300 - SLACK


def test_no_more_is_taken_back_than_was_written() -> None:
    recurrent = model("lstm", position="none").new_state()
    with pytest.raises(UsageError, match="the state of mixer 'lstm' cannot be rewound"):
        recurrent.check_rewind(0)
    net = model()
    net.new_state().check_rewind(0)
    stepper = Stepper(net, [[1, 2, 3]])
    with pytest.raises(UsageError, match="cannot rewind 1 tokens; 0 were written"):
        stepper.rewind(1)
    with pytest.raises(UsageError, match="a state of 0 tokens cannot be rewound to 2"):
        net.new_state().rewind(2)


def test_positions_that_move_are_read_anew_where_they_do_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    net = model(position="longrope")
    seen = calls_of(net, "decoder")
    announce.cache_clear()
    with evaluating(net), caplog.at_level("INFO", logger="tfkit"):
        stepper = Stepper(net, [[1] * 7])
        for _ in range(5):
            stepper.logits()
            stepper.append(torch.tensor([2]))
    assert seen == [(1, 7), (1, 1), (1, 1), (1, 10), (1, 1)]
    assert "positions depend on the length of the text" in caplog.text


def test_what_keeps_no_past_is_read_whole_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    layer = {"norm": "layer_norm", "mixer": "fourier", "feedforward": {"type": "mlp", "d_ff": 8}}
    recipe = small(type="encoder", position="none", head="language_model")
    recipe["model"]["layer"] = layer
    net = build_model(load_recipe(recipe).blueprint())
    announce.cache_clear()
    with caplog.at_level("INFO", logger="tfkit"):
        assert Stepper(net, [[1, 2]]).state is None
    assert "'fourier' has no cache; the whole text is recomputed for each new token" in caplog.text


def test_the_room_that_a_search_asks_for_is_made_at_once() -> None:
    net = model()
    with evaluating(net):
        stepper = prepare(net, [[1, 2, 3], [4]], [40, 7]).stepper([0])
        assert stepper.room == 40
        places = set()
        for _ in range(40):
            stepper.logits()
            assert stepper.state is not None
            places.add(stepper.state.layers[0]["attention"].stored()[0].data_ptr())
            stepper.append(torch.tensor([1]))
    assert len(places) == 1


def test_the_peak_of_reading_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepper, "PIECE", 64)
    for length in (64, 300):
        net, seen = model(), []
        layer: Any = net.stack("decoder").layers[0]
        layer.feedforward.register_forward_pre_hook(lambda _, called, seen=seen: seen.append(called[0].shape[:2]))
        with evaluating(net):
            Stepper(net, [[1] * length]).logits()
        assert max(rows * tokens for rows, tokens in seen) == 64
