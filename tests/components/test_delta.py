"""Mixers with a delta rule against loops written from their papers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape, Unlearnable
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.options import Slot

WIDTH, ROWS, TIME = 12, 2, 70  # more than a chunk
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gated_delta_net", {"num_heads": 3}),
    ("gated_delta_net", {"num_heads": 2, "head_dim": 5, "num_value_heads": 4, "value_dim": 3, "reflects": True}),
    (
        "gated_delta_net",
        {"num_heads": 2, "d_conv": 2, "activation": "sigmoid", "norm": {"type": "rms_norm", "eps": 0.1}},
    ),
    ("kimi_delta", {"num_heads": 3}),
    ("kimi_delta", {"num_heads": 2, "head_dim": 5, "num_value_heads": 4, "value_dim": 3, "rank": 2, "reflects": True}),
    ("kimi_delta", {"num_heads": 2, "d_conv": 1, "activation": "silu", "norm": "layer_norm"}),
]


def part_of(name: str, options: dict[str, Any]) -> Any:
    config = Slot("mixer").validate({"type": name, **options})
    assert not list(config.check(Shape(WIDTH, causal=True)))
    part = config.build(Shape(WIDTH, causal=True))
    torch.manual_seed(0)
    randomise(part)
    return part.double().eval()


def states(time: int = TIME) -> Tensor:
    return torch.randn(ROWS, time, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def context_of(
    time: int, real: Tensor | None = None, texts: Tensor | None = None, past: int = 0, state: Any = None
) -> Context:
    places = torch.arange(past, past + time)[None]
    span = Span(time, past + time, past, places.device)
    segments = None if texts is None else (texts, texts)
    return Context(Visibility((), span, real=real, segments=segments), Placement((), places, places), state=state)


def naive(part: Any, x: Tensor) -> Tensor:
    """The mixer of one text [time width], a token and a head at a time."""
    config = part.config
    keys, values = config.num_heads, config.num_value_heads or config.num_heads
    dim = config.head_dim or WIDTH // keys
    value_dim, size = config.value_dim or dim, config.d_conv
    projected = torch.cat([x @ layer.weight.T for layer in (part.query, part.key, part.value)], dim=1)
    kernel = torch.cat([part.query_convolution.weight, part.key_convolution.weight, part.value_convolution.weight])
    mixed = torch.zeros_like(projected)
    for place in range(len(x)):
        for back in range(min(size, place + 1)):
            mixed[place] += kernel[:, 0, size - 1 - back] * projected[place - back]
    mixed = mixed * torch.sigmoid(mixed)
    held = [torch.zeros(dim, value_dim, dtype=x.dtype) for _ in range(values)]
    out = torch.zeros(len(x), values * value_dim, dtype=x.dtype)
    step = torch.log(1 + torch.exp(part.step(x) + part.step_bias)).reshape(len(x), values, -1)
    gates = part.gate(x).reshape(len(x), values, value_dim)
    gates = gates * torch.sigmoid(gates) if config.activation.part.part_name == "silu" else torch.sigmoid(gates)
    strength = torch.sigmoid(x @ part.strength.weight.T) * (2 if config.reflects else 1)
    for place in range(len(x)):
        for head in range(values):
            at = head // (values // keys) * dim
            query, key = mixed[place, at : at + dim], mixed[place, keys * dim + at : keys * dim + at + dim]
            value = mixed[place, 2 * keys * dim + head * value_dim :][:value_dim]
            query, key = (each / torch.sqrt((each * each).sum() + 1e-6) for each in (query, key))
            decay = torch.exp(-torch.exp(part.log_decay[head]) * step[place, head])  # [1|dim]
            erased = torch.eye(dim, dtype=x.dtype) - strength[place, head] * torch.outer(key, key)
            held[head] = erased @ (decay[:, None] * held[head]) + strength[place, head] * torch.outer(key, value)
            found = part.norm(held[head].T @ query / dim**0.5) * gates[place, head]
            out[place, head * value_dim : (head + 1) * value_dim] = found
    return out @ part.output.weight.T


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@torch.no_grad()
def test_delta_rules_follow_their_papers(name: str, options: dict[str, Any]) -> None:
    x, part = states(), part_of(name, options)
    want = torch.stack([naive(part, row) for row in x])
    assert torch.allclose(part(x, context_of(TIME)), want, atol=1e-12, rtol=0)
    state, cached, place = part.new_state(), [], 0
    for count in (5, 1, 1, 40, 3, 20):  # a prompt, tokens, and pieces
        cached.append(part(x[:, place : place + count], context_of(count, past=place, state=state)))
        place += count
    assert torch.allclose(torch.cat(cached, dim=1), want, atol=1e-12, rtol=0)
    state.reorder(torch.tensor([1]))
    again = part(x[1:, :1], context_of(1, past=TIME, state=state))
    assert torch.allclose(again[0, 0], naive(part, torch.cat((x[1], x[1, :1])))[-1], atol=1e-12, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@torch.no_grad()
def test_all_forms_are_exact_in_float32(name: str, options: dict[str, Any]) -> None:
    """With a norm that does not magnify the rounding of small outputs."""
    x, part = states(), part_of(name, options | {"norm": {"type": "rms_norm", "eps": 1.0}})
    want = torch.stack([naive(part, row) for row in x])
    part, x, state = part.float(), x.float(), part.new_state()
    steps = [part(x[:, at : at + 1], context_of(1, past=at, state=state)) for at in range(TIME)]
    for found in (part(x, context_of(TIME)), torch.cat(steps, dim=1)):
        assert float((found - want).abs().max()) < 1e-6


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), [OPTIONS[1], OPTIONS[4]], ids=str)
@torch.no_grad()
def test_padding_and_packing_leave_texts_alone(name: str, options: dict[str, Any]) -> None:
    x, part = states(), part_of(name, options)
    real = torch.ones(ROWS, TIME, dtype=torch.bool)
    real[0, :9] = real[1, -4:] = False
    state = part.new_state()
    padded = part(x, context_of(TIME, real=real, state=state))
    assert torch.allclose(padded[0, 9:], naive(part, x[0, 9:]), atol=1e-12, rtol=0)
    assert torch.allclose(padded[1, :-4], naive(part, x[1, :-4]), atol=1e-12, rtol=0)
    longer = torch.cat((real, torch.ones(ROWS, 1, dtype=torch.bool)), dim=1)
    more = part(x[:, :1], context_of(1, real=longer, past=TIME, state=state))
    assert torch.allclose(more[0, 0], naive(part, torch.cat((x[0, 9:], x[0, :1])))[-1], atol=1e-12, rtol=0)
    texts = (torch.arange(TIME)[None] >= torch.tensor([[3], [65]])).long() + (torch.arange(TIME) >= 66)
    packed = part(x, context_of(TIME, texts=texts))
    for row, starts in enumerate(((0, 3, 66, TIME), (0, 65, 66, TIME))):
        for first, last in pairwise(starts):
            alone = naive(part, x[row, first:last])
            assert torch.allclose(packed[row, first:last], alone, atol=1e-12, rtol=0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gated_delta_net", "kimi_delta"])
def test_wrong_sizes_of_delta_rules_are_named(name: str) -> None:
    def options(**given: Any) -> list[str]:
        return [found.option for found in Slot("mixer").validate({"type": name, **given}).check(Shape(WIDTH))]

    assert options(num_heads=5) == ["num_heads"]
    assert options(num_heads=4, num_value_heads=6) == ["num_value_heads"]
    assert not options(num_heads=5, head_dim=3, num_value_heads=10)
    faults = list(Slot("mixer").validate({"type": name, "num_heads": WIDTH}).check(Shape(WIDTH)))
    assert faults and all(isinstance(fault, Unlearnable) for fault in faults)


@pytest.mark.full
def test_defaults_of_output_gates_follow_the_papers() -> None:
    gates = [Slot("mixer").validate({"type": name, "num_heads": 2}).activation.part for name, _ in OPTIONS[2:4]]
    assert [gate.part_name for gate in gates] == ["silu", "sigmoid"]
