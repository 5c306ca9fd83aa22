"""Requirements between sections that are independent of their parts."""

from __future__ import annotations

from collections.abc import Iterator

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Doubt, Problem
from tfkit.core.facts import Longest, RecipeFacts
from tfkit.core.slots import ObjectiveFacts
from tfkit.recipe.settings.contradictions import serves
from tfkit.recipe.settings.frozen import freeze_problems
from tfkit.recipe.settings.groups import group_problems, parametrization_problems
from tfkit.recipe.settings.sections import Data, Generate, Mean, Train
from tfkit.recipe.settings.teaching import initial_problems, teacher_problems


def longest_example(blueprint: Blueprint, data: Data | None) -> Longest | None:
    """Return the maximum number of tokens of an example: the limits of the model and data.batch.length."""
    length = None if data is None else data.batch.length
    bounds = [] if length is None else [Longest(length, "data.batch.length")]
    bounds += [
        Longest(plan.max_length, f"model.{_side(blueprint, plan)}max_length")
        for plan in blueprint.stacks()
        if plan.max_length is not None
    ]
    return min(bounds, default=None, key=lambda bound: bound.tokens)


def _side(blueprint: Blueprint, plan: StackPlan) -> str:
    return f"{plan.side}." if blueprint.encoder is not None and blueprint.decoder is not None else ""


def facts_of(
    blueprint: Blueprint | None,
    vocab_size: int | None,
    data: Data | None,
    objective: ObjectiveFacts.Config | None,
    train: Train,
    generate: Generate,
) -> RecipeFacts:
    """Collect the facts that parts query about other sections; `vocab_size` is the model's, if known."""
    tokenizer = None if data is None else data.target_tokenizer
    return RecipeFacts(
        blueprint=blueprint,
        objective=objective,
        tokenizer=tokenizer,
        tokenizers={} if data is None else data.tokenizers(),
        reads_data=data is not None,
        longest=None if blueprint is None else longest_example(blueprint, data),
        packed=data is not None and data.batch.pack,
        batch_tokens=None if data is None else data.batch.tokens,
        vocab_size=vocab_size,
        reads_vectors=data is not None and "vectors" in data.fields(),
        most_tokens=None if tokenizer is None else tokenizer.vocabulary_bound,
        steps=train.steps,
        logits=generate.logits,
    )


def section_problems(
    blueprint: Blueprint | None,
    data: Data | None,
    objective: ObjectiveFacts.Config | None,
    train: Train,
    generate: Generate,
) -> Iterator[Problem]:
    """Yield contradictions that are independent of the parts; `blueprint` is None if the model has faults."""
    if data is not None:
        yield from _data_problems(data)
        yield from _without_valid(train, data) if data.valid is None else ()
        yield from _tokenizer_problems(data, objective)
    yield from step_problems(train, data)
    if blueprint is not None:
        yield from _generate_problems(generate, blueprint)
        yield from freeze_problems(train.freeze, blueprint, objective)
        yield from group_problems(train, blueprint)
        yield from parametrization_problems(train, blueprint)
        yield from initial_problems(train, blueprint)
        yield from teacher_problems(train, blueprint, objective)


def _data_problems(data: Data) -> Iterator[Problem]:
    if data.batch.pack and data.batch.length is None:
        yield Problem("length", "packed rows have a length; say here how many tokens", at="data.batch")


def _tokenizer_problems(data: Data, objective: ObjectiveFacts.Config | None) -> Iterator[Problem]:
    """Require a tokenizer if texts are read, refuse it otherwise."""
    given = data.fields()
    texts = given - {"vectors"} if objective is None else objective.part.rows_type.text_fields(given)
    is_read = bool(texts) or "vectors" not in given
    if data.tokenizer is None and is_read:
        yield Problem("", "needs the option 'tokenizer'", at="data")
    if data.tokenizer is not None and not is_read and objective is not None:
        text = f"'{objective.part.part_name}' of vectors reads no text; leave the tokenizer out"
        yield Problem("", text, at="data.tokenizer")


def step_problems(train: Train, data: Data | None) -> Iterator[Problem]:
    """Yield settings that have no effect within the steps; none while `train.epochs` is not converted."""
    if train.steps is None:
        return
    checkpoints = _times(train.steps, train.checkpoint_every)
    if isinstance(train.keep, Mean) and train.keep.mean > checkpoints:
        text = f"the mean is over {train.keep.mean} checkpoints, and {train.steps} steps make {checkpoints}"
        yield Doubt("keep.mean", f"{text}; say fewer, or a smaller checkpoint_every", at="train")
    if data is None or data.valid is None:
        return
    validations = _times(train.steps, train.evaluate_every)
    if _is_given(train, "evaluate_every") and train.evaluate_every > train.steps:
        text = f"there are {train.steps} steps, so there is one validation, after the last"
        yield Doubt("evaluate_every", text, at="train")
    if train.patience is not None and train.patience >= validations:
        text = f"training never stops early: it makes {validations} validations"
        yield Doubt("patience", f"{text}; say fewer, or a smaller evaluate_every", at="train")


def _without_valid(train: Train, data: Data) -> Iterator[Problem]:
    if train.patience is not None:
        text = "counts validations without a better loss, and there is no data.valid"
        yield Problem("patience", text, at="train")
    if _is_given(train, "validate"):
        yield Problem("validate", "there is no data.valid to measure on", at="train")
    if _is_given(train, "evaluate_every"):
        yield Doubt("evaluate_every", "nothing is validated: there is no data.valid", at="train")
    if train.metrics and not data.measured():
        text = "are measured on data.test or data.valid when training ends, and there is neither"
        yield Doubt("metrics", text, at="train")


def _generate_problems(generate: Generate, blueprint: Blueprint) -> Iterator[Problem]:
    """Yield settings of generation without effect."""
    given = [name for name in Generate.model_fields if _is_given(generate, name)]
    if not writes(blueprint):
        text = "changes nothing: this model writes no texts, as it has no decoder with a head such as language_model"
        yield from (Doubt(name, text, at="generate") for name in given)
    elif blueprint.encoder is None and "length_ratio" in given:
        text = "changes nothing: there is no source whose length it could be a ratio to; say max_new_tokens"
        yield Doubt("length_ratio", text, at="generate")


def writes(blueprint: Blueprint) -> bool:
    """True if the model generates text: its decoder has a head with logits per token."""
    head = blueprint.head
    return blueprint.decoder is not None and head is not None and serves(head.part, ("language_model", "masked_lm"))


def _is_given(section: Train | Generate, name: str) -> bool:
    """True if the section changes the default."""
    return bool(getattr(section, name) != getattr(type(section)(), name))


def _times(steps: int, every: int) -> int:
    """Return the number of occurrences of an event every `every` steps and at the last."""
    return -(-steps // every)
