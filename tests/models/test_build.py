"""A model that cannot be built is refused in words, before anything is allocated."""

from __future__ import annotations

import re
import time

import pytest
import torch

import tfkit
from tfkit.models import build as module
from tfkit.models.build import weights_of

from ..sampling import looped


def test_a_model_beyond_memory_is_refused_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tfkit.load_recipe("gpt2", overrides={"model.vocab_size": 2**28, "model.num_layers": 10_000})
    monkeypatch.setattr(module, "free_memory", lambda device: 2**34)
    monkeypatch.setattr(module, "_initialized", lambda blueprint: pytest.fail("it was allocated"))
    start = time.thread_time()
    with pytest.raises(tfkit.UsageError, match=r"weights, which take 1\.0 TiB, but cpu has 16\.0 GiB free"):
        tfkit.build(recipe)
    assert time.thread_time() - start < 2


@pytest.mark.parametrize("name", ["gpt2", "t5-small", "albert-base"])
def test_weights_are_never_overstated(name: str) -> None:
    blueprint = tfkit.load_recipe(name).blueprint()
    model = tfkit.build(name, device="meta")
    true = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    assert 0.9 * true < weights_of(blueprint) <= true


@pytest.mark.parametrize(("device", "message"), [("cuda:99", "cuda:99 is not"), ("gpu", "unknown device 'gpu'")])
def test_a_device_that_is_not_there_is_refused(device: str, message: str) -> None:
    with pytest.raises(tfkit.UsageError, match=message):
        tfkit.build("gpt2", device=device)


SMALL = {"model.num_layers": 2, "model.d_model": 24, "model.vocab_size": 50, "model.init": "normal"}
HEADS = {"model.layer.attention.num_heads": 2}


def test_without_a_seed_the_global_state_decides_and_moves_on() -> None:
    small = tfkit.load_recipe("gpt2", overrides={**SMALL, **HEADS})
    torch.manual_seed(3)
    first, second = (tfkit.build(small, seed=None).state_dict() for _ in range(2))
    torch.manual_seed(3)
    again = tfkit.build(small, seed=None).state_dict()
    name = "decoder.layers.0.attention.query.weight"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first[name], second[name])


OTHERS: list[tuple[str, object]] = [
    ("model.num_layers", 3),
    ("model.layer.residual", "post_norm"),
    ("model.layer.feedforward", {"type": "glu", "d_ff": 96}),
    ("model.layer.attention", {"type": "differential", "num_heads": 2}),
    ("model.position", "rotary"),
]


@looped(("key", "value"), OTHERS)
def test_models_of_one_seed_share_what_they_have_in_common(key: str, value: object) -> None:
    heads = {} if key == "model.layer.attention" else HEADS
    one = tfkit.load_recipe("gpt2", overrides={**SMALL, **HEADS})
    other = tfkit.load_recipe("gpt2", overrides={**SMALL, **heads, key: value})
    before = torch.get_rng_state()
    plain, changed = (dict(tfkit.build(recipe, seed=4).named_parameters()) for recipe in (one, other))
    assert torch.equal(torch.get_rng_state(), before)
    common = {name for name in plain if name in changed and plain[name].shape == changed[name].shape}
    assert len([name for name in common if name.endswith("weight") and plain[name].std() > 0]) >= 6
    assert [name for name in common if not torch.equal(plain[name], changed[name])] == []


def test_what_a_part_draws_itself_is_its_own_by_layer() -> None:
    values = {**SMALL, "model.layer.attention": {"type": "differential", "num_heads": 2}}
    deeper = {**values, "model.num_layers": 3, "model.layer.feedforward.d_ff": 48}
    recipes = (tfkit.load_recipe("gpt2", overrides=chosen) for chosen in (values, deeper))
    first, second = (dict(tfkit.build(recipe, seed=4).named_parameters()) for recipe in recipes)
    drawn = [name for name in first if re.search(r"attention\.(query|key)_[12]$", name)]
    assert drawn and all(torch.equal(first[name], second[name]) for name in drawn)
    assert not torch.equal(first[drawn[0]], first[drawn[0].replace("layers.0", "layers.1")])
