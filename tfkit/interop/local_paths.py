"""Replacement of local absolute paths in the files of pushed and exported runs."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import yaml

from tfkit.core.output import some
from tfkit.run import Run
from tfkit.storage.files import read_text
from tfkit.training.folder import ENVIRONMENT, EVALUATION, RECIPE, RESOLVED
from tfkit.training.kept import CONFIG, GENERATION, KEPT, TOKENIZER_CONFIG, TOKENS_MAP

SETTINGS = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENS_MAP)  # may contain _name_or_path, written by transformers
RECORDED = (RECIPE, RESOLVED, ENVIRONMENT, EVALUATION, *SETTINGS)  # text files that can hold paths
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
_PATH = re.compile(r"(?<![\w./:~<>-])(?:/|[A-Za-z]:[\\/])[^\s\"'`,;:|<>()\[\]{}]*[^\s\"'`.,;:|<>()\[\]{}]")


@dataclass(frozen=True)
class LocalPaths:
    """Maps local paths recorded in a run to replacements: relative to the run, or the shortest unique suffix."""

    names: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> LocalPaths:
        """Collect the paths in the recipes, records and settings of a run."""
        sizes = run.tokenizer.sizes if run.recipe.unknown_vocab else None
        texts = [run.recipe.text or "", run.recipe.resolved(sizes)]
        if run.folder.is_dir():
            files = [*(run.folder / name for name in RECORDED), *(run.folder / KEPT / name for name in SETTINGS)]
            texts += [read_text(file) for file in files if file.is_file()]
        paths = {path for text in texts for path in _paths(text)}
        return cls(_named(sorted(paths), run.folder.absolute()))

    def out_of(self, text: str) -> str:
        """Replace the paths in a text, including JSON-escaped ones."""
        # comments may name other files in the same folders, and those paths may contain spaces
        folders = {f"{folder}/": "" for path in self.names for folder in _pure(path).parents if _is_local(str(folder))}
        names = {**folders, **self.names}
        for path in sorted(names, key=len, reverse=True):
            for written in dict.fromkeys((path, json.dumps(path)[1:-1], json.dumps(path, ensure_ascii=False)[1:-1])):
                text = text.replace(written, names[path])
        return text

    def out_of_files(self, folder: Path) -> None:
        """Replace the paths in the recipes and settings files of an export folder."""
        for file in (folder / name for name in RECORDED if (folder / name).is_file()):
            text = read_text(file)
            if (without := self.out_of(text)) != text:
                file.write_text(without, encoding="utf-8", newline="\n")

    def __str__(self) -> str:
        """Return a sentence that lists the replacements; empty if there are none."""
        pairs = [f"{path} as {name}" for path, name in self.names.items() if not path.startswith("..")]
        return f"absolute paths are replaced: {some(pairs)}" if pairs else ""


def _paths(text: str) -> Iterator[str]:
    """Yield the local paths in the values and comments of a YAML or JSON text."""
    try:
        data = json.loads(text) if text.startswith("{") else yaml.load(text, _LOADER)
    except (ValueError, RecursionError, yaml.YAMLError):
        data = None
    yield from filter(_is_local, _strings(data))
    for comment in _COMMENT.findall(text):
        yield from filter(_is_local, _PATH.findall(comment))


def _strings(data: object) -> Iterator[str]:
    """Yield all keys and values that are strings."""
    if isinstance(data, str):
        yield data
    inside: Iterable[object] = (
        [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else ()
    )
    for one in inside:
        yield from _strings(one)


def _is_local(text: str) -> bool:
    """True for absolute paths of at least two components, and for paths that start with '..'."""
    path = _pure(text)
    inside = path.is_absolute() and len(path.parts) > 2
    return "\n" not in text and (inside or (path.parts[:1] == ("..",) and len(path.parts) > 1))


def _pure(text: str) -> PurePath:
    return PureWindowsPath(text) if re.match(r"[A-Za-z]:[\\/]", text) else PurePosixPath(text)


def _named(paths: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the shortest unique suffix of each path, or the relative path inside `folder`."""
    whole = {path: _pure(os.path.normpath(folder / path) if path.startswith("..") else path) for path in paths}
    lengths = dict.fromkeys(whole.values(), 1)
    while True:
        names = {path: "/".join(path.parts[-length:]) for path, length in lengths.items()}
        double = {name for name, count in Counter(names.values()).items() if count > 1}
        longer = [path for path, name in names.items() if name in double and lengths[path] < len(path.parts) - 1]
        if not longer:
            break
        lengths |= {path: lengths[path] + 1 for path in longer}
    names |= {path: path.relative_to(folder).as_posix() for path in names if path.is_relative_to(folder)}
    return {path: names[one] for path, one in whole.items()}
