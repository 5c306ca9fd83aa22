"""From a recipe to everything that a training loop needs: tokenizer, items, model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.sections import Data, Train
from tfkit.training.changed import Hashes, example_hashes
from tfkit.training.device import check_memory, choose_device, describe
from tfkit.training.feed import VALID, Feed
from tfkit.training.initial import fill_vectors, freeze, start_from
from tfkit.training.objective import Objective
from tfkit.training.progress import Reporter


@dataclass(frozen=True)
class Task:
    """What is trained, and on what; `recipe` has the number of labels where it asks for one.

    `hashes` are those of the examples that come from no file.
    """

    recipe: Recipe
    model: Model
    tokenizer: Tokenizer
    objective: Objective
    settings: Train
    train: Feed
    valid: Feed | None
    hashes: Hashes

    @property
    def trained(self) -> nn.Module:
        """All that has weights to train: the model, and what the objective owns beside it."""
        module = self.objective.module
        return self.model if module is None else nn.ModuleDict({"model": self.model, "objective": module})


def prepare(
    recipe: Recipe,
    reporter: Reporter,
    tokenizer: Tokenizer | None = None,
    initial: bool = True,
    labels: tuple[str, ...] = (),
) -> Task:
    """Read the data and build the model; `tokenizer` and `labels` are the run's own when it is resumed.

    `initial` gives the model the weights that training starts from; a resumed run has better ones. Raises UsageError
    and DataError for what cannot be trained; a model too large for the machine is refused before it is built.
    """
    data, objective = _needed(recipe)
    settings = recipe.train
    device = choose_device(settings.device)
    if not recipe.unknown_vocab and not recipe.unknown_labels:
        _check_size(recipe.blueprint(), settings, device)
    examples = data.train.build().examples()
    tokenizer = tokenizer or _fitted(data, objective, examples)
    recipe = _labelled(recipe, objective, examples, labels)
    blueprint = recipe.blueprint(tokenizer.vocab_size)
    _check_vocabulary(blueprint, tokenizer)
    _check_size(blueprint, settings, device)
    longest = longest_example(blueprint, data)
    train = Feed(objective, objective.prepare(examples, tokenizer, longest), data.batch, settings.seed, device)
    valid, read = None, {"train": examples}
    if data.valid is not None:
        read["valid"] = data.valid.build().examples()
        held_out = objective.prepare(read["valid"], tokenizer, longest)
        valid = Feed(objective, held_out, data.batch, settings.seed, device, VALID)
    model = _model(blueprint, settings, device, tokenizer, reporter, initial)
    objective.attach(model)
    _announce(model, train, valid, len(examples), reporter)
    _tell_unused(blueprint, tokenizer, reporter)
    return Task(recipe, model, tokenizer, objective, settings, train, valid, example_hashes(data, read))


def _needed(recipe: Recipe) -> tuple[Data, Objective]:
    if recipe.data is None or recipe.objective is None:
        missing = " and ".join(name for name in ("data", "objective") if getattr(recipe, name) is None)
        raise UsageError(f"{recipe.name}: to be trained, a recipe says its {missing}; this one describes a model only")
    return recipe.data, recipe.objective.build()


def _fitted(data: Data, objective: Objective, examples: Sequence[Mapping[str, str]]) -> Tokenizer:
    """The tokenizer, learned from every field that the objective reads."""
    there = examples[0].keys() if examples else ()
    missing = [field for field in objective.fields if field not in there]
    if missing:
        raise DataError(
            f"data.train: {objective.part_name} reads {' and '.join(objective.fields)}, and the examples have "
            f"{' and '.join(there) or 'nothing'}"
        )
    fields = objective.fields if objective.tokenized is None else objective.tokenized
    tokenizer: Tokenizer = data.tokenizer.build().fit(_texts(examples, fields))
    return tokenizer


def _texts(examples: Sequence[Mapping[str, str]], fields: Sequence[str]) -> Iterator[str]:
    return (example[field] for example in examples for field in fields if field in example)


def _labelled(
    recipe: Recipe, objective: Objective, examples: Sequence[Mapping[str, str]], labels: tuple[str, ...]
) -> Recipe:
    """The recipe with the number of labels; the objective knows them from here on."""
    objective.labels = labels
    objective.learn(examples)
    if recipe.unknown_labels and not objective.labels:
        raise DataError(f"data.train: no example has a label, so {objective.part_name} has no classes")
    return recipe.labelled(len(objective.labels))


def _check_vocabulary(blueprint: Blueprint, tokenizer: Tokenizer) -> None:
    for plan in blueprint.stacks():
        if plan.vocab_size is not None and plan.vocab_size < tokenizer.vocab_size:
            raise UsageError(
                f"the {plan.side}'s vocab_size is {plan.vocab_size}, and the tokenizer has {tokenizer.vocab_size} "
                "tokens; write vocab_size: tokenizer"
            )


def _check_size(blueprint: Blueprint, settings: Train, device: torch.device) -> None:
    """Refuse a wrong `freeze` and a model too large, on a model that takes no memory."""
    model = build_model(blueprint, device="meta")
    freeze(model, settings.freeze)
    check_memory(model, device)


def longest_example(blueprint: Blueprint, data: Data) -> int | None:
    """The most tokens an example may have: what the model and data.batch.length allow."""
    bounds = [data.batch.length, *(plan.max_length for plan in blueprint.stacks())]
    return min((bound for bound in bounds if bound is not None), default=None)


def _model(
    blueprint: Blueprint, settings: Train, device: torch.device, tokenizer: Tokenizer, reporter: Reporter, initial: bool
) -> Model:
    model = build_model(blueprint, device=device, seed=settings.seed)
    if initial:
        fill_vectors(model, tokenizer, reporter)
        if settings.initial is not None:
            start_from(model, settings.initial, reporter, tokenizer)
    freeze(model, settings.freeze)
    return model


def _tell_unused(blueprint: Blueprint, tokenizer: Tokenizer, reporter: Reporter) -> None:
    """Say how many ids of the model are no token."""
    size = blueprint.last.vocab_size or 0
    unused = max(0, size - tokenizer.vocab_size) + len(tokenizer.gaps)
    if unused:
        reporter.say(f"{unused:,} of {size:,} ids are no token of the tokenizer: they are never written")


def _announce(model: Model, train: Feed, valid: Feed | None, examples: int, reporter: Reporter) -> None:
    """Say what is about to be trained."""
    count = sum(parameter.numel() for parameter in model.parameters())
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    stays = f", {frozen:,} of them frozen" if frozen else ""
    reporter.say(f"{count:,} parameters{stays}, on {describe(train.device)}")
    held_out = "no validation set" if valid is None else f"{len(valid.items):,} rows of validation"
    reporter.say(f"{examples:,} examples, {len(train.items):,} rows of training, {held_out}")
    reporter.say(str(train))
