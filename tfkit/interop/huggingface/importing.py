"""Their folder -> a run of ours: config.json becomes a recipe, their tensors ours, and the tokenizer comes along."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import DataError, RecipeError, TfkitError
from tfkit.core.files import write_json, write_text
from tfkit.core.folders import named
from tfkit.core.output import some
from tfkit.core.registry import is_shipped
from tfkit.data.tokenizer import Tokenizer
from tfkit.interop.huggingface.classes import class_names
from tfkit.interop.huggingface.convert import RenamedTensors, names_of, to_ours
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.files import CONFIG, COUNTED, folder_of, open_checkpoint, read_config
from tfkit.interop.huggingface.folder import target_folder, whole_folder
from tfkit.interop.huggingface.known import family_of
from tfkit.interop.huggingface.recipe import recipe_text, shortened
from tfkit.interop.huggingface.special import (
    GENERATION,
    TOKENIZER_CONFIG,
    TOKENS_MAP,
    generate_section,
    read_optional,
    special_ids,
    token_ids,
)
from tfkit.interop.huggingface.strangers import CODE, file_in, mapping_in, text_in, without_code
from tfkit.interop.huggingface.tensors import matches
from tfkit.interop.huggingface.tokenizer import tokenizer_of, unreadable
from tfkit.interop.huggingface.watched import Watched
from tfkit.models.build import build_model
from tfkit.recipe.load import Recipe, load_saved
from tfkit.recipe.model import blueprint_of
from tfkit.training.contents import run_files
from tfkit.training.environment import environment
from tfkit.training.folder import ENVIRONMENT, RECIPE, RESOLVED, TOKENIZER, WEIGHTS, RunFolder
from tfkit.training.labels import save_labels
from tfkit.training.needs import NEEDS, parts_in, recorded
from tfkit.training.record import record_all
from tfkit.training.weights import Weights, dtype_name, warn_not_finite

THEIRS = "huggingface"  # the folder in a run that keeps their small files as they were, for the way back
SMALL = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENS_MAP, "chat_template.jinja")
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
            raise self.no_model(error) from None
        except TfkitError:
            raise
        except Exception as error:  # a map takes values to be of their kind, and stumbles over others in any way
            what = f"no config of the family '{self.family.part_name}' ({type(error).__name__}: {error})"
            asked = dict(self.config.asked)
            wrong = [f"{key}: {_short(value)}" for key, value in asked.items() if self._reads_without(key)]
            hint = f"; the model could be read without {' or '.join(wrong)}" if wrong else ""
            raise DataError(f"{self.folder / CONFIG}: {what}{hint}") from error

    def no_model(self, error: TfkitError) -> DataError:
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


@dataclass
class ImportedModel:
    """What became of an import."""

    run: Path
    family: str
    head_class: str
    parameters: int
    dtype: str
    tokenizer: Tokenizer | None
    notes: list[str] = field(default_factory=list)


def import_model(
    source: str, out: str | Path | None = None, dtype: str = "float32", force: bool = False, imports: Sequence[str] = ()
) -> ImportedModel:
    """Bring a folder of theirs, or a repository on the hub, into a run's folder, by default runs/<its name>.

    `dtype` is that of the stored weights; `force` replaces a run that is there; `imports` is what --import gave. Raises
    DataError for what cannot be brought in, RunError for a folder that may not be written; nothing is left then.
    """
    read = Source.of(source)
    if out is None:
        out = Path("runs") / (read.folder.resolve().name if _is_path(source) else _last(source))
    goal = target_folder(out, "run of tfkit", (ENVIRONMENT, RESOLVED), _written, force)
    target = goal.path
    tokenizer = tokenizer_of(read.folder, token_ids(read.config, read.generation))
    model = read.model()
    told = _as_stored(read, model)
    absent = without_weights(read, model) if model.get("heads") else []
    text = _text(read, model, tokenizer, target)
    with whole_folder(goal) as folder:
        (folder / RECIPE).write_text(text, encoding="utf-8", newline="\n")
        recipe = _loaded(folder / RECIPE, imports, read, model)
        _check_depth(read, recipe.blueprint())
        unread, parameters = _weights(read, recipe.blueprint(), folder / WEIGHTS, DTYPES[dtype])
        (folder / RESOLVED).write_text(_resolved(recipe, target), encoding="utf-8", newline="\n")
        write_json(folder / ENVIRONMENT, _environment(read, recipe, target, dtype))
        save_labels(RunFolder(folder), class_names(read.config, recipe.blueprint()))
        named = _keep(read, folder)
        if tokenizer is not None:
            tokenizer.save(folder / TOKENIZER)
        record_all(folder)
    made = ImportedModel(
        target, read.family.part_name, read.family.head_class(read.config), parameters, dtype, tokenizer
    )
    made.notes += told
    made.notes += [f"{name} names code ({', '.join(CODE)}), which is neither run nor kept" for name in named]
    made.notes += [f"without {name}, which the files have no weights of" for name in absent]
    made.notes += _notes(read, recipe.blueprint(), tokenizer, unread)
    return made


def _written(folder: Path) -> Iterator[Path]:
    """The files in a folder that an import writes, or training."""
    yield from run_files(folder)
    yield from named(folder / THEIRS, SMALL)


def own_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors that a model saves, each once under its first name; and the other names of those with several."""
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


