"""The names of tfkit itself, and what Python shows of a recipe, a model and a run."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.cli.recipes import _summary
from tfkit.components.feedforward import FeedForward
from tfkit.components.residual import Branch, PreNorm
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus.drawn import Phrases
from tfkit.recipe.compose import shipped_recipes

from .sampling import looped


def test_every_public_name_is_there_and_typed() -> None:
    assert all(hasattr(tfkit, name) for name in tfkit.__all__)
    stub = ast.parse(Path(tfkit.__file__).with_suffix(".pyi").read_text())
    typed = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed | {"__version__"} == set(tfkit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tfkit.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_build_takes_a_name_a_mapping_or_a_recipe() -> None:
    recipe = tfkit.load_recipe("gpt2", overrides={"model.num_layers": 1, "model.d_model": 24, "model.vocab_size": 50})
    model = tfkit.build(recipe, seed=1)
    again = tfkit.build(recipe, seed=1)
    assert torch.equal(model.decoder.embedding.tokens.weight, again.decoder.embedding.tokens.weight)  # type: ignore[union-attr]
    assert tfkit.build("gpt2", device="meta", dtype=torch.bfloat16).head.output.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_build_refuses_a_vocabulary_that_is_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Phrases, "read", lambda *_: pytest.fail("the corpus is read"))
    with pytest.raises(tfkit.UsageError, match="depends on an untrained tokenizer"):
        tfkit.build("translate-numbers")


def test_parts_names_what_stands_in_a_slot() -> None:
    assert "multi_head" in tfkit.parts("attention")
    with pytest.raises(tfkit.UsageError, match="Did you mean 'attention'"):
        tfkit.parts("atention")


def test_build_takes_the_keywords_of_load_recipe() -> None:
    model = tfkit.build("gpt2", device="meta", overrides={"model.num_layers": 1}, sets=["model.vocab_size=50"])
    assert (model.blueprint.last.num_layers, model.blueprint.last.vocab_size) == (1, 50)


@pytest.mark.parametrize("function", ["build", "train"])
def test_an_unknown_keyword_is_refused_with_the_nearest(function: str) -> None:
    with pytest.raises(tfkit.UsageError, match=f"{function} has no argument 'override'; did you mean 'overrides'"):
        getattr(tfkit, function)("gpt2", override={"model.num_layers": 1})


@looped(
    "wrong",
    [{"overrides": "a"}, {"overrides": [1]}, {"sets": [1]}, {"sets": 1}, {"variant": [None]}, {"variant": 2},
     {"imports": 3}, {"imports": [3]}, {"dtype": "float32"}, {"dtype": torch.int32}],
)  # fmt: skip
def test_a_keyword_of_another_type_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(tfkit.UsageError, match=f"^{next(iter(wrong))} "):
        tfkit.build("gpt2", **{"device": "meta", **wrong})


def test_one_import_is_given_as_several_are() -> None:
    with pytest.raises(tfkit.RecipeError, match="nowhere"):
        tfkit.load_recipe("gpt2", imports="nowhere.py")


def test_a_recipe_that_is_loaded_is_never_changed_silently() -> None:
    recipe = tfkit.load_recipe("gpt2")
    with pytest.raises(tfkit.UsageError, match="is already loaded"):
        tfkit.build(recipe, overrides={"model.num_layers": 1})


@looped("seed", [-1, 2**70, True, 1.5])
def test_a_seed_is_a_whole_number(seed: int) -> None:
    with pytest.raises(tfkit.UsageError, match="seed must be a whole number from 0 to"):
        tfkit.build("gpt2", device="meta", seed=seed)


def test_an_own_part_of_another_width_is_refused_before_it_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY._parts, "feedforward", dict(REGISTRY.load("feedforward")))

    @tfkit.register("feedforward", "twice_as_wide")
    class Twice(FeedForward):
        def forward(self, x: torch.Tensor, context: tfkit.Context) -> torch.Tensor:
            return torch.cat((x, x), dim=-1)

    wrong = r"feedforward 'twice_as_wide' of .*test_api.*: returns .*, 128. for an input of .*, 64.; .* shape of"
    changes = {"model.d_model": 64, "model.vocab_size": 600, "model.layer.feedforward": {"type": "twice_as_wide"}}
    with pytest.raises(tfkit.UsageError, match=wrong):
        tfkit.train("translate-numbers", out="nowhere", overrides=changes, progress=False)
    with pytest.raises(tfkit.UsageError, match=wrong):
        _summary(tfkit.load_recipe("translate-numbers", changes))  # of tfkit check
    monkeypatch.setitem(REGISTRY._parts, "residual", dict(REGISTRY.load("residual")))

    @tfkit.register("residual", "halves")
    class Halves(PreNorm):
        def forward(self, x: torch.Tensor, branches: Sequence[Branch]) -> torch.Tensor:
            return x + sum(one(x)[..., : x.shape[-1]] for one in branches)

    assert "parameters" in _summary(
        tfkit.load_recipe("translate-numbers", changes | {"model.layer.residual": "halves"})
    )

    @tfkit.register("residual", "leaves_out")
    class LeavesOut(PreNorm):
        def forward(self, x: torch.Tensor, branches: Sequence[Branch]) -> torch.Tensor:
            return torch.cat((x[:, :1], x[:, 1:] + sum(one(one.norm(x[:, 1:])) for one in branches)), dim=1)

    wrong = r"residual 'leaves_out' of .*: calls attention 'multi_head' with 3 of 4 tokens, but masks"
    with pytest.raises(tfkit.UsageError, match=wrong):
        _summary(tfkit.load_recipe("gpt2", {"model.layer.residual": "leaves_out"}))


# --- what Python shows


SHIPPED = sorted(name for name, path in shipped_recipes().items() if path.parent.name != "studies")


def fits(text: str) -> bool:
    lines = text.splitlines()
    return 2 <= len(lines) <= 10 and all(len(line) <= 165 for line in lines)


@pytest.mark.parametrize("names", [SHIPPED[place::8] for place in range(8)], ids=range(8))
def test_every_recipe_and_blueprint_is_at_most_ten_lines(names: list[str]) -> None:
    for name in names:
        recipe = tfkit.load_recipe(name)
        for text in (repr(recipe), repr(recipe.blueprint())):
            assert fits(text) and name in text, text


def test_a_recipe_says_its_parts() -> None:
    recipe = tfkit.load_recipe("translate-numbers", overrides={"train.steps": 7})
    text = repr(recipe)
    for words in ("with train.steps=7", "encoder: 3 layers, d_model 128", "3 x post_norm", "attention: multi_head",
                  "cross_attention", "language_model", "training: seq2seq, 7 steps, adam"):  # fmt: skip
        assert words in text, text
    assert str(recipe) == text


def test_a_model_is_short_and_its_modules_are_torch_s() -> None:
    model = tfkit.build(tfkit.load_recipe("bert-base", overrides={"model.num_layers": 2}), device="meta")
    assert fits(repr(model))
    assert "parameters, float32 on meta" in repr(model) and "masked_lm" in repr(model)
    assert repr(model.encoder.layers[0]).count("\n") > 10  # type: ignore[union-attr,index]


def test_a_run_and_the_html_of_its_recipe(tmp_path: Path) -> None:
    run = tfkit.Run(tmp_path / "<b>\x1b[2J", tfkit.load_recipe("translate-numbers"))
    assert fits(repr(run)) and "\x1b" not in repr(run) and "training: " in repr(run)
    html = run.recipe._repr_html_()
    assert html.startswith("<pre>&lt;R") and "&gt;</pre><img" in html and "<b>" not in html and "<svg" not in html
