"""Export to a folder that transformers loads, as a known class or with tfkit's sources; its card and settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import yaml
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import JsonObject, Tree
from tfkit.core.component import spell
from tfkit.core.errors import Fault, TfkitWarning, UsageError
from tfkit.core.rooms import page
from tfkit.interop.hub import LocalPaths
from tfkit.interop.huggingface.classes import named_classes
from tfkit.interop.huggingface.convert import constants_of, to_checkpoint
from tfkit.interop.huggingface.files import CONFIG, SINGLE
from tfkit.interop.huggingface.generation import generate_section, settings_of
from tfkit.interop.huggingface.matching import FamilyConfig, matching_family
from tfkit.interop.huggingface.own import head_classes, own_config, write_sources
from tfkit.interop.huggingface.strangers import ID_KEYS, kept_of, origin, read_optional, restore
from tfkit.interop.huggingface.tokenizer import write_tokenizer
from tfkit.interop.huggingface.weights import own_tensors
from tfkit.recipe.load import load_recipe
from tfkit.recipe.settings.sections import Generate
from tfkit.recipe.text.source import LANGUAGE
from tfkit.recipe.views.resolved import model_values
from tfkit.run import Run
from tfkit.runs.card import as_code, escaped, sections, signed
from tfkit.runs.folder import CARD, RESOLVED, RunFolder, tokenizer_files
from tfkit.runs.kept import GENERATION, KEPT, POOLINGS
from tfkit.runs.record import check_listed
from tfkit.runs.weights import save_tensors
from tfkit.storage.files import write_json, write_text
from tfkit.storage.folders import target_folder, whole_folder


def card(run: Run, paths: LocalPaths, loader: str, own_code: bool, sentences: bool = False, code: str = "") -> str:
    """Return the card of a run that transformers loads with the class `loader`. User text is escaped.

    `sentences` is true if sentence-transformers can also load the folder; `code` is the sentence about model.py.
    """
    trusted = ", trust_remote_code=True" * own_code
    library = "sentence-transformers" if sentences else "transformers"
    use = f'import transformers\n\nmodel = transformers.{loader}.from_pretrained("."{trusted})'
    if sentences:
        use = f'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("."{trusted})'
    cost, *about = run.summary
    lines = [
        *("---", f"library_name: {library}", "tags: [tfkit]", "---", ""),
        *(f"# {escaped(run.recipe.name)}", "", cost, ""),
        *as_code("\n".join(about)),
        *("## Use", "", *as_code(use)),
        *([escaped(code), ""] if code else []),
        *sections(RunFolder(run.folder)),
        *("## Check", "", "The largest difference from the run, layer by layer:", ""),
        *as_code(f"tfkit verify RUN --against .{' --trust' * own_code}"),
        *("## Recipe", "", "The architecture as a tfkit recipe, with every value spelled out:", ""),
        *as_code(yaml.safe_dump(_spelled(run), sort_keys=False, allow_unicode=True, width=110)),
    ]
    return signed(list(map(paths.out_of, lines)))


def _spelled(run: Run) -> Tree:
    """Return the architecture of a run as a recipe with every value spelled out."""
    return {"tfkit": LANGUAGE, "model": spell(model_values(run.blueprint))}


CODE = "model.py"
ABOUT_CODE = """\
# What the exported model computes, as plain PyTorch. Nothing in this folder imports this file.
# Its weights are named as in the run's model.safetensors, not as in the files next to it.
"""


def write_code(run: Run, folder: Path) -> str:
    """Write the model as plain PyTorch to model.py. Return a sentence about it, or why it cannot be printed."""
    printer = page("code")
    if printer is None:
        return ""
    try:
        text = printer.printed(load_recipe(_spelled(run)).named(run.recipe.name), usable=False)
    except printer.Unprintable as error:
        return f"There is no {CODE}: {error}"
    write_text(folder / CODE, ABOUT_CODE + text)
    return f"{CODE} is the same architecture as one file of plain PyTorch."


MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
POOLING_FOLDER, POOLING_CONFIG = "1_Pooling", "config.json"


def check_reads_sentences(run: Run) -> None:
    """Raise UsageError unless the run is an encoder of texts."""
    if run.blueprint.decoder is not None:
        raise UsageError(f"{run.folder}: sentence-transformers needs an encoder, and this run has a decoder")
    if not tokenizer_files(RunFolder(run.folder)):
        raise UsageError(f"{run.folder}: sentence-transformers needs a tokenizer, and this run has none")
    for name, one in run.blueprint.extra_inputs.items():
        raise UsageError(f"{one.readers[0]} reads the input '{name}', which sentence-transformers does not pass")


def write_sentences(run: Run, pooling: str, folder: Path) -> None:
    """Write the sentence-transformers modules: the model, pooling of its last hidden states, and normalization."""
    (plan,) = run.blueprint.stacks()
    names = {"Transformer": "", "Pooling": POOLING_FOLDER, "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (name, path) in enumerate(names.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / SETTINGS, {"max_seq_length": plan.max_length, "do_lower_case": False})
    (folder / POOLING_FOLDER).mkdir()
    modes = {key: name == pooling for name, (_, key) in POOLINGS.items()}
    write_json(folder / POOLING_FOLDER / POOLING_CONFIG, {"word_embedding_dimension": plan.d_model, **modes})


LABELS = ("id2label", "label2id", "problem_type")  # keys of config.json that name the outputs


@dataclass(frozen=True)
class Exported:
    """Result of an export. If `family_config` is None, the folder contains its own code, for the reasons in `why`."""

    folder: Path
    family_config: FamilyConfig | None
    auto_class: str
    why: tuple[Fault, ...] = ()


def export_model(run: Run, target: str | Path, force: bool = False, pooling: str | None = None) -> Exported:
    """Write `run` to the folder `target` for transformers; `force` renames an earlier export to NAME.old.

    With `pooling` (mean, first, last), sentence-transformers can also load the folder. Raises RunError if the folder
    must not be overwritten, UsageError for pooling if the model is not a text encoder. No files are left behind on
    failure.
    """
    if pooling is not None:
        check_reads_sentences(run)
    goal, kept = target_folder(run.outside(target), "model", (CONFIG, SINGLE), force), kept_of(run)
    check_listed(RunFolder(run.folder), KEPT)
    tensors, tied = own_tensors(run.model)
    blueprint, ids, paths = run.blueprint, ids_of(run), LocalPaths.of(run)
    folded, plain = _in_units(blueprint, tensors)
    family_config, nearest = matching_family(folded, imported_as(run), ids)
    loader = auto_class(blueprint)
    with whole_folder(goal) as folder:
        if family_config is not None:
            family = family_config.family
            stored = to_checkpoint(family, plain, folded) | constants_of(family, folded, _dtype(plain))
            config = family_config.config | _labels(run, kept, family_config)
        else:
            stored = {f"model.{name}": tensor for name, tensor in tensors.items()}
            config = own_config(run.model, run.labels, tied) | ids
            write_sources(blueprint, folder)
            (folder / RESOLVED).write_text(run.recipe.resolved(), encoding="utf-8", newline="\n")
        special = {key: id_ for key, id_ in ids.items() if id_ is not None}
        save_tensors(folder / SINGLE, stored, {"format": "pt"})
        write_json(folder / CONFIG, config | facts(blueprint, tensors))
        if blueprint.decoder is not None:
            generation = special | _generation(run, kept)
            write_json(folder / GENERATION, read_optional(kept / GENERATION) or generation)
        if has_tokenizer(run):
            write_tokenizer(run, kept, folder)
        if pooling is not None:
            write_sentences(run, pooling, folder)
        restore(kept, folder)
        paths.out_of_files(folder)
        text = card(run, paths, loader, family_config is None, pooling is not None, write_code(run, folder))
        (folder / CARD).write_text(text, encoding="utf-8", newline="\n")
    closest, keys = nearest or ("", ())
    cannot = f"the config.json of the nearest family, '{closest}', cannot express this"
    return Exported(goal.path, family_config, loader, tuple(run.recipe.fault(f"model.{key}", cannot) for key in keys))


def _in_units(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> tuple[Blueprint, Mapping[str, Tensor]]:
    """Fold the mean and deviation of a standardized head into its output, because config.json cannot express them."""
    head, (weight, bias) = blueprint.head, (f"head.output.{name}" for name in ("weight", "bias"))
    if head is None or "head.deviation" not in tensors or bias not in tensors:
        return blueprint, tensors
    mean, deviation = tensors["head.mean"], tensors["head.deviation"]
    head = head.model_copy(update={"standardize": False if dict(head)["num_targets"] else None})
    folded = {weight: tensors[weight] * deviation[:, None], bias: tensors[bias] * deviation + mean}
    kept = {name: tensor for name, tensor in tensors.items() if name not in ("head.mean", "head.deviation")}
    return replace(blueprint, head=head), kept | folded


def _generation(run: Run, kept: Path) -> Tree:
    """Return the generation settings of the original files. Warn if the recipe's `generate:` is another."""
    config, generation = read_optional(kept / CONFIG), read_optional(kept / GENERATION)
    size = run.tokenizer.vocab_size if has_tokenizer(run) else run.blueprint.last.vocab_size or 0
    found = generate_section(config, generation, size, run.blueprint.encoder is not None)
    stored = settings_of(config, generation)
    if stored and run.recipe.generate not in (Generate(), Generate(**found.section)):
        text = f"{run.folder}: the recipe's generate: is not exported, as it is not that of the imported model"
        warnings.warn(text, TfkitWarning, stacklevel=3)
    return stored


