"""Options of a part that is there by default, without its type: they are laid over that part."""

from __future__ import annotations

from typing import Any

import tfkit
from tfkit.core.component import spell

from ..sampling import looped
from .small import said, small

RECIPE: dict[str, Any] = small(vocab_size="tokenizer", num_layers=1, position="sinusoidal") | {
    "data": {"tokenizer": "character", "train": "docstrings"},
    "objective": {"type": "causal_lm", "block": 32},
    "variants": {"short": {"train.schedule.warmup": 7}},
}
RECIPE["model"]["layer"].pop("residual")


def section(name: str, *sets: str, **options: Any) -> dict[str, Any]:
    value = spell(getattr(tfkit.load_recipe(options.pop("source", RECIPE), sets=sets, **options), name))
    assert isinstance(value, dict)
    return value


def test_set_variant_override_and_file_lay_options_over_the_default_part() -> None:
    expected = section("train", "train.schedule={type: inverse_square_root, warmup: 7}")
    assert section("train") != expected
    assert section("train", "train.schedule.warmup=7") == expected
    assert section("train", "train.schedule={warmup: 7}") == expected
    assert section("train", variant="short") == expected
    assert section("train", overrides={"train.schedule.warmup": 7}) == expected
    assert section("train", source=RECIPE | {"train": {"schedule": {"warmup": 7}}}) == expected
    assert section("train", "train.optimizer.eps=1e-6")["optimizer"]["type"] == "adam"


def test_a_part_of_a_layer() -> None:
    plan = next(tfkit.load_recipe(RECIPE, sets=["model.layer.residual.branch_scale=0.5"]).blueprint().stacks())
    residual = plan.layers[0].residual
    assert residual is not None
    assert (residual.part.part_name, spell(residual)["branch_scale"]) == ("post_norm", 0.5)


@looped(
    ("setting", "expected"),
    [
        ("train.schedule.warmupp=7", "train.schedule.warmupp: unknown option. Did you mean 'warmup'?"),
        ("train.schedule.warmup=-1", "train.schedule.warmup: must be at least 1, got -1"),
        ("model.layer.residual.alpha=2", "model.layer.residual.alpha: unknown option"),
        ("data.test.limit=2", "data.test: type is missing"),  # nothing is there by default
    ],
)
def test_a_wrong_option_is_told_where_it_stands(setting: str, expected: str) -> None:
    assert said(RECIPE, sets=[setting])[0].startswith(f"--set {setting}: {expected}")
