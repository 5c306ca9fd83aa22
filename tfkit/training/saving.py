"""Saving of a model, its recipe and its tokenizer as a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from tfkit.core.component import spell
from tfkit.core.errors import UsageError
from tfkit.data.tokenizer import Tokenizer
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.views.resolved import model_values
from tfkit.runs.claim import differences
from tfkit.runs.folder import ENVIRONMENT, RECIPE, RESOLVED, TOKENIZER, WEIGHTS, RunFolder, save_labels
from tfkit.runs.history import environment
from tfkit.runs.record import record_all
from tfkit.runs.supply import NEEDS, recorded
from tfkit.runs.weights import Weights, dtype_name
from tfkit.storage.files import write_json
from tfkit.storage.folders import target_folder, whole_folder
from tfkit.training.setup import check_vocabulary


def save_run(
    model: Model,
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    out: str | Path,
    labels: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Write a run folder. Raise UsageError if model and recipe differ, RunError if the folder is occupied.

    `labels` name the classes of the head in the order of the logits. `force` renames an existing run to NAME.old.
    """
    _check_given(model, recipe, tokenizer)
    recipe = _labelled(recipe, labels)
    size = None if tokenizer is None or not recipe.unknown_vocab else tokenizer.vocab_size
    _check_model(model, recipe, size)
    if tokenizer is not None:
        check_vocabulary(recipe, model.blueprint, tokenizer, "the tokenizer saved with the model")
    goal = target_folder(out, "tfkit run", (ENVIRONMENT, RESOLVED), force)
    resolved = recipe.resolved(size)
    needs = recorded(recipe, goal.path, size)
    known = environment(recipe.train.seed, next(model.parameters()).device) | {"recipe": recipe.name}
    with whole_folder(goal) as folder:
        (folder / RESOLVED).write_text(resolved, encoding="utf-8", newline="\n")
        (folder / RECIPE).write_text(recipe.text or resolved, encoding="utf-8", newline="\n")
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER)
        save_labels(RunFolder(folder), labels)
        Weights.of(model).save(folder / WEIGHTS)
        write_json(folder / ENVIRONMENT, known | ({NEEDS: needs} if needs else {}))
        record_all(folder)
    return goal.path


def _check_given(model: object, recipe: Recipe, tokenizer: object) -> None:
    """Raise UsageError for a model without weights, or for a tokenizer that is missing or not tfkit's."""
    if not isinstance(model, Model):
        children = dict(model.named_children()) if isinstance(model, nn.Module) else {}
        inside = "".join(f"; pass its .{name}" for name, child in children.items() if isinstance(child, Model))
        raise UsageError(f"save requires a model from tfkit.build, got a {type(model).__name__}{inside}")
    empty = next((name for name, tensor in model.state_dict().items() if tensor.is_meta), None)
    if empty is not None:
        raise UsageError(f"the model has no weights: {empty} is on device meta")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise UsageError(
            f"tokenizer must be a tfkit.data.tokenizer.Tokenizer, such as run.tokenizer, or None; got a "
            f"{type(tokenizer).__name__}"
        )
    if tokenizer is None and recipe.data is not None:
        raise UsageError(f"{recipe.fault('data', 'requires its tokenizer: pass it to save')}")


def _labelled(recipe: Recipe, labels: Sequence[str]) -> Recipe:
    """Return the recipe with the number of labels filled in. Raise UsageError for missing or duplicate labels."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise UsageError(f"labels must be a list of strings, got {labels!r}")
    if len(set(labels)) < len(labels):
        raise UsageError(f"labels contains duplicates: {', '.join(labels)}")
    if recipe.unknown_labels and not labels:
        raise UsageError(f"{recipe.name}: num_classes is the number of labels; pass labels=[...] to save")
    return recipe.labelled(len(labels))


def _check_model(model: Model, recipe: Recipe, size: int | None) -> None:
    """Raise UsageError if a tensor or setting of the model differs from the recipe's. Name the first difference."""
    blueprint = recipe.blueprint(size)
    tensors, expected = model.state_dict(), build_model(blueprint, device="meta").state_dict()
    for name in [*expected, *tensors]:
        if name not in tensors or name not in expected:
            owner, other = ("recipe", "model") if name in expected else ("model", "recipe")
            raise UsageError(f"the model does not match the recipe: {name} is in the {owner} but not in the {other}")
        one, two = tensors[name], expected[name]
        if one.shape != two.shape or one.is_floating_point() != two.is_floating_point():
            texts = [f"{list(tensor.shape)} ({dtype_name(tensor)})" for tensor in (one, two)]
            raise UsageError(f"the model does not match the recipe: {name} is {texts[0]}, but {texts[1]} in the recipe")
    settings, expected_settings = (spell(model_values(each)) for each in (model.blueprint, blueprint))
    for line in differences(settings, expected_settings, "model", ("model", "recipe")):
        raise UsageError(f"the model does not match the recipe: {line}")
