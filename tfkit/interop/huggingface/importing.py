"""Import of a Hugging Face folder as a run: a recipe from config.json, converted tensors and the tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import RecipeError, is_shipped
from tfkit.data.tokenizer import Tokenizer
from tfkit.interop.huggingface.classes import class_names
from tfkit.interop.huggingface.convert import RenamedTensors
from tfkit.interop.huggingface.files import CONFIG, open_checkpoint
from tfkit.interop.huggingface.generation import Settings, generate_section
from tfkit.interop.huggingface.recipe import recipe_text, shortened
from tfkit.interop.huggingface.strangers import CODE, fingerprint, keep, special_ids, token_ids
from tfkit.interop.huggingface.tokenizer import tokenizer_of, unreadable
from tfkit.interop.huggingface.weights import Source, check_depth, without_weights, write_weights
from tfkit.recipe.load import Recipe, load_saved
from tfkit.runs.card import write_card
from tfkit.runs.folder import (
    ENVIRONMENT,
    IMPORTED,
    NOTES,
    RECIPE,
    RESOLVED,
    TOKENIZER,
    WEIGHTS,
    RunFolder,
    save_labels,
    save_tokenizer,
)
from tfkit.runs.history import environment
from tfkit.runs.kept import sentences_in
from tfkit.runs.record import record_all
from tfkit.runs.supply import NEEDS, parts_in, recorded
from tfkit.storage.files import write_json
from tfkit.storage.folders import target_folder, whole_folder

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class ImportedModel:
    """Result of an import."""

    run: Path
    family: str
    head_class: str
    parameters: int
    dtype: str
    tokenizer: Tokenizer | None
    notes: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, object]:
        """Return the result for --json."""
        size = None if self.tokenizer is None else self.tokenizer.vocab_size
        return {**vars(self), "run": str(self.run), "tokenizer": size}


def import_model(
    source: str, out: str | Path | None = None, dtype: str = "float32", force: bool = False, imports: Sequence[str] = ()
) -> ImportedModel:
    """Import a Hugging Face folder or hub repository as a run, by default to a folder of the same name in runs/.

    `dtype` is the dtype of the stored weights; `force` renames an existing run to NAME.old; `imports` are the files
    passed to --import. Raises DataError if the model is not supported, RunError if the folder must not be overwritten.
    No files are left behind on failure.
    """
    read = Source.of(source)
    if out is None:
        out = Path("runs") / (read.folder.resolve().name if Path(source).is_dir() else source.rpartition("/")[2])
    goal = target_folder(out, "tfkit run", (ENVIRONMENT, RESOLVED), force)
    target = goal.path
    sentences = sentences_in(read.folder)
    tokenizer = tokenizer_of(read.folder, token_ids(read.config, read.generation))
    model = read.model()
    stored_notes = _as_stored(read, model)
    absent = without_weights(read, model) if model.get("heads") else []
    settings = _settings(read, model, tokenizer)
    text = _text(read, model, tokenizer, target, settings.section)
    with whole_folder(goal) as folder:
        (folder / RECIPE).write_text(text, encoding="utf-8", newline="\n")
        recipe = _loaded(folder / RECIPE, imports, read, model)
        check_depth(read, recipe.blueprint())
        unread, parameters = write_weights(read, recipe.blueprint(), folder / WEIGHTS, DTYPES[dtype])
        (folder / RESOLVED).write_text(_resolved(recipe, target), encoding="utf-8", newline="\n")
        if labels := class_names(read.config, recipe.blueprint()):
            save_labels(RunFolder(folder), labels)
        named = keep(read.folder, folder)
        if tokenizer is not None:
            save_tokenizer(tokenizer, RunFolder(folder))
        notes = [
            *stored_notes,
            *(f"{name} references code ({', '.join(CODE)}), which is neither executed nor kept" for name in named),
        ]
        notes += [f"omitted {name}: the files have no weights for it" for name in absent]
        notes += [f"embed: {sentences}"] if sentences else []
        notes += _notes(read, recipe.blueprint(), tokenizer, unread)
        notes += settings.notes()
        write_json(folder / ENVIRONMENT, _environment(read, recipe, target, dtype, fingerprint(folder), notes))
        write_card(RunFolder(folder), target.name, [f"{parameters:,} parameters.", *recipe.lines(recipe.blueprint())])
        record_all(folder)
    family, head_class = read.family.part_name, read.family.head_class(read.config)
    return ImportedModel(target, family, head_class, parameters, dtype, tokenizer, notes)


def _as_stored(read: Source, model: Tree) -> list[str]:
    """Correct the values of `model` that can be determined only from the tensors. Return notes for the user."""
    with open_checkpoint(read.folder) as checkpoint:
        checkpoint.check_plain(read.folder, read.config)
        return read.family.to_stored(model, RenamedTensors(read.family, checkpoint))


def _settings(read: Source, model: Tree, tokenizer: Tokenizer | None) -> Settings:
    if not _writes(model):
        return Settings({}, {}, [])
    size = _vocab_size(model) or 0 if tokenizer is None else tokenizer.vocab_size
    return generate_section(read.config, read.generation, size, model["type"] == "encoder_decoder")


def _text(read: Source, model: Tree, tokenizer: Tokenizer | None, target: Path, generate: Tree) -> str:
    """Return the text of the recipe, with commands to try in its header comment."""
    short = shortened(model)
    ids = special_ids(read.config, read.generation, _vocab_size(model))
    summary = (read.family.__doc__ or read.family.part_name).strip().splitlines()[0].rstrip(".")
    header = [
        f"{summary}.",
        f"Imported from {read.name} ({read.family.head_class(read.config)}); the weights are in the same folder.",
        f"Type: tfkit show {target}",
    ]
    if tokenizer is not None and _writes(model):
        header.append(f'      tfkit generate {target} "..."')
    return recipe_text(header, {**short, "special_ids": ids} if ids else short, {"generate": generate})


def _writes(model: ModelSection) -> bool:
    return model["type"] in ("decoder", "encoder_decoder")


def _vocab_size(model: ModelSection) -> int | None:
    """Return the vocabulary size of the last stack."""
    stack = model.get("decoder", model)
    size = stack.get("vocab_size", model.get("vocab_size")) if isinstance(stack, Mapping) else model.get("vocab_size")
    return size if isinstance(size, int) else None


def _loaded(file: Path, imports: Sequence[str], read: Source, model: ModelSection) -> Recipe:
    """Load the written recipe, running the user's code only if a part is not tfkit's.

    Raises DataError if the config describes a model that cannot be built.
    """
    try:
        recipe = load_saved(file)
    except RecipeError as error:
        read.described(model)  # report faults as faults in config.json, not in a temporary file
        raise read.generation_fault(error) from None
    return recipe if all(map(is_shipped, parts_in(recipe))) else load_saved(file, imports=imports)


def _resolved(recipe: Recipe, target: Path) -> str:
    """Return resolved.yaml with comments that refer to the recipe's final path."""
    text = recipe.resolved()
    return text.replace(str(recipe.file), str(target / RECIPE)).replace(f"# {recipe.name},", f"# {target.name},", 1)


