"""Longformer's attention against a loop over queries, in one piece and in tiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfkit.components.mask import GlobalTokens, Window
from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape
from tfkit.core.context import Collector, Context, Placement, Span, Visibility
from tfkit.core.inputs import Inputs
from tfkit.core.options import Slot
from tfkit.functional import band

WIDTH, HEADS, ROWS, TIME, SIDE = 8, 2, 2, 41, 3
SHAPE = Shape(WIDTH, side="encoder")
MARKED = torch.zeros(ROWS, TIME, dtype=torch.long)
MARKED[0, [0, 20]], MARKED[1, 38] = 1, 1
REAL = torch.ones(ROWS, TIME, dtype=torch.bool)
REAL[1, :9] = False


def setting(real: Tensor | None, marked: Tensor | None = MARKED, watch: bool = False) -> Context:
    rules = [Window.Config(size=2 * SIDE).build(SHAPE), GlobalTokens.Config().build(SHAPE)]
    inputs, places = Inputs(global_attention_mask=marked), torch.arange(TIME)[None]
    mask = Visibility(rules, Span(TIME, TIME, 0, places.device), inputs, real)
    collector = Collector(frozenset({"attention"}) if watch else frozenset())
    return Context(mask, Placement((), places, places), inputs=inputs, collector=collector)


def naive(part: torch.nn.Module, x: Tensor, real: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(ROWS):
        for place in range(TIME):
            own = "_global" if MARKED[row, place] else ""
            near = (torch.arange(TIME) - place).abs() <= SIDE
            seen = (near | MARKED[row].bool() | bool(MARKED[row, place])) & real[row]
            query, key, value = (part.get_submodule(f"{name}{own}")(x[row]) for name in ("query", "key", "value"))
            for head in range(HEADS):
                channels = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
                scores = key[seen, channels] @ query[place, channels] / (WIDTH // HEADS) ** 0.5
                out[row, place, channels] = torch.softmax(scores, dim=0) @ value[seen, channels]
    return part.get_submodule("output")(out)  # type: ignore[no-any-return]


@pytest.mark.parametrize("smallest", [4, 64], ids=["in tiles", "whole"])
@pytest.mark.parametrize("real", [None, REAL], ids=["", "padded"])
@torch.no_grad()
def test_it_is_the_papers_formula(monkeypatch: pytest.MonkeyPatch, smallest: int, real: Tensor | None) -> None:
    monkeypatch.setattr(band, "SMALLEST", smallest)
    part = Slot("attention").validate({"type": "longformer", "num_heads": HEADS}).build(SHAPE)
    randomise(part)
    part = part.double().eval()
    x = torch.randn(ROWS, TIME, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    context = setting(real)
    assert (band.tiles_of(context.mask) is not None) == (smallest == 4)
    kept = torch.ones(ROWS, TIME, dtype=torch.bool) if real is None else real
    want = naive(part, x, kept)[kept]
    assert torch.allclose(part(x, context)[kept], want, atol=1e-10)
    watched = setting(real, watch=True)
    assert torch.allclose(part(x, watched)[kept], want, atol=1e-10)
    weights = watched.collector.observed["attention"][0]
    assert torch.allclose(weights.sum(-1)[:, 0][kept], torch.ones(int(kept.sum()), dtype=weights.dtype), atol=1e-10)


def test_without_marked_tokens_it_is_multi_head_attention() -> None:
    part = Slot("attention").validate({"type": "longformer", "num_heads": HEADS}).build(SHAPE).eval()
    plain = Slot("attention").validate({"type": "multi_head", "num_heads": HEADS}).build(SHAPE).eval()
    plain.load_state_dict({name: value for name, value in part.state_dict().items() if "_global" not in name})
    x = torch.randn(ROWS, TIME, WIDTH)
    context = setting(None, torch.zeros_like(MARKED))
    assert torch.allclose(part(x, context), plain(x, context), atol=1e-6)
