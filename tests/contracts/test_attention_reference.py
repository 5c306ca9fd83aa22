"""Multi-head attention with each of its options equals an independent loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.components.attention import MultiHead
from tfkit.components.mask import Causal, Window
from tfkit.components.position import ALiBi, Rotary
from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape
from tfkit.core.context import Collector, Context, Placement, Span, Visibility
from tfkit.core.options import Slot

from ..sampling import looped
from .reference import Naive, linear_bias, rotated

WIDTH, HEADS, TIME, ROWS, SOURCE = 12, 4, 5, 2, 4
REAL = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]).bool()
SHAPE = Shape(WIDTH, num_heads=HEADS, causal=True)


def part_of(shape: Shape = SHAPE, **options: Any) -> MultiHead:
    config = Slot("attention").validate({"type": "multi_head", "num_heads": HEADS, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        part = config.build(shape)
    randomise(part)
    return part.double().eval()


def states(time: int = TIME, width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(ROWS, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context_of(rules: Any = (), position: Any = (), real: Tensor | None = None, keys: int = TIME) -> Context:
    places = torch.arange(TIME)[None]
    mask = Visibility(list(rules), Span(TIME, keys, 0, places.device), real=real)
    return Context(mask, Placement(list(position), places, torch.arange(keys)[None]))


def naive_of(part: MultiHead, **changed: Any) -> Naive:
    dim = part.head_dim
    sizes = {"heads": HEADS, "kv_heads": HEADS, "head_dim": dim, "value_dim": dim, "scale": dim**-0.5}
    return Naive(**{**sizes, **changed})


def expect_naive(part: MultiHead, naive: Naive, context: Context, x: Tensor, source: Tensor | None = None) -> None:
    """The part by its fast kernel and by the path that returns weights, against the loops."""
    with torch.no_grad():
        want = naive(part.state_dict(), x, source)
        fast = part(x, context)
        watched = part(x, Context(context.mask, context.position, source=source, collector=Collector(WATCH)))
    assert torch.allclose(fast, want, atol=1e-12, rtol=1e-12), f"off by {(fast - want).abs().max():.1e}"
    assert torch.allclose(watched, want, atol=1e-12, rtol=1e-12), (
        f"with weights off by {(watched - want).abs().max():.1e}"
    )


WATCH = frozenset({"attention"})
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "grouped": ({"num_kv_heads": 2}, {"kv_heads": 2}),
    "one-kv-head": ({"num_kv_heads": 1}, {"kv_heads": 1}),
    "single-head": ({"num_heads": 1}, {"heads": 1, "kv_heads": 1}),
    "head_dim": ({"head_dim": 6}, {}),
    "value_dim": ({"value_dim": 5}, {"value_dim": 5}),
    "all-widths": (
        {"head_dim": 2, "value_dim": 5, "num_kv_heads": 2}, {"value_dim": 5, "kv_heads": 2}
    ),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
    "scale-by-width": ({"scale": "1/sqrt_d_model"}, {"scale": WIDTH**-0.5}),
    "softcap": ({"softcap": 1.5}, {"softcap": 1.5}),
    "no-bias": ({"bias": False}, {}),
    "output-bias": ({"bias": ["output"]}, {}),
    "query-key-bias": ({"bias": ["query", "key"]}, {})
}  # fmt: skip


@looped("causal", [False, True])
@looped("option", OPTIONS)
def test_options(option: str, causal: bool) -> None:
    options, changed = OPTIONS[option]
    part = part_of(**options)
    rules = [Causal(Causal.Config(), SHAPE)] if causal else []
    visible = (lambda row, query, key: key <= query) if causal else (lambda row, query, key: True)
    expect_naive(part, naive_of(part, **changed, visible=visible), context_of(rules), states())


@looped("bias", [True, False, ["query"], ["key", "value"], ["output"]])
def test_biases_are_where_they_are_named(bias: Any) -> None:
    part = part_of(bias=bias)
    named = ["query", "key", "value", "output"] if bias is True else bias or []
    assert {name for name in part.state_dict() if name.endswith("bias")} == {f"{name}.bias" for name in named}


def test_qk_norm() -> None:
    part = part_of(qk_norm={"type": "rms_norm", "eps": 1e-3})
    norm = {"query": part.query_norm.weight.detach(), "key": part.key_norm.weight.detach()}
    expect_naive(part, naive_of(part, norm=norm, eps=1e-3), context_of(), states())


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rotary_after_qk_norm_with_grouped_heads(fraction: float) -> None:
    part = part_of(head_dim=8, num_kv_heads=2, qk_norm="rms_norm")
    rotary = Rotary(Rotary.Config(theta=100.0, fraction=fraction), SHAPE)
    norm = {"query": part.query_norm.weight.detach(), "key": part.key_norm.weight.detach()}
    naive = naive_of(part, kv_heads=2, norm=norm, turn=rotated(100.0, int(8 * fraction)))
    expect_naive(part, naive, context_of(position=[rotary]), states())


def test_alibi_with_a_causal_window_and_padding() -> None:
    part = part_of()
    rules = [Causal(Causal.Config(), SHAPE), Window(Window.Config(size=2), SHAPE)]
    naive = naive_of(
        part,
        bias=linear_bias(HEADS),
        visible=lambda row, query, key: query - 1 <= key <= query and bool(REAL[row, key]),
    )
    context = context_of(rules, [ALiBi(ALiBi.Config(), SHAPE)], REAL)
    expect_naive(part, naive, context, states())


def test_softcap_comes_before_the_position_bias() -> None:
    part = part_of(softcap=1.0)
    naive = naive_of(part, softcap=1.0, bias=linear_bias(HEADS))
    expect_naive(part, naive, context_of(position=[ALiBi(ALiBi.Config(), SHAPE)]), states())


def test_cross_attention_with_another_width_and_padding() -> None:
    part = part_of(Shape(WIDTH, memory_width=7), num_kv_heads=2)
    source, real = states(SOURCE, 7, seed=2), REAL[:, 1:].clone()
    real[1] = False  # this row may look at nothing
    naive = naive_of(part, kv_heads=2, visible=lambda row, query, key: bool(real[row, key]))
    context = context_of(real=real, keys=SOURCE)
    nested = Context(context.mask, context.position, source=source)
    expect_naive(part, naive, nested, states(), source)
    assert torch.equal(part(states(), nested)[1], part.output.bias.expand(TIME, -1)), "nothing seen gives zeros"


def test_weights_of_a_row_that_sees_nothing_are_zero_and_others_sum_to_one() -> None:
    part, collector = part_of(), Collector(WATCH)
    real = torch.tensor([[True] * TIME, [False] * TIME])
    context = context_of(real=real)
    part(states(), Context(context.mask, context.position, collector=collector))
    total = collector.observed["attention"][0].sum(dim=-1)
    assert torch.allclose(total[0], torch.ones(HEADS, TIME, dtype=total.dtype)) and bool((total[1] == 0).all())


def test_the_temperature_is_a_factor_on_the_scores() -> None:
    class Hot(ALiBi):
        def bias(self, *arguments: Any) -> None:
            return None

        def temperature(self, positions: Tensor) -> Tensor:
            return 1.0 + positions

    part = part_of()
    x = states()
    out = part(x, context_of(position=[Hot(Hot.Config(), SHAPE)]))
    for place in range(TIME):
        hotter = naive_of(part, scale=part.head_dim**-0.5 * (1 + place))(part.state_dict(), x)
        assert torch.allclose(out[:, place], hotter[:, place], atol=1e-5)


def test_dropped_weights_are_not_the_observed_ones() -> None:
    part, collector = part_of(dropout=0.5).train(), Collector(WATCH)
    context = context_of()
    part(states(), Context(context.mask, context.position, collector=collector))
    total = collector.observed["attention"][0].sum(-1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-6)
