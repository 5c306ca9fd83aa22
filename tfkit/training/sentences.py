"""Settings of sentence-transformers in an imported run: how a text becomes a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError
from tfkit.generation.vectors import Pooling
from tfkit.storage.files import read_json
from tfkit.training.kept import MODULES, POOLING, SENTENCES, TOKENIZER_CONFIG

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
