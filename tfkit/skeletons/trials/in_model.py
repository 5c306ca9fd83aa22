"""my_part in a small model: its recipe loads, it runs, all weights have gradients, and no token sees a later one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tfkit

PARTS = Path(__file__).with_name("my_part.py")
RECIPE = """the recipe"""


@pytest.fixture
def recipe(tmp_path: Path) -> tfkit.Recipe:
    """The recipe of a small model that contains the part."""
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    return tfkit.load_recipe(file, imports=[PARTS])


def test_its_options_are_spelled_out(recipe: tfkit.Recipe) -> None:
    """The recipe loads, and `resolved` names the part."""
    assert "my_part" in recipe.resolved()


def test_every_weight_gets_a_gradient(recipe: tfkit.Recipe) -> None:
    """Compute finite gradients for all weights."""
    model = tfkit.build(recipe, seed=0)
    ids = torch.randint(0, 100, (2, 12), generator=torch.Generator().manual_seed(0))
    out = model(ids)
    assert out.logits.shape[:2] == (2, 12)
    out.logits.square().mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, f"{name} has no gradient"
        assert weight.grad.isfinite().all(), f"{name} has a NaN or infinite gradient"


@torch.no_grad()
def test_no_token_sees_a_later_one(recipe: tfkit.Recipe) -> None:
    """Changing the last token leaves all earlier outputs unchanged."""
    model = tfkit.build(recipe, seed=0).eval()
    ids = torch.randint(0, 100, (2, 12), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % 100
    torch.testing.assert_close(model(changed).logits[:, :-1], model(ids).logits[:, :-1])
