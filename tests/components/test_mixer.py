"""Mixers against loops written from their formulas; padding and states are the contracts' matter."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.functional.kernel import SPAN, STRIDE, Columns, decayed_sum, linear_scan
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

WIDTH, ROWS, TIME = 6, 2, 9


def part_of(name: str, causal: bool = True, width: int = WIDTH, **options: Any) -> Any:
    config = Slot("mixer").validate({"type": name, **options})
    assert not list(config.check(Shape(width, causal=causal)))
    part = config.build(Shape(width, causal=causal))
    randomise(part)
    return part.double().eval()


def states(time: int = TIME) -> Tensor:
    return torch.randn(ROWS, time, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def context_of(time: int = TIME, real: Tensor | None = None) -> Context:
    places = torch.arange(time)[None]
    return Context(Visibility((), Span(time, time, 0, places.device), real=real), Placement((), places, places))


def step(name: str, cell: Any, x: Tensor, hidden: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a recurrence, from its formula; gates in the order torch keeps them in."""
    given = x @ cell.weight_ih_l0.T + cell.bias_ih_l0
    kept = hidden @ cell.weight_hh_l0.T + cell.bias_hh_l0
    if name == "rnn":
        return torch.tanh(given + kept), carried
    if name == "lstm":
        enter, forget, new, leave = (given + kept).chunk(4, dim=-1)
        carried = torch.sigmoid(forget) * carried + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(carried), carried
    (reset, update, new), (reset_h, update_h, new_h) = given.chunk(3, dim=-1), kept.chunk(3, dim=-1)
    update = torch.sigmoid(update + update_h)
    return (1 - update) * torch.tanh(new + torch.sigmoid(reset + reset_h) * new_h) + update * hidden, carried


def read(name: str, cell: Any, x: Tensor) -> Tensor:
    hidden = carried = x.new_zeros(x.shape[0], cell.hidden_size)
    out = []
    for place in range(x.shape[1]):
        hidden, carried = step(name, cell, x[:, place], hidden, carried)
        out.append(hidden)
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@torch.no_grad()
def test_recurrences_follow_their_formulas(name: str) -> None:
    x = states()
    forwards = part_of(name)
    assert torch.allclose(forwards(x, context_of()), read(name, forwards.forwards, x), atol=1e-12)
    both = part_of(name, causal=False)
    want = torch.cat((read(name, both.forwards, x), read(name, both.backwards, x.flip(1)).flip(1)), dim=-1)
    assert torch.allclose(both(x, context_of()), want, atol=1e-12)
    wide = part_of(name, causal=False, d_hidden=5)
    want = torch.cat((read(name, wide.forwards, x), read(name, wide.backwards, x.flip(1)).flip(1)), dim=-1)
    assert torch.allclose(wide(x, context_of()), wide.output(want), atol=1e-12)


def test_an_odd_width_has_no_half_for_each_way() -> None:
    config = Slot("mixer").validate("lstm")
    assert [problem.option for problem in config.check(Shape(7))] == ["d_hidden"]
    assert not list(config.check(Shape(7, causal=True)))


def roots(count: int) -> Tensor:
    """exp(-2 pi i j k / count), [count count]."""
    angles = [[2 * math.pi * i * j / count for j in range(count)] for i in range(count)]
    rows = [[complex(math.cos(angle), -math.sin(angle)) for angle in row] for row in angles]
    return torch.tensor(rows, dtype=torch.complex128)


@torch.no_grad()
def test_fourier_is_two_discrete_transforms() -> None:
    x, part = states(), part_of("fourier", causal=False)
    over_time, over_width = (roots(count) for count in (TIME, WIDTH))
    want = (over_time @ x.to(torch.complex128) @ over_width.T).real
    assert torch.allclose(part(x, context_of()), want, atol=1e-5)
    assert not list(part.parameters())


