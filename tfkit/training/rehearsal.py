"""Checks, before training, that metrics and text generation will work afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, RecipeError, RunError, UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.logits.guided import Guided
from tfkit.generation.rules import bound_rules
from tfkit.generation.search import Search, step_of
from tfkit.models import build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.section_rules import writes
from tfkit.training.folder import RESOLVED, WEIGHTS, RunFolder
from tfkit.training.metric import Metric
from tfkit.training.scoring import chosen_metrics
from tfkit.training.splits import Split, learned_from
from tfkit.training.supply import saved_recipe
from tfkit.training.vocabularies import load_tokenizer


def rehearse(
    recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, splits: Mapping[str, Split], longest: int | None
) -> None:
    """Raise RecipeError, UsageError, RunError or DataError if evaluation or generation would fail after training."""
    data = recipe.data
    if data is None:
        return
    for split in (splits[name] for name in ("test", "longer") if name in splits):
        if not split.examples:
            raise DataError(f"{split.corpus.name()}: contains no examples")
        if recipe.train.metrics:
            split.items(tokenizer, longest, data.batch)
    for measured in (splits[name] for name in data.measured() if recipe.train.metrics):
        for metric in chosen_metrics(recipe.train.metrics, measured.objective):
            _check_metric(metric, measured, splits["train"])
    if recipe.train.validate.metrics and "valid" in splits:
        for metric in chosen_metrics(recipe.train.validate.metrics, splits["valid"].objective):
            _check_metric(metric, splits["valid"], splits["train"])
    if writes(blueprint):
        _check_writing(recipe, blueprint, tokenizer, learned_from(data, splits["train"]))


def _check_metric(metric: Metric, measured: Split, train: Split) -> None:
    """Check that the metric accepts all references and labels."""
    if metric.reads == "text":
        for split in dict.fromkeys([measured, train] if train.objective.rows.labels else [measured]):
            split.check_references(metric)


def _check_writing(recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, learned: str) -> None:
    """Check the generation rules with the tokenizer, and the strategy with the rules, model and draft model."""
    settings = recipe.generate
    for slot in ("logits", "stop"):
        for place, config in enumerate(getattr(settings, slot)):
            with _at(recipe, f"generate.{slot}[{place}]", learned):
                bound_rules(*([config], []) if slot == "logits" else ([], [config]), tokenizer)
    with _at(recipe, "generate.strategy", learned):
        rules = bound_rules(settings.logits, settings.stop, tokenizer)
        strategy = settings.strategy.build()
        strategy.bind(tokenizer, _unread)
        strategy.check(Search(build_model(blueprint, device="meta"), [], [], rules, step=step_of(settings)))
        for rule in rules.logits:
            if blueprint.encoder is not None and isinstance(rule, Guided):
                rule.check_begin(first=True)  # without a prompt, the text starts at the first token


@contextlib.contextmanager
def _at(recipe: Recipe, path: str, learned: str) -> Iterator[None]:
    """Convert UsageError to RecipeError at this path."""
    try:
        yield
    except UsageError as error:
        text = str(error).removeprefix(f"{path.partition('[')[0]}: ").removeprefix(f"{path}.")
        raise RecipeError([recipe.fault(path, f"{text} ({learned})")]) from None


def _unread(path: str) -> tuple[StepDecoder, Tokenizer]:
    """Build the model of a run on meta, without weights, and load its tokenizer."""
    folder = RunFolder(Path(path))
    for name in (RESOLVED, WEIGHTS):
        if not (folder / name).is_file():
            raise RunError(f"{folder / name}: is missing")
    tokenizer = load_tokenizer(folder)
    recipe = saved_recipe(folder)
    blueprint = recipe.blueprint(tokenizer.sizes if recipe.unknown_vocab else None)
    return StepDecoder(build_model(blueprint, "meta")), tokenizer
