"""Mixers against loops written from their formulas; padding and states are the contracts' matter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.options import Slot
from tfkit.functional.kernel import SPAN, linear_scan
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