@torch.no_grad()
def test_short_convolution_follows_its_formula() -> None:
    x, part = states(), part_of("short_convolution", size=3, bias=True)
    gated = part.input_gate(x) * part.value(x)
    convolved = torch.zeros_like(x)
    for place in range(TIME):
        for back in range(min(3, place + 1)):
            convolved[:, place] += part.convolution.weight[:, 0, 2 - back] * gated[:, place - back]
    want = part.output(part.output_gate(x) * (convolved + part.convolution.bias))
    assert torch.allclose(part(x, context_of()), want, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"norm": "rms_norm", "rank": 2, "d_state": 3, "d_conv": 2, "expand": 1}], ids=str
)
@torch.no_grad()
def test_mamba_follows_its_formula(options: dict[str, Any]) -> None:
    x, part = states(), part_of("mamba", **options)
    inner, size = part.input(x), part.config.d_conv
    read_in = torch.zeros_like(inner)
    for place in range(TIME):
        for back in range(min(size, place + 1)):
            read_in[:, place] += part.convolution.weight[:, 0, size - 1 - back] * inner[:, place - back]
    inner = torch.nn.functional.silu(read_in + part.convolution.bias)
    small, given, asked = part.selection(inner).split(part.sizes, dim=-1)
    steps = torch.nn.functional.softplus(part.step(part.step_norm(small)) + part.step_bias)
    given, asked = part.given_norm(given), part.read_norm(asked)
    held = torch.zeros(ROWS, inner.shape[2], part.config.d_state, dtype=torch.float64)
    out = torch.zeros_like(inner)
    for place in range(TIME):
        decay = torch.exp(-part.log_decay.exp() * steps[:, place, :, None])
        held = decay * held + (steps[:, place] * inner[:, place])[..., None] * given[:, place, None]
        out[:, place] = (held * asked[:, place, None]).sum(-1) + part.skip * inner[:, place]
    want = part.output(out * torch.nn.functional.silu(part.gate(x)))
    assert torch.allclose(part(x, context_of()), want, atol=1e-5)  # its recurrence is float32