def _environment(
    read: Source, recipe: Recipe, target: Path, dtype: str, tokenizer: str, notes: Sequence[str]
) -> dict[str, object]:
    imported = {
        "from": read.name,
        "family": read.family.part_name,
        "class": read.family.head_class(read.config),
        "dtype": dtype,
        "tokenizer": tokenizer,
        NOTES: notes,
    }
    needs = recorded(recipe, target, None)
    known = environment(0, torch.device("cpu")) | {"recipe": target.name, IMPORTED: imported}
    return known | ({NEEDS: needs} if needs else {})


def _notes(read: Source, blueprint: Blueprint, tokenizer: Tokenizer | None, unread: Sequence[str]) -> list[str]:
    notes = []
    keys = read.config.unread()
    if keys:
        notes.append(f"not read in {CONFIG}: {', '.join(keys)}")
    if unread:
        notes.append(f"weights that no output of this model uses: {', '.join(unread)}")
    if tokenizer is None:
        files = unreadable(read.folder)
        hint = (
            f"; {', '.join(files)} cannot be read; save the tokenizer as tokenizer.json with transformers"
            if files
            else ""
        )
        notes.append(f"no {TOKENIZER}: this run reads and writes ids instead of text{hint}")
    elif (size := blueprint.last.vocab_size) is not None and tokenizer.vocab_size > size:
        notes.append(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model supports only the first {size:,}"
        )
    return notes
