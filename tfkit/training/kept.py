"""Small files of another library, such as its config, kept in an imported run so that it can be exported again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError
from tfkit.recipe.settings.sections import InitFrom
from tfkit.storage.files import LARGEST_TEXT, named, read_bytes, read_json, read_text, whole
from tfkit.training import record
from tfkit.training.folder import IMPORTED, RunFolder
from tfkit.training.vocabularies import tokenizer_files

KEPT = "huggingface"  # subfolder of a run
TEMPLATES = "additional_chat_templates"  # subfolder of KEPT
ORIGIN = "origin"  # entry of environment.json in a run trained from an import: the model's family and class
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER_CONFIG, TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
# tokenizer files other than tokenizer.json, copied as they are and never executed
VOCABULARIES = (
    "added_tokens.json", "bpe.codes", CHAT_TEMPLATE, "chat_template.json", "dict.txt", "emoji.json",
    "merges.txt", "normalizer.json", "prophetnet.tokenizer", "sentencepiece.bpe.model", "sentencepiece.model",
    "source.spm", "spiece.model", "spm.model", "spm_char.model", "target.spm", "tekken.json", "tiktoken.model",
    "tokenizer.model", "vocab-src.json", "vocab-tgt.json", "vocab.json", "vocab.txt",
)  # fmt: skip
# files of sentence-transformers
MODULES, POOLING = "modules.json", "1_Pooling/config.json"
SENTENCES = (MODULES, "sentence_bert_config.json", "config_sentence_transformers.json", POOLING)
FILES = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENS_MAP, *VOCABULARIES, *SENTENCES)


def names_in(folder: Path) -> list[str]:
    """Return the names of the files to keep that exist in a folder of the other library, or in a run's copy."""
    templates = folder / TEMPLATES
    inside = sorted(path.name for path in templates.glob("*.jinja")) if templates.is_dir() else []
    return [name for name in FILES if os.path.lexists(folder / name)] + [f"{TEMPLATES}/{name}" for name in inside]


def kept_files(folder: Path) -> Iterator[Path]:
    """Yield the paths of the kept files in a run."""
    yield from named(folder / KEPT, FILES)
    if not (folder / KEPT).is_symlink():
        yield from template_files(folder / KEPT)


def kept_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates of an imported run by name, as transformers does.

    Raise RunError if a file is damaged.
    """
    place = folder / KEPT
    files = {path.stem: path for path in template_files(place)}
    if (place / CHAT_TEMPLATE).is_file():
        files["default"] = place / CHAT_TEMPLATE
    if files:
        return {name: read_text(path) for name, path in files.items()}
    settings = read_json(place / TOKENIZER_CONFIG) if (place / TOKENIZER_CONFIG).is_file() else {}
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    listed = found if isinstance(found, list) else [{"name": "default", "template": found}]
    named = {one.get("name"): one.get("template") for one in listed if isinstance(one, dict)}
    return {str(name): text for name, text in named.items() if isinstance(text, str)}


def template_files(folder: Path) -> Iterator[Path]:
    """Yield the additional chat templates in a folder of the other library."""
    place = folder / TEMPLATES
    if place.is_dir() and not place.is_symlink():
        yield from named(place, [path.name for path in place.iterdir() if path.suffix == ".jinja"])


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file of bounded size atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    data = read_bytes(source, LARGEST_TEXT)
    with whole(target) as beside:
        beside.write_bytes(data)


def origin_of(known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the family and class of the imported model from the contents of environment.json."""
    found = known.get(IMPORTED) or known.get(ORIGIN) or {}
    return found if isinstance(found, Mapping) else {}


def keep_from(initial: InitFrom | None, new: RunFolder) -> dict[str, Any]:
    """Copy the kept files of the initial run if both runs have the same tokenizer.

    Return the entry for environment.json.
    """
    source = None if initial is None else RunFolder(Path(initial.run))
    if source is None or not source.holds_run:
        return {}
    origin = origin_of(source.known)
    if not origin or not _same_tokenizer(source, new):
        return {}
    if (source / KEPT).is_symlink():
        raise RunError(f"{source / KEPT}: is a link; restore the imported folder")
    record.check_listed(source, KEPT)
    for name in names_in(source / KEPT):
        if (source / KEPT / name).is_symlink():
            raise RunError(f"{source / KEPT / name}: is a link; restore the imported file")
        copy_file(source / KEPT / name, new / KEPT / name)
    return {ORIGIN: {key: value for key, value in origin.items() if key in ("family", "class", "tokenizer")}}


def _same_tokenizer(one: RunFolder, other: RunFolder) -> bool:
    """True if both runs have a tokenizer and its files are identical."""
    names = tokenizer_files(one)
    same = names == tokenizer_files(other)
    return bool(names) and same and all(read_bytes(one / name) == read_bytes(other / name) for name in names)