def paper(part: Any, x: Tensor) -> Tensor:
    """Mamba-2 of one text [time width], token by token from the paper's formulas."""
    config, silu = part.config, torch.nn.functional.silu
    heads, dim, groups, state = part.skip.shape[0], config.head_dim, config.groups, config.d_state
    inner = torch.nn.functional.pad(part.input(x), (0, 0, config.d_conv - 1, 0))
    size = torch.nn.functional.softplus(part.step(x) + part.step_bias)
    size = size if config.step_limits is None else size.clamp(*config.step_limits)
    held, out = x.new_zeros(heads, dim, state), []
    for place in range(x.shape[0]):
        mixed = (inner[place : place + config.d_conv] * part.convolution.weight[:, 0].T).sum(0)
        mixed = silu(mixed if part.convolution.bias is None else mixed + part.convolution.bias)
        given, asked = (
            each.view(groups, state).repeat_interleave(heads // groups, dim=0)
            for each in mixed[heads * dim :].split(groups * state)
        )
        values = mixed[: heads * dim].view(heads, dim)
        decay = torch.exp(-part.log_decay.exp() * size[place])[:, None, None]
        held = decay * held + size[place][:, None, None] * values[:, :, None] * given[:, None]
        out.append(((held * asked[:, None]).sum(-1) + part.skip[:, None] * values).flatten())
    gate = silu(part.gate(x))
    every = torch.stack(out)
    every = part.norm(every) * gate if config.norm_first else part.norm(every * gate)
    return part.output(every)  # type: ignore[no-any-return]


MAMBA2 = (
    {"head_dim": 3},
    {"head_dim": 2, "expand": 1, "d_state": 5, "d_conv": 2, "groups": 3, "norm_first": True, "conv_bias": False},
    {"head_dim": 5, "num_heads": 4, "groups": 2, "norm": None, "bias": True, "step_limits": [0.3, 0.7]},
    {"head_dim": 3, "groups": 2, "norm": {"type": "rms_norm", "group_size": 6}, "d_conv": 1},
)


@pytest.mark.full
@pytest.mark.parametrize("options", MAMBA2, ids=str)
@torch.no_grad()
def test_mamba2_is_its_recurrence_padded_packed_and_in_pieces(options: dict[str, Any]) -> None:
    part, time = part_of("mamba2", **{"d_state": 4, **options}), 2 * STRIDE + 5
    x = states(time)
    want = torch.stack([paper(part, row) for row in x])
    near(part(x, context_of(time)), want)
    real = torch.ones(ROWS, time, dtype=torch.bool)
    real[0, :7] = False
    padded = torch.cat((x[:1, :7] * 100, x[:1, : time - 7]), dim=1)
    near(part(padded.expand(ROWS, -1, -1), context_of(time, real))[0, 7:], want[0, : time - 7])
    cuts = (0, 3, STRIDE + 1, STRIDE + 2, time - 2, time)
    packed = torch.cat([x[:, : after - before] for before, after in pairwise(cuts)], dim=1)
    texts = torch.tensor(
        [number for number, (before, after) in enumerate(pairwise(cuts), 1) for _ in range(after - before)]
    )
    context = context_of(time)
    context.mask.segments = (texts[None].expand(ROWS, -1),) * 2
    near(part(packed, context), torch.cat([want[:, : after - before] for before, after in pairwise(cuts)], dim=1))
    state = part.new_state()
    pieces = [part(x[:, before:after], continued(after - before, state)) for before, after in pairwise(cuts)]
    near(torch.cat(pieces, dim=1), want)
    part.float()
    alike = part(x.float(), context_of(time)).double()
    assert (alike - want).abs().max() < 1e-6 * want.abs().max()


@pytest.mark.full
def test_gradients_of_mamba2_are_its_recurrences() -> None:
    time = STRIDE + 3
    for options in MAMBA2:
        part, x = part_of("mamba2", **{"d_state": 4, **options}), states(time).requires_grad_()
        names, weights = zip(*part.named_parameters(), strict=True)
        pull = torch.randn(ROWS, time, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        found = torch.autograd.grad((part(x, context_of(time)) * pull).sum(), (x, *weights))
        want = torch.autograd.grad((torch.stack([paper(part, row) for row in x]) * pull).sum(), (x, *weights))
        for name, one, other in zip(("x", *names), found, want, strict=True):
            assert (one - other).abs().max() <= 1e-10 * other.abs().max(), name


@pytest.mark.full
def test_chunks_of_a_decayed_sum_change_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 21, 2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    decay = -40 * torch.rand(2, 21, 2, generator=generator, dtype=torch.float64)
    before = torch.randn(2, 2, 1, 4, 4, generator=generator, dtype=torch.float64)
    recurrent = decayed_sum(query, key, value, decay, before=before, stride=1)
    for stride in (2, 5, 21, 64):
        for one, other in zip(
            decayed_sum(query, key, value, decay, before=before, stride=stride), recurrent, strict=True
        ):
            near(one, other)
    single = (each.float() for each in (query, key, value, decay))
    assert (decayed_sum(*single, before=before.float())[0] - recurrent[0]).abs().max() < 1e-6 * recurrent[0].abs().max()


@pytest.mark.full
def test_mamba2_refuses_what_does_not_fit() -> None:
    for options, option in (
        ({"head_dim": 5}, "head_dim"),
        ({"head_dim": 3, "groups": 3}, "groups"),
        ({"head_dim": 3, "num_heads": 2, "expand": 1}, "expand"),
        ({"head_dim": 3, "norm": None, "norm_first": True}, "norm_first"),
        ({"head_dim": 3, "step_limits": [0.5, 0.5]}, "step_limits"),
    ):
        config = Slot("mixer").validate({"type": "mamba2", **options})
        assert [problem.option for problem in config.check(Shape(WIDTH, causal=True))] == [option]


def near(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype == torch.float64
    assert (one - other).abs().max() <= 1e-12 * max(1.0, float(other.abs().max()))


def continued(time: int, state: Columns) -> Context:
    return replace(context_of(time), state=state)


def test_a_scan_is_the_recurrence_over_any_length() -> None:
    time = 2 * SPAN + 5
    generator = torch.Generator().manual_seed(2)
    decay, given = (torch.rand(2, time, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    before = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    for start in (None, before):
        held, want = torch.zeros(2, 3, dtype=torch.float64) if start is None else start, []
        for place in range(time):
            held = decay[:, place] * held + given[:, place]
            want.append(held)
        assert torch.allclose(linear_scan(decay, given, start), torch.stack(want, dim=1), atol=1e-12)


def recipe(mixer: str, **more: Any) -> dict[str, Any]:
    layer = {"residual": "pre_norm", "norm": "layer_norm", "mixer": mixer}
    model = {"type": "encoder", "d_model": 8, "num_layers": 1, "vocab_size": 9, "embedding": "tokens", "layer": layer}
    return {"tfkit": 1, "model": {**model, **more}}


def test_fourier_sees_the_future_and_padding_so_both_are_refused() -> None:
    with pytest.raises(RecipeError, match="mixer 'fourier' does not declare 'causal'"):
        load_recipe(recipe("fourier", type="decoder"))
    model = build_model(load_recipe(recipe("fourier")).blueprint())
    with pytest.raises(UsageError, match="mixer 'fourier' cannot mask padding"):
        model(torch.ones(2, 4, dtype=torch.long), attention_mask=torch.ones(2, 4))


@pytest.mark.full
def test_padding_that_a_state_would_take_for_text_is_refused() -> None:
    ids = torch.arange(1, 7).reshape(1, 6)
    left, within, right = torch.tensor([[0, 0, 1, 1, 1, 1]]), torch.tensor([[1, 1, 0, 1, 1, 1]]), torch.ones(1, 6)
    right[:, -1] = 0
    heads = {"gated_delta_net": {"num_heads": 2}, "kimi_delta": {"num_heads": 2}, "mamba2": {"head_dim": 4}}
    for mixer in ("short_convolution", "mamba", "mamba2", "gated_delta_net", "kimi_delta", "gru"):
        own: Any = {"type": mixer, **heads.get(mixer, {})}
        model = build_model(load_recipe(recipe(own, type="decoder")).blueprint()).double().eval()
        with torch.no_grad():
            read = model(ids, attention_mask=left, state=model.new_state()).hidden[:, 2:]
            assert torch.allclose(read, model(ids[:, 2:]).hidden, atol=1e-12)
            for mask in (within, right):
                state = model.new_state()
                with nullcontext() if mixer == "gru" else pytest.raises(UsageError, match="only for padding before"):
                    model(ids, attention_mask=mask, state=state)
                assert state.length == (6 if mixer == "gru" else 0)


def test_a_transformer_becomes_an_lstm_by_one_line() -> None:
    from tfkit.core.blueprint import Blueprint

    def blueprint(**overrides: Any) -> Blueprint:
        return load_recipe("gpt2", overrides={"model.num_layers": 2, **overrides}).blueprint()

    layer = blueprint(**{"model.layer.attention": "none", "model.layer.mixer": "lstm"}).last.layers[0]
    assert [sublayer.config.part.part_name for sublayer in layer.sublayers] == ["lstm", "mlp"]


def test_residual_none_is_a_plain_net_without_norms() -> None:
    plan = load_recipe(recipe("gru", layer={"residual": None, "mixer": "gru", "dropout": 0.1})).blueprint()
    model = build_model(plan).eval()
    layer = model.stack("encoder").layers[0]
    x = torch.randn(2, 5, 8)
    assert not any("norm" in name for name, _ in model.named_parameters())
    out = model(inputs_embeds=x, with_heads=False).hidden
    assert torch.allclose(out, layer.mixer(x, context_of(5)), atol=1e-6)  # type: ignore[operator]
