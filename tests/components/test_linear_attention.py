"""Performer and linear attention against loops in float64 that are written from the papers' formulas."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.components.attention import KernelAttention, Performer
from tfkit.components.mask import Causal
from tfkit.contracts.calls import randomise
from tfkit.core.component import Shape
from tfkit.core.context import Context, Placement, Span, Visibility
from tfkit.core.options import Slot
from tfkit.functional.kernel import CHUNK, KernelSums, kernel_attention

WIDTH, HEADS, ROWS = 12, 3, 2
DIM = WIDTH // HEADS


def part_of(name: str, causal: bool = False, **options: Any) -> Any:
    config = Slot("attention").validate({"type": name, "num_heads": HEADS, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        part = config.build(Shape(WIDTH, causal=causal))
    randomise(part)
    return part.double().eval()


def states(time: int, seed: int = 1) -> Tensor:
    return torch.randn(ROWS, time, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def context_of(time: int, causal: bool = False, real: Tensor | None = None) -> Context:
    rules: list[Any] = [Causal(Causal.Config(), Shape(WIDTH, causal=True))] if causal else []
    places = torch.arange(time)[None]
    return Context(Visibility(rules, Span(time, time, 0, places.device), real=real), Placement((), places, places))


def favor(vector: list[float], directions: Tensor) -> list[float]:
    """phi(x) of FAVOR+: positive features whose products estimate exp(q k / sqrt(dim))."""
    small = [value / len(vector) ** 0.25 for value in vector]
    half = sum(value * value for value in small) / 2
    rows: list[list[float]] = directions.tolist()
    return [math.exp(sum(w * x for w, x in zip(row, small, strict=True)) - half) / math.sqrt(len(rows)) for row in rows]


def elu(vector: list[float]) -> list[float]:
    return [value + 1 if value > 0 else math.exp(value) for value in vector]


def relu(vector: list[float]) -> list[float]:
    return [max(value, 0.0) for value in vector]


def naive(part: KernelAttention, x: Tensor, phi: Any, causal: bool, real: Tensor | None = None) -> Tensor:
    """Quadratic, in loops."""
    query, key, value = (getattr(part, name)(x).unflatten(-1, (HEADS, DIM)) for name in ("query", "key", "value"))
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for head in range(HEADS):
            keys = [phi(vector) for vector in key[row, :, head].tolist()]
            for place in range(x.shape[1]):
                asked = phi(query[row, place, head].tolist())
                seen = [
                    other
                    for other in range(x.shape[1])
                    if (not causal or other <= place) and (real is None or bool(real[row, other]))
                ]
                weights = [sum(a * b for a, b in zip(asked, keys[other], strict=True)) for other in seen]
                total = sum(weights)
                if total > 0:
                    mixed = sum(weight * value[row, other, head] for weight, other in zip(weights, seen, strict=True))
                    out[row, place, head * DIM : (head + 1) * DIM] = mixed / total
    return part.output(out)  # type: ignore[no-any-return]


REAL = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]]).bool()


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("real", [None, REAL], ids=["", "padded"])
@pytest.mark.parametrize("name", ["performer", "performer-independent", "elu", "relu"])
@torch.no_grad()
def test_it_is_the_papers_formula(name: str, real: Tensor | None, causal: bool) -> None:
    if name.startswith("performer"):
        part = part_of("performer", causal, features=9, orthogonal=name == "performer")
        directions = part.directions

        def phi(vector: list[float]) -> list[float]:
            return favor(vector, directions)
    else:
        part = part_of("linear", causal, feature=name)
        phi = {"elu": elu, "relu": relu}[name]
    x = states(7)
    found = part(x, context_of(7, causal, real))
    want = naive(part, x, phi, causal, real)
    kept = torch.ones(ROWS, 7, dtype=torch.bool) if real is None else real
    assert torch.allclose(found[kept], want[kept], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("name", ["performer", "linear"])
@torch.no_grad()
def test_prefix_sums_in_chunks_equal_the_quadratic_form(name: str) -> None:
    part, time = part_of(name, causal=True), 2 * CHUNK + 37
    x = states(time)
    query, key = (part.log_features(part._split(getattr(part, which)(x))) for which in ("query", "key"))
    weights = torch.logsumexp(query[:, :, :, None] + key[:, :, None], dim=-1).exp().tril()
    mixed = weights / weights.sum(-1, keepdim=True) @ part._split(part.value(x))
    want = part.output(mixed.transpose(1, 2).flatten(2))
    assert torch.allclose(part(x, context_of(time, causal=True)), want, atol=1e-12, rtol=1e-10)


@torch.no_grad()
def softmax_error(features: int, orthogonal: bool = True) -> float:
    """The mean over several draws of how far a Performer is from softmax attention with the same weights."""
    part: Performer = part_of("performer", features=features, orthogonal=orthogonal)
    x, errors = states(32) * 0.3, []  # as in a trained model: scores of a few units, not of hundreds
    query, key, value = (part._split(getattr(part, name)(x)) for name in ("query", "key", "value"))
    exact = torch.softmax(query @ key.transpose(-1, -2) / DIM**0.5, dim=-1) @ value
    for seed in range(20):
        part.redraw(torch.Generator().manual_seed(seed))
        found = kernel_attention(part.log_features(query), part.log_features(key), value, None, causal=False)
        errors.append(float((found - exact).square().mean().sqrt()))
    return sum(errors) / len(errors)


def test_more_features_come_nearer_to_softmax() -> None:
    errors = [softmax_error(features) for features in (4, 32, 256, 2048)]
    assert all(after < 0.5 * before for before, after in pairwise(errors)), errors
    assert errors[-1] < 0.03, errors


def test_orthogonal_features_are_nearer_than_independent_ones() -> None:
    assert softmax_error(DIM) < softmax_error(DIM, orthogonal=False)


def test_orthogonal_directions_keep_the_lengths_of_normal_ones() -> None:
    part = part_of("performer", features=5000)
    groups = part.directions[: 5000 // DIM * DIM].unflatten(0, (-1, DIM))
    crossed = groups @ groups.transpose(-1, -2)
    assert torch.allclose(
        crossed - torch.diag_embed(crossed.diagonal(dim1=-2, dim2=-1)), torch.zeros(()).double(), atol=1e-4
    )
    assert float(part.directions.mean()) == pytest.approx(0, abs=0.03)
    assert float(part.directions.square().mean()) == pytest.approx(1, abs=0.05)


def test_features_are_saved_and_redrawn_on_request_only() -> None:
    part = part_of("performer", features=6)
    before = part.directions.clone()
    assert "directions" in part.state_dict() and not part.directions.requires_grad
    part.train()(states(4), context_of(4))
    assert torch.equal(part.directions, before)
    part.redraw(torch.Generator().manual_seed(7))
    first = part.directions.clone()
    assert not torch.equal(first, before)
    part.redraw(torch.Generator().manual_seed(7))
    assert torch.equal(part.directions, first)


@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_overflow_nothing(causal: bool) -> None:
    part = part_of("performer", causal).float()
    x = (states(40) * 300).float().requires_grad_()
    out = part(x, context_of(40, causal))
    assert torch.isfinite(out).all()
    assert torch.isfinite(torch.autograd.grad(out.sum(), x)[0]).all()


@torch.no_grad()
def test_a_state_keeps_sums_and_no_keys() -> None:
    part, state = part_of("performer", causal=True, features=5), KernelSums()
    sizes = []
    for count in (3, 1, 4):
        query = part.log_features(part._split(states(count)))
        kernel_attention(query, query, part._split(states(count)), None, True, state)
        sizes.append(state.bytes())
    assert sizes[0] == sizes[1] == sizes[2] == ROWS * HEADS * 5 * (DIM + 2) * 8


@pytest.mark.parametrize("name", ["linear", "performer"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_long_text_in_pieces_is_the_same(name: str, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients the features of 4 tokens are made at a time; a whole piece may be padding."""
    part, x, sizes = part_of(name), states(11), []
    real = torch.ones(ROWS, 11, dtype=torch.bool)
    real[0, 7:], real[1, :5] = False, False
    context = context_of(11, real=real if padded else None)
    whole = part(x, context)
    features = part.log_features
    monkeypatch.setattr(part, "log_features", lambda y: (sizes.append(y.shape[2]), features(y))[1])
    monkeypatch.setattr("tfkit.components.attention.linear.PIECE", 4)
    with torch.no_grad():
        pieces = part(x, context)
    assert max(sizes) == 4, "the features of more tokens were made at once"
    torch.testing.assert_close(pieces, whole.detach(), rtol=1e-9, atol=1e-12)
