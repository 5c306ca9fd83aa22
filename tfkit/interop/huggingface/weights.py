"""The source of an import, the names of its tensors, and the weight file that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError, RecipeError, TfkitError
from tfkit.core.output import some
from tfkit.interop.huggingface.blame import Watched, config_fault, unreadable
from tfkit.interop.huggingface.convert import names_of, to_own
from tfkit.interop.huggingface.family import Family, family_of
from tfkit.interop.huggingface.files import CONFIG, COUNTED, folder_of, open_checkpoint, read_config
from tfkit.interop.huggingface.generation import RULES, STRATEGY
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.strangers import read_optional
from tfkit.interop.huggingface.tensors import matches
from tfkit.models.build import build_model
from tfkit.recipe.model import blueprint_of
from tfkit.runs.kept import GENERATION
from tfkit.runs.weights import Weights, dtype_name, entry_of, warn_not_finite


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


def own_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a state_dict under their first names, and a map of additional names to first names."""
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner = first.setdefault(id(tensor), name)
        if owner == name:
            tensors[name] = tensor
        else:
            tied[name] = owner
    return tensors, tied


def write_weights(read: Source, blueprint: Blueprint, file: Path, dtype: torch.dtype) -> tuple[list[str], int]:
    """Convert and write the weights. Return the names of unused tensors and the number of parameters."""
    own, tied = own_tensors(build_model(blueprint, device="meta"))
    shapes = {name: tensor.shape for name, tensor in own.items()}
    with open_checkpoint(read.folder, dtype) as checkpoint:
        brought = to_own(read.family, checkpoint, shapes, blueprint)
    ordered = {name: brought.tensors[name] for name in shapes}
    _check_numbers(read.folder, own, ordered)
    Weights(ordered, tied, entry_of(blueprint)).save(file)
    return brought.unread, sum(tensor.numel() for name, tensor in own.items() if isinstance(tensor, nn.Parameter))


def _check_numbers(folder: Path, own: Mapping[str, Tensor], brought: Mapping[str, Tensor]) -> None:
    """Raise DataError for integer tensors. Warn about NaN and infinite values."""
    wrong = [
        f"{name} ({dtype_name(tensor)})"
        for name, tensor in brought.items()
        if own[name].is_floating_point() and not tensor.is_floating_point()
    ]
    if wrong:
        raise DataError(f"{folder}: the tensors of {some(wrong)} are not floating-point, so they cannot be weights")
    warn_not_finite(folder, brought)


def check_depth(read: Source, blueprint: Blueprint) -> None:
    """Raise DataError if the model has too many layers, or more layers than the files have tensors."""
    layers = sum(plan.num_layers for plan in blueprint.stacks())
    entries = [entry for plan in blueprint.stacks() for entry in plan.entries]
    apart = entries.count(-1) + len({entry for entry in entries if entry >= 0})  # equal entries share weights
    with open_checkpoint(read.folder) as checkpoint:
        held = len(checkpoint)
    if layers > COUNTED["layer"] or apart > held:
        text = f"describes {layers:,} layers; the limit is {COUNTED['layer']:,}, and the files contain {held:,} tensors"
        raise DataError(f"{read.folder / CONFIG}: {text}")
