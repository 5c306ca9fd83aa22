"""Upload of a run to a repository of the Hugging Face hub, or of a local one, from which `load_run` reads it."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.extras import optional
from tfkit.interop.local_paths import RECORDED, LocalPaths
from tfkit.run import Run, load_run
from tfkit.storage.checksums import SUMS, sha256_of
from tfkit.storage.files import is_temporary, read_text
from tfkit.storage.hub import in_words, local_repository, repository
from tfkit.storage.targets import target_folder, whole_folder
from tfkit.training import record
from tfkit.training.card import is_ours, run_card
from tfkit.training.folder import CARD, ENVIRONMENT, PUBLISHED, RESOLVED, WEIGHTS, RunFolder
from tfkit.training.kept import KEPT, kept_files
from tfkit.training.weights import Weights
from tfkit.training.weights_file import opened, read_entry, with_digest

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
        contents: dict[str, Path | bytes] = {**files, SUMS: _sums(files), CARD: card.encode()}
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


def _sums(files: Mapping[str, Path]) -> bytes:
    """Return the checksum manifest of the pushed files."""
    return "".join(f"{sha256_of(path)}  {name}\n" for name, path in sorted(files.items())).encode()


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
