"""What an import reads: a folder of theirs, the family that it is of, and the model that its config.json describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, RecipeError, TfkitError
from tfkit.interop.huggingface.convert import names_of
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.files import CONFIG, folder_of, open_checkpoint, read_config
from tfkit.interop.huggingface.known import family_of
from tfkit.interop.huggingface.special import read_optional
from tfkit.interop.huggingface.tensors import matches
from tfkit.interop.huggingface.watched import Watched
from tfkit.recipe.model import blueprint_of
from tfkit.training.kept import GENERATION


@dataclass(frozen=True)
class Source:
    """What an import begins with: `name` is what the user typed, `folder` where it lies."""

    name: str
    folder: Path
    config: Watched
    generation: Mapping[str, Any]
    family: type[Family]

    @classmethod
    def of(cls, name: str) -> Source:
        """The files of a folder, or of a repository on the hub; raises DataError."""
        folder = folder_of(name)
        config = Watched(read_config(folder))
        return cls(name, folder, config, read_optional(folder / GENERATION), family_of(config))

    def model(self) -> dict[str, Any]:
        """The model section that the config says; raises DataError where its values are none that a family can read."""
        try:
            return self.family.recipe(self.config)
        except RecipeError as error:
            raise self._no_model(error) from None
        except TfkitError:
            raise
        except Exception as error:  # a map takes values to be of their kind, and stumbles over others in any way
            what = f"no config of the family '{self.family.part_name}' ({type(error).__name__}: {error})"
            asked = dict(self.config.asked)
            wrong = [f"{key}: {_short(value)}" for key, value in asked.items() if self._reads_without(key)]
            hint = f"; the model could be read without {' or '.join(wrong)}" if wrong else ""
            raise DataError(f"{self.folder / CONFIG}: {what}{hint}") from error

    def described(self, model: Mapping[str, Any]) -> Blueprint:
        """The architecture that the config says; raises DataError where it cannot be."""
        try:
            return blueprint_of(model)
        except TfkitError as error:
            raise self._no_model(error) from None

    def _no_model(self, error: TfkitError) -> DataError:
        """The same fault, as one of the config."""
        return DataError(f"{self.folder / CONFIG}: describes a model that cannot be built here:\n{error}")

    def _reads_without(self, key: str) -> bool:
        """Whether every value would still be right if `key` were left out, or were missed."""
        config = _without(self.config, key.split("."))
        try:
            self.family.recipe(config)
        except Exception as error:
            return isinstance(error, TfkitError) or error.args == (key.rpartition(".")[2],)
        return config != self.config


def without_weights(read: Source, model: dict[str, Any]) -> list[str]:
    """Leave the `heads` out of `model` that the files have no tensor of; returns their names.

    A config.json does not say whether there is a head beside the point of its files, such as a pooler.
    """
    heads, blueprint = model["heads"], read.described(model)
    with open_checkpoint(read.folder) as checkpoint:
        names = names_of(read.family, checkpoint)
    rules = [rule for rule in read.family.rules_of(blueprint) if any(matches(rule.their_names, name) for name in names)]
    there = [name for rule in rules for name in rule.our_names]
    absent = [head for head in heads if not any(name.startswith(f"heads.{head}.") for name in there)]
    for head in absent:
        del heads[head]
    if not heads:
        del model["heads"]
    return absent


def _without(config: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    below = {first: _without(config[first], rest)} if rest and isinstance(config.get(first), Mapping) else {}
    return {key: value for key, value in config.items() if key != first or rest} | below


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
