"""Dropout: the right share of zeros, the mean kept, the seed obeyed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tfkit.functional.dropout import Draws, Dropout, drawing, dropout, is_drawing

from ..sampling import looped


@pytest.fixture(params=[None, (7, 3)], ids=["torch's generator", "a key"], autouse=True)
def draws(request):
    """Both sources of draws hold the same promises."""
    with drawing(None if request.param is None else Draws(request.param)):
        yield request.param


@looped("rate", [0.1, 0.5, 0.9])
def test_share_and_mean(rate):
    torch.manual_seed(0)
    out = dropout(torch.ones(501, 1003), rate)  # an odd number of elements
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=0.004)
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - rate)])


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000), 0.5) != 0).float().view(-1, 4)
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.02  # four elements come from one draw


def test_the_gradient_has_the_same_mask():
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    out = dropout(x, 0.3)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_a_seed_repeats_it_and_evaluation_does_nothing(draws):
    layer, x = Dropout(0.3), torch.randn(64)
    out = []
    for _ in range(2):
        torch.manual_seed(5)
        with drawing(draws and Draws(draws)):
            out.append(layer(x))
    assert torch.equal(*out) and not torch.equal(layer(x), layer(x))
    assert layer.eval()(x) is x and dropout(x, 0) is x


def test_a_double_keeps_its_type():
    assert dropout(torch.ones(8, dtype=torch.float64), 0.5).dtype == torch.float64


def test_calls_and_keys_are_independent():
    x, kept = torch.ones(200_000), []
    for key in ((1, 1), (1, 2), (2, 1)):
        with drawing(Draws(key)):
            kept += [dropout(x, 0.5) != 0, dropout(x, 0.5) != 0]
    correlation = torch.corrcoef(torch.stack(kept).float()) - torch.eye(6)
    assert correlation.abs().max() < 0.02


def test_another_thread_draws_for_itself():
    with drawing(Draws((1, 1))), ThreadPoolExecutor(1) as pool:
        assert is_drawing() and not pool.submit(is_drawing).result()
