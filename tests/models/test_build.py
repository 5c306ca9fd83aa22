"""A model that cannot be built is refused in words, before anything is allocated."""

from __future__ import annotations

import time

import pytest
import torch

import tfkit
from tfkit.models import build as module
from tfkit.models.sample import weights_of


def test_a_model_beyond_memory_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tfkit.load_recipe("gpt2", overrides={"model.vocab_size": 2**28, "model.num_layers": 10_000})
    monkeypatch.setattr(module, "free_memory", lambda device: 2**34)
    monkeypatch.setattr(module, "_made", lambda blueprint: pytest.fail("it was allocated"))
    start = time.thread_time()
    with pytest.raises(tfkit.UsageError, match=r"weights, which take 1,0.* GiB, and cpu has 16\.0 GiB free"):
        tfkit.build(recipe)
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("name", ["gpt2", "t5-small", "albert-base"])
def test_weights_are_never_overstated(name: str) -> None:
    blueprint = tfkit.load_recipe(name).blueprint()
    model = tfkit.build(name, device="meta")
    true = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    assert 0.9 * true < weights_of(blueprint) <= true


@pytest.mark.parametrize(("device", "message"), [("cuda:99", "there is no cuda:99"), ("gpu", "'gpu' is no device")])
def test_a_device_that_is_not_there_is_refused(device: str, message: str) -> None:
    with pytest.raises(tfkit.UsageError, match=message):
        tfkit.build("gpt2", device=device)


def test_the_check_draws_nothing() -> None:
    small = tfkit.load_recipe("gpt2", overrides={"model.num_layers": 1, "model.d_model": 24, "model.vocab_size": 50})
    torch.manual_seed(3)
    first = tfkit.build(small, seed=None).state_dict()
    torch.manual_seed(3)
    again = module._made(small.blueprint()).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