def has_tokenizer(run: Run) -> bool:
    """True if the run has a tokenizer."""
    return bool(tokenizer_files(RunFolder(run.folder)))


def auto_class(blueprint: Blueprint) -> str:
    """Return the transformers class that loads the model, or only its stacks if no class has its head."""
    classes = head_classes(blueprint)
    return "AutoModel" if classes is None else classes[0]


def imported_as(run: Run) -> tuple[str, ...]:
    """Return the family and class that the run, or its parent run, was imported as."""
    imported = origin(run)
    return tuple(str(imported[key]) for key in ("family", "class") if key in imported)


def _labels(run: Run, kept: Path, family_config: FamilyConfig) -> JsonObject:
    """Return the class names: the imported ones if the run was not trained further, else the run's."""
    before = read_optional(kept / CONFIG) if run.recipe.objective is None else {}
    if before.get("architectures") == [family_config.head_class]:
        return {key: before[key] for key in LABELS if key in before}
    return named_classes(run.labels) if run.labels and LABELS[0] in family_config.config else {}


def facts(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> JsonObject:
    """Return the config.json entries that do not describe the architecture."""
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    dtype = str(_dtype(tensors)).removeprefix("torch.")
    return {"dtype": dtype, **({"is_encoder_decoder": True} if paired else {})}


def _dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of the floating-point tensors, float32 if they differ."""
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def special_ids_of(run: Run) -> dict[str, int]:
    """Return the special tokens by role: the tokenizer's if the run was trained, else the recipe's."""
    special = dict(run.blueprint.special_ids)
    known = has_tokenizer(run) and (run.recipe.objective is not None or not special)
    return special | (run.tokenizer.special_ids if known else {})


def ids_of(run: Run) -> dict[str, int | None]:
    """Return the special token ids by config.json key, None if missing."""
    special = special_ids_of(run)
    ids = {key: special.get(role) for role, key in ID_KEYS.items()}
    if run.blueprint.encoder is not None and run.blueprint.decoder is not None and "start" in special:
        ids["decoder_start_token_id"] = special["start"]
        before = read_optional(kept_of(run) / CONFIG).get("bos_token_id")
        ids |= {"bos_token_id": before} if isinstance(before, int) else {}
    return ids
