"""Upload of a run to the Hugging Face hub or to a local repository; local paths in its files are replaced."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import yaml

from tfkit.core.errors import TfkitWarning, UsageError, optional
from tfkit.core.output import some
from tfkit.run import Run, load_run
from tfkit.runs import record
from tfkit.runs.card import is_ours, run_card
from tfkit.runs.folder import CARD, ENVIRONMENT, EVALUATION, PUBLISHED, RECIPE, RESOLVED, WEIGHTS, RunFolder
from tfkit.runs.kept import CONFIG, GENERATION, KEPT, TOKENIZER_CONFIG, TOKENS_MAP, kept_files
from tfkit.runs.weights import Weights, opened, read_entry, with_digest
from tfkit.storage.checksums import SUMS, sha256_of
from tfkit.storage.files import is_temporary, read_text
from tfkit.storage.folders import target_folder, whole_folder
from tfkit.storage.hub import in_words, local_repository, repository

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


MARKS = {ENVIRONMENT, RESOLVED}  # files by which a repository is recognized as a run
BESIDE = {CARD, ".gitattributes"}  # files that a new repository may already contain


def push(run: Run | str | Path, target: str, force: bool = False, private: bool = False) -> str:
    """Push a run to hf://user/name in one commit. Return the address.

    Weights, recipes, tokenizer, scores and a model card are pushed; checkpoints and logs are not. Absolute paths, such
    as those of data files and custom parts, are replaced by their last component, and a warning lists them. A new
    repository is public unless `private`. `force` replaces an existing run. Raises UsageError if the repository has
    other contents, RunError if the run is damaged, DataError if the hub reports an error. With TFKIT_HUB=FOLDER in the
    environment, the repository is FOLDER/user/name; a replaced one is kept as NAME.old.
    """
    place = local_repository(repository(target))
    hub = optional("huggingface_hub", "hf", "tfkit.push needs") if place is None else None
    run = run if isinstance(run, Run) else load_run(run)
    if not run.folder.is_dir():
        raise UsageError(f"{run.folder}: is only a weight file, not a run folder; push the whole folder")
    folder = RunFolder(run.folder)
    paths = LocalPaths.of(run)
    with tempfile.TemporaryDirectory() as beside:
        files = {name: _without_paths(paths, file, Path(beside) / name) for name, file in _files(folder).items()}
        card = run_card(folder, run.recipe.name, paths.out_of("\n".join(run.summary)).split("\n"), target)
        sums = "".join(f"{sha256_of(path)}  {name}\n" for name, path in sorted(files.items()))
        contents: dict[str, Path | bytes] = {**files, SUMS: sums.encode(), CARD: card.encode()}
        if place is not None:
            _put(place, target, contents, force, private)
        else:
            _commit(hub, target, contents, run.recipe.name, force, private)
    if paths.names:
        warnings.warn(f"{target}: {paths}", TfkitWarning, stacklevel=2)
    return target


def _commit(hub: Any, target: str, contents: dict[str, Path | bytes], title: str, force: bool, private: bool) -> None:
    """Write the files to the repository in one commit. Keep a model card written by the author."""
    name = repository(target)
    with in_words(target):
        api = hub.HfApi()
        is_there = bool(api.repo_exists(name))
        existing = set(api.list_repo_files(name)) if is_there else set()
        _check_free(target, existing, force)
        if CARD in existing and not is_ours(Path(api.hf_hub_download(name, CARD))):
            del contents[CARD]  # the card was written by the author
        if not is_there:
            api.create_repo(name, private=private)
        api.create_commit(name, _operations(hub, contents, existing), commit_message=f"Push {title}")


def _put(place: Path, target: str, contents: dict[str, Path | bytes], force: bool, private: bool) -> None:
    """Write the files to the folder of a repository of a local hub, atomically. Keep other files that it contains."""
    existing = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    _check_free(target, existing, force)
    if CARD in existing and not is_ours(place / CARD):
        del contents[CARD]
    others = {name: place / name for name in existing - _own(existing) - contents.keys()}
    with whole_folder(target_folder(place, "tfkit run", (), force=True)) as folder:
        for name, one in {**others, **contents}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(one) if isinstance(one, bytes) else shutil.copyfile(one, folder / name)
        folder.chmod(place.stat().st_mode if existing else 0o700 if private else 0o755)


def _without_paths(paths: LocalPaths, file: Path, copy: Path) -> Path:
    """Return `file`, or a copy without absolute paths if it contains any."""
    if file.name == WEIGHTS:
        with opened(file) as stored:
            entry = json.dumps(read_entry(file, stored.metadata() or {}))
        if paths.out_of(entry) != entry:
            replace(Weights.read(file), entry=with_digest(json.loads(paths.out_of(entry)))).save(copy)
    elif file.name in RECORDED and paths.out_of(text := read_text(file)) != text:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(paths.out_of(text), encoding="utf-8", newline="\n")
    return copy if copy.exists() else file


def _files(folder: RunFolder) -> dict[str, Path]:
    """Return the files to push by name. Raise RunError if a file no longer matches its checksum."""
    files = {name: folder / name for name in PUBLISHED if (folder / name).is_file()}
    kept = (path for path in kept_files(folder.path) if not is_temporary(path))
    files |= {path.relative_to(folder.path).as_posix(): path for path in kept}
    record.check(folder, files)
    return files


def _check_free(target: str, existing: set[str], force: bool) -> None:
    """Raise UsageError if the repository has other contents, or a run and `force` is not set."""
    if existing <= BESIDE:
        return
    if not existing >= MARKS:
        raise UsageError(f"{target}: is not empty and is not a tfkit run; choose another name")
    if not force:
        raise UsageError(f"{target}: contains a tfkit run; use force=True to replace it, or choose another name")


def _operations(hub: Any, contents: Mapping[str, Path | bytes], existing: Iterable[str]) -> list[object]:
    """Return the operations of the commit: add `contents` and delete leftover files of an earlier run."""
    added = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one if isinstance(one, bytes) else str(one))
        for name, one in contents.items()
    ]
    stale = _own(existing) - contents.keys()
    return added + [hub.CommitOperationDelete(path_in_repo=name) for name in sorted(stale)]


def _own(names: Iterable[str]) -> set[str]:
    """Return the names of files that a push writes."""
    return {name for name in names if name in PUBLISHED or name.startswith(f"{KEPT}/")}
