"""Attention along a band: equal to the float32 reference, whatever the mask, and linear in time and memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.sampling import each
from tfkit.contracts.saving import one_graph
from tfkit.core.component import Shape
from tfkit.core.context import Span, Visibility
from tfkit.core.inputs import Inputs
from tfkit.core.registry import REGISTRY
from tfkit.functional import band
from tfkit.functional.attend import Scores, attend, reference

ROWS, HEADS, KV_HEADS, DIM, TIME = 3, 4, 2, 8, 61
CAUSAL, BOTH_WAYS = Shape(4, causal=True), Shape(4, side="encoder")


@pytest.fixture(autouse=True, params=[band.PIECE, 200])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, all at once and a few at a time."""
    monkeypatch.setattr(band, "SMALLEST", 4)
    monkeypatch.setattr(band, "PIECE", request.param)


def rules(shape: Shape, *named: tuple[str, dict[str, Any]]) -> list[Any]:
    return [REGISTRY.get("mask", name).Config.model_validate(options).build(shape) for name, options in named]


def states(heads: int, time: int, seed: int, dim: int = DIM) -> Tensor:
    return torch.randn(ROWS, heads, time, dim, generator=torch.Generator().manual_seed(seed))


def mask_of(made: list[Any], queries: int = TIME, past: int = 0, **facts: Any) -> Visibility:
    inputs = facts.pop("inputs", Inputs())
    return Visibility(made, Span(queries, past + queries, past, torch.device("cpu")), inputs, **facts)


def expect_equal(mask: Visibility, cut: bool = True, **scores: Any) -> None:
    """The output and the gradients of both."""
    queries, keys = mask.span.queries, mask.span.keys
    assert (band.tiles_of(mask) is not None) == cut
    made = [states(HEADS, queries, 1), states(KV_HEADS, keys, 2), states(KV_HEADS, keys, 3, 6)]

    def results(kernel: Callable[..., Any]) -> list[Tensor]:
        query, key, value = (tensor.clone().requires_grad_() for tensor in made)
        given = kernel(query, key, value, mask, Scores(0.35, **scores))
        out = given[0] if isinstance(given, tuple) else given
        return [out, *torch.autograd.grad((out * states(HEADS, queries, 4, 6)).sum(), (query, key, value))]

    for ours, want in zip(results(attend), results(reference), strict=True):
        assert torch.allclose(ours, want, atol=1e-5, rtol=1e-5), f"off by {(ours - want).abs().max():.1e}"