def _check_depth(read: Source, blueprint: Blueprint) -> None:
    """Raise DataError for more layers than any model has, or than the files have tensors: none is built before that."""
    layers = sum(plan.num_layers for plan in blueprint.stacks())
    entries = [entry for plan in blueprint.stacks() for entry in plan.entries]
    apart = entries.count(-1) + len({entry for entry in entries if entry >= 0})  # those of one entry are one
    with open_checkpoint(read.folder) as checkpoint:
        held = len(checkpoint)
    if layers > COUNTED["layer"] or apart > held:
        text = f"describes {layers:,} layers; {COUNTED['layer']:,} are taken, and the files hold {held:,} tensors"
        raise DataError(f"{read.folder / CONFIG}: {text}")


def _as_stored(read: Source, model: dict[str, Any]) -> list[str]:
    """Say in `model` what only the tensors tell; returns what to tell of it."""
    with open_checkpoint(read.folder) as checkpoint:
        return read.family.to_stored(model, RenamedTensors(read.family, checkpoint))


def without_weights(read: Source, model: dict[str, Any]) -> list[str]:
    """Leave the `heads` out of `model` that the files have no tensor of; returns their names.

    A config.json does not say whether there is a head beside the point of its files, such as a pooler.
    """
    heads, blueprint = model["heads"], _described(read, model)
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


def _described(read: Source, model: Mapping[str, Any]) -> Blueprint:
    """The architecture that the config says; raises DataError where it cannot be."""
    try:
        return blueprint_of(model)
    except TfkitError as error:
        raise read.no_model(error) from None


