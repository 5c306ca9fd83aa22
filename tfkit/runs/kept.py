"""Files of another library, such as its config, and settings of sentence-transformers in an imported run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError, RunError
from tfkit.generation.vectors import Pooling
from tfkit.recipe.settings.sections import InitFrom
from tfkit.runs import record
from tfkit.runs.folder import IMPORTED, RunFolder, tokenizer_files
from tfkit.storage.files import LARGEST_TEXT, named, read_bytes, read_json, read_text, whole

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


# pooling of `tfkit embed` -> names of sentence-transformers in its new files and in its old files, which all read
POOLINGS: Mapping[Pooling, tuple[str, str]] = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "first": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean_sqrt": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    "weighted_mean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
}
ONLY: Mapping[tuple[str, str], tuple[object, ...]] = {  # settings that change vectors, with the supported values
    (SENTENCES[1], "transformer_task"): ("feature-extraction", None),
    **{(SENTENCES[1], key): ({}, None) for key in ("tokenizer_args", "processor_kwargs", "processing_kwargs")},
    (SENTENCES[2], "truncate_dim"): (None,),
    (TOKENIZER_CONFIG, "truncation_side"): ("right", None),
}
LARGEST = 10**6  # longer limits are those of tokenizers without one


@dataclass(frozen=True)
class Sentences:
    """Pooling, normalization, maximum length in tokens, prompts by name, and the name of the default prompt."""

    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: int | None = None
    lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def __str__(self) -> str:
        named = (f"{name} {text!r}" + " (default)" * (name == self.default) for name, text in self.prompts.items())
        return ", ".join(
            [f"pooling {self.pooling}", "normalized" if self.normalize else "not normalized"]
            + ([f"at most {self.max_length} tokens"] if self.max_length else [])
            + ["lower case"] * self.lower
            + [f"prompt {text}" for text in named]
        )


def sentences_in(folder: Path) -> Sentences | None:
    """Return the settings in a folder, None without any. Raise DataError for modules that are not supported."""
    modules = _read(folder, MODULES, list)
    if not modules:
        return None
    parts = [one if isinstance(one, dict) else {} for one in modules]
    found = [(str(one.get("type")).rpartition(".")[2], one.get("path")) for one in parts]
    after = [kind for kind, _ in found[2:]]
    if found[:2] != [("Transformer", ""), ("Pooling", "1_Pooling")] or after not in ([], ["Normalize"]):
        named = ", ".join(f"{kind} in {path!r}" for kind, path in found)
        supported = "a Transformer in '', a Pooling in '1_Pooling' and optionally Normalize"
        raise DataError(f"{folder / MODULES}: {named} is not supported; expected {supported}")
    if not (folder / POOLING).is_file():
        raise DataError(f"{folder / POOLING}: no such file, but {MODULES} names it; fetch the whole folder")
    for (name, key), values in ONLY.items():
        if (value := _read(folder, name, dict).get(key)) not in values:
            raise DataError(f"{folder / name}: {key} {value!r} is not supported; expected {values[0]!r}")
    base, about, pooling = (_read(folder, name, dict) for name in SENTENCES[1:])
    stored, default = about.get("prompts"), about.get("default_prompt_name")
    texts = stored if isinstance(stored, dict) else {}
    prompts = {name: text for name, text in texts.items() if isinstance(text, str) and text}
    if prompts and pooling.get("include_prompt") is False:
        raise DataError(f"{folder / POOLING}: include_prompt: false is not supported")
    for name, key, wrong in (
        (SENTENCES[1], "max_seq_length", type(base.get("max_seq_length", 1)) not in (int, type(None))),
        (SENTENCES[2], "default_prompt_name", default is not None and default not in list(texts)),
    ):
        if wrong:
            raise DataError(f"{folder / name}: {key} {(base | about).get(key)!r} is not supported; correct it")
    longest = base.get("max_seq_length") or _read(folder, TOKENIZER_CONFIG, dict).get("model_max_length")
    return Sentences(
        _pooling(folder, pooling),
        bool(after),
        longest if isinstance(longest, int) and 0 < longest < LARGEST else None,
        base.get("do_lower_case") is True,
        prompts,
        default if default in list(prompts) else None,
    )


def _read(folder: Path, name: str, kind: type[Any]) -> Any:
    """Return the content of a JSON file, empty if it is missing. Raise DataError for another kind of content."""
    found = read_json(folder / name) if (folder / name).is_file() else kind()
    if not isinstance(found, kind):
        raise DataError(f"{folder / name}: expected a {'list' if kind is list else 'mapping'}")
    return found


def _pooling(folder: Path, config: Mapping[str, Any]) -> Pooling:
    """Return the pooling of a config. Raise DataError unless it is a single known one."""
    mode = config.get("pooling_mode")
    modes = mode if isinstance(mode, list) else [mode]
    if mode is None:
        modes = [new for new, old in POOLINGS.values() if config.get(old)] or ["mean"]
    found: list[Pooling] = [name for name, (new, _) in POOLINGS.items() if new in modes]
    if len(modes) != 1 or not found:
        raise DataError(f"{folder / POOLING}: pooling {modes} is not supported; expected one of {', '.join(POOLINGS)}")
    return found[0]
