"""The source of an import: its folder, its family, and the model described by config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, RecipeError, TfkitError
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.blame import config_fault, unreadable
from tfkit.interop.huggingface.convert import names_of
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.files import CONFIG, folder_of, open_checkpoint, read_config
from tfkit.interop.huggingface.generation import RULES, STRATEGY
from tfkit.interop.huggingface.known import family_of
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.special import read_optional
from tfkit.interop.huggingface.tensors import matches
from tfkit.interop.huggingface.watched import Watched
from tfkit.recipe.model import blueprint_of
from tfkit.training.kept import GENERATION


@dataclass(frozen=True)
class Source:
    """The source of an import: `name` as typed by the user, and its `folder`."""

    name: str
    folder: Path
    config: Watched
    generation: ConfigJson
    family: type[Family]

    @classmethod
    def of(cls, name: str) -> Source:
        """Open a folder or a hub repository. Raise DataError if config.json is missing or not supported."""
        folder = folder_of(name)
        config = Watched(read_config(folder))
        try:
            family = family_of(config)
        except DataError as error:
            raise _located(error, folder) from None
        return cls(name, folder, config, read_optional(folder / GENERATION), family)

    def model(self) -> Tree:
        """Return the `model:` section for the config. Raise DataError for invalid values."""
        try:
            return self.family.recipe(self.config)
        except RecipeError as error:
            raise self.fault(error) from None
        except DataError as error:
            raise _located(error, self.folder) from None
        except Exception as error:  # families assume values of valid types and may raise any exception for others
            raise unreadable(self.folder / CONFIG, self.family, self.config, error) from error

    def described(self, model: ModelSection) -> Blueprint:
        """Return the blueprint of a `model:` section. Raise DataError if it is invalid."""
        try:
            return blueprint_of(model)
        except TfkitError as error:
            raise self.fault(error) from None

    def fault(self, error: TfkitError) -> DataError:
        """Return an error in the recipe as an error in config.json."""
        return config_fault(self.folder / CONFIG, self.family, self.config, error)

    def generation_fault(self, error: RecipeError) -> DataError:
        """Return an error in the recipe's `generate:` as an error in the source files."""
        options = {key: option for key, (_, _, option) in RULES.items()} | STRATEGY | {"max_length": "max_new_tokens"}
        named = {option: key for key, option in options.items() if key in {**self.config, **self.generation}}
        lines = []
        for fault in error.faults:
            option = fault.path.rpartition(".")[2].partition("[")[0]
            key = named.get(option, option)
            file = GENERATION if key in self.generation else CONFIG
            lines.append(f"{self.folder / file}: {key}: {fault.message}")
        return DataError("\n".join(lines))


def without_weights(read: Source, model: Tree) -> list[str]:
    """Remove the `heads` from `model` that have no weights in the files. Return their names.

    config.json does not list secondary heads such as a pooler.
    """
    heads, blueprint = model["heads"], read.described(model)
    with open_checkpoint(read.folder) as checkpoint:
        names = names_of(read.family, checkpoint)
    rules = [
        rule for rule in read.family.rules_of(blueprint) if any(matches(rule.checkpoint_names, name) for name in names)
    ]
    available = [name for rule in rules for name in rule.own_names]
    absent = [head for head in heads if not any(name.startswith(f"heads.{head}.") for name in available)]
    for head in absent:
        del heads[head]
    if not heads:
        del model["heads"]
    return absent


def _located(error: DataError, folder: Path) -> DataError:
    """Return the error with the full path of config.json."""
    text, file = str(error), str(folder / CONFIG)
    return DataError(text.replace(CONFIG, file, 1) if CONFIG in text else f"{file}: {text}")