def _without(config: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    first, *rest = path
    below = {first: _without(config[first], rest)} if rest and isinstance(config.get(first), Mapping) else {}
    return {key: value for key, value in config.items() if key != first or rest} | below


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_path(source: str) -> bool:
    return Path(source).is_dir()


def _last(source: str) -> str:
    return source.rpartition("/")[2]


def _text(read: Source, model: dict[str, Any], tokenizer: Tokenizer | None, target: Path) -> str:
    """The recipe, with what to type in its header."""
    short = shortened(model)
    ids = special_ids(read.config, read.generation, _vocab_size(model))
    size = 0 if tokenizer is None else tokenizer.vocab_size
    sections = {"generate": generate_section(read.config, read.generation, size)} if _writes(model) else {}
    summary = (read.family.__doc__ or read.family.part_name).strip().splitlines()[0].rstrip(".")
    header = [
        f"{summary}.",
        f"Imported from {read.name} ({read.family.head_class(read.config)}); the weights lie beside this recipe.",
        f"Type: tfkit show {target}",
    ]
    if tokenizer is not None and _writes(model):
        header.append(f'      tfkit generate {target} "..."')
    return recipe_text(header, {**short, "special_ids": ids} if ids else short, sections)


def _writes(model: Mapping[str, Any]) -> bool:
    return model["type"] in ("decoder", "encoder_decoder")


def _vocab_size(model: Mapping[str, Any]) -> int | None:
    """The size of the vocabulary that the last stack writes in."""
    stack = model.get("decoder", model)
    size = stack.get("vocab_size", model.get("vocab_size")) if isinstance(stack, Mapping) else model.get("vocab_size")
    return size if isinstance(size, int) else None


def _loaded(file: Path, imports: Sequence[str], read: Source, model: Mapping[str, Any]) -> Recipe:
    """The recipe that was written; it needs the user's code only where a part of it is not tfkit's.

    Raises DataError where the config describes what cannot be built.
    """
    try:
        recipe = load_saved(file)
    except RecipeError:
        _described(read, model)  # whose faults speak of the config, and not of a file that goes again
        raise
    return recipe if all(map(is_shipped, parts_in(recipe))) else load_saved(file, imports=imports)


def _weights(read: Source, blueprint: Blueprint, file: Path, dtype: torch.dtype) -> tuple[list[str], int]:
    """Write the weights; returns their names that no output reads, and how many numbers there are."""
    own, tied = own_tensors(build_model(blueprint, device="meta"))
    wanted = {name: tensor.shape for name, tensor in own.items()}
    with open_checkpoint(read.folder, dtype) as checkpoint:
        brought = to_ours(read.family, checkpoint, wanted, blueprint)
    ordered = {name: brought.tensors[name] for name in wanted}
    _check_numbers(read.folder, own, ordered)
    Weights(ordered, tied).save(file)
    return brought.unread, sum(tensor.numel() for name, tensor in own.items() if isinstance(tensor, nn.Parameter))


def _check_numbers(folder: Path, own: Mapping[str, Tensor], brought: Mapping[str, Tensor]) -> None:
    """Raise DataError for integers where a model has floats; warn of numbers that are not finite."""
    wrong = [
        f"{name} ({dtype_name(tensor)})"
        for name, tensor in brought.items()
        if own[name].is_floating_point() and not tensor.is_floating_point()
    ]
    if wrong:
        raise DataError(f"{folder}: the tensors of {some(wrong)} hold no floats, so they are no weights")
    warn_not_finite(folder, brought)


def _resolved(recipe: Recipe, target: Path) -> str:
    """resolved.yaml, whose comments name the recipe by the place that it will have."""
    text = recipe.resolved()
    return text.replace(str(recipe.file), str(target / RECIPE)).replace(f"# {recipe.name},", f"# {target.name},", 1)


def _environment(read: Source, recipe: Recipe, target: Path, dtype: str) -> dict[str, Any]:
    imported = {
        "from": read.name,
        "family": read.family.part_name,
        "class": read.family.head_class(read.config),
        "dtype": dtype,
    }
    needs = recorded(recipe, target, None)
    known = environment(0, torch.device("cpu")) | {"recipe": target.name, "imported": imported}
    return known | ({NEEDS: needs} if needs else {})


def _keep(read: Source, folder: Path) -> list[str]:
    """Their small files as they were, but for what names code; returns the names of those that named some."""
    (folder / THEIRS).mkdir()
    named = []
    for name in SMALL:
        path = file_in(read.folder, name)
        if path is None:
            continue
        text = text_in(path)
        data = mapping_in(path) if path.suffix == ".json" else {}
        if without_code(data) != data:
            named.append(name)
            write_json(folder / THEIRS / name, without_code(data))
        else:
            write_text(folder / THEIRS / name, text)
    return named


def _notes(read: Source, blueprint: Blueprint, tokenizer: Tokenizer | None, unread: Sequence[str]) -> list[str]:
    """What the user should know, one sentence each."""
    notes = []
    keys = read.config.unread()
    if keys:
        notes.append(f"not read in {CONFIG}: {', '.join(keys)}")
    if unread:
        notes.append(f"weights that no output of this model reads: {', '.join(unread)}")
    if tokenizer is None:
        files = unreadable(read.folder)
        there = f"; {', '.join(files)} cannot be read, and transformers can save it as tokenizer.json" if files else ""
        notes.append(f"there is no {TOKENIZER}, so that this run reads and writes ids, no text{there}")
    elif (size := blueprint.last.vocab_size) is not None and tokenizer.vocab_size > size:
        notes.append(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, and the model knows the first {size:,} of them"
        )
    return notes