MASKS: dict[str, tuple[Shape, list[tuple[str, dict[str, Any]]]]] = {
    "causal window": (CAUSAL, [("causal", {}), ("window", {"size": 7})]),
    "window": (BOTH_WAYS, [("window", {"size": 8})]),
    "uneven window": (BOTH_WAYS, [("window", {"before": 9, "after": 2})]),
    "itself alone": (CAUSAL, [("causal", {}), ("window", {"size": 1})]),
    "backward window": (BOTH_WAYS, [("reverse_causal", {}), ("window", {"size": 8})]),
    "chunk": (BOTH_WAYS, [("chunk", {"size": 9})]),
    "causal chunk": (CAUSAL, [("causal", {}), ("chunk", {"size": 9})]),
    "chunk that divides": (CAUSAL, [("causal", {}), ("chunk", {"size": 61 // 4})]),
    "window in a chunk": (CAUSAL, [("causal", {}), ("window", {"size": 4}), ("chunk", {"size": 9})]),
    "dilated": (BOTH_WAYS, [("window", {"size": 12}), ("dilated", {"dilation": 3})]),
    "dilated causal": (CAUSAL, [("causal", {}), ("window", {"size": 10}), ("dilated", {"dilation": 2})]),
}
REAL = torch.ones(ROWS, TIME, dtype=torch.bool)
REAL[0, -9:] = False
REAL[1, :20] = False
REAL[2] = False
SEGMENTS = torch.tensor([[1] * 20 + [2] * 30 + [3] * 11, [4] * 61, [1] * 3 + [2] * 3 + [3] * 55])


FACTS: dict[str, dict[str, Any]] = {"": {}, "padded": {"real": REAL}, "packed": {"segments": (SEGMENTS, SEGMENTS)}}


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_it_equals_the_reference(facts: dict[str, Any]) -> None:
    def check(name: str) -> None:
        shape, named = MASKS[name]
        expect_equal(mask_of(rules(shape, *named), **facts))

    each(MASKS, check)


@pytest.mark.parametrize("queries", [1, 5, 40])
def test_it_equals_the_reference_behind_a_past(queries: int) -> None:
    def check(name: str, facts: str) -> None:
        shape, named = MASKS[name]
        expect_equal(mask_of(rules(shape, *named), queries, TIME - queries, **FACTS[facts]))

    each(product(["causal window", "causal chunk", "dilated causal"], ["", "padded"]), check)


@pytest.mark.parametrize("scores", [{"softcap": 2.0}, {"sinks": torch.tensor([0.1, -1.0, 2.0, 0.0])}], ids=str)
def test_other_scores(scores: dict[str, Any]) -> None:
    def check(name: str, facts: str) -> None:
        shape, named = MASKS[name]
        expect_equal(mask_of(rules(shape, *named), **FACTS[facts]), **scores)

    each(product(["causal window", "causal chunk", "chunk"], ["", "padded"]), check)


@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_marked_tokens_see_all_and_are_seen_by_all(facts: dict[str, Any]) -> None:
    def check(marks: str) -> None:
        marked = torch.zeros(ROWS, TIME, dtype=torch.long)
        if marks == "one":
            marked[:, 0] = 1
        elif marks == "some":
            marked[0, [3, 30, 59]], marked[1, 25] = 1, 1
        elif marks == "a padded one":
            marked[0, -1], marked[1, 0], marked[2, 5] = 1, 1, 1
        made = rules(BOTH_WAYS, ("window", {"size": 8}), ("global_tokens", {}))
        expect_equal(mask_of(made, inputs=Inputs(global_attention_mask=marked), **facts))

    each(["one", "some", "none", "a padded one"], check)


def test_what_has_no_band_is_not_cut() -> None:
    expect_equal(mask_of(rules(CAUSAL, ("causal", {}))), cut=False)
    expect_equal(mask_of(rules(BOTH_WAYS, ("window", {"before": 3}))), cut=False)
    expect_equal(mask_of(rules(BOTH_WAYS, ("window", {"size": 40}))), cut=False)
    opened = rules(CAUSAL, ("causal", {}), ("window", {"size": 4}), ("prefix", {}))
    expect_equal(mask_of(opened, inputs=Inputs(prefix_length=torch.tensor([3, 0, 9]))), cut=False)


def test_no_square_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Visibility, "dense", lambda mask: pytest.fail("a dense mask was asked for"))
    for shape, named in MASKS.values():
        mask = mask_of(rules(shape, *named), real=REAL)
        attend(states(HEADS, TIME, 1), states(KV_HEADS, TIME, 2), states(KV_HEADS, TIME, 3), mask, Scores(0.3))


def test_layers_share_the_tiles_of_a_mask() -> None:
    mask = mask_of(rules(CAUSAL, *MASKS["causal window"][1]))
    assert band.band_of(mask, ROWS) is band.band_of(mask, ROWS)


@pytest.mark.slow
def test_it_compiles_for_several_lengths() -> None:
    with one_graph(attend) as compiled:
        for time in (30, 61, 100):
            query, key = states(HEADS, time, 1), states(KV_HEADS, time, 2)
            masks = [mask_of(rules(CAUSAL, *MASKS["causal window"][1]), time) for _ in range(2)]
            out, want = (
                kernel(query, key, key, mask, Scores(0.3))
                for kernel, mask in zip((compiled, attend), masks, strict=True)
            )
            assert torch.allclose(out, want, atol=1e-6)
