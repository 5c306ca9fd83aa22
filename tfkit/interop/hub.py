"""Upload of a run to a Hugging Face hub repository, from which `load_run` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.run import Run, load_run
from tfkit.storage.checksums import SUMS, sha256_of
from tfkit.storage.files import is_temporary
from tfkit.storage.hub import in_words, repository
from tfkit.training import record
from tfkit.training.card import is_ours, run_card
from tfkit.training.folder import CARD, ENVIRONMENT, PUBLISHED, RESOLVED, RunFolder
from tfkit.training.kept import KEPT, kept_files

MARKS = {ENVIRONMENT, RESOLVED}  # files that identify a run on the hub
BESIDE = {CARD, ".gitattributes"}  # initial files of an empty repository


def push(run: Run | str | Path, target: str, force: bool = False, private: bool = False) -> str:
    """Push a run to hf://user/name in one commit, and return that address.

    Weights, recipes, tokenizer, scores and a model card are pushed; checkpoints and logs are not. Recipes and
    environment.json are pushed unchanged, with the paths of data files and of own parts in them. A new repository is
    public unless `private`. `force` replaces an existing run. Raises UsageError for other existing contents, RunError
    for a damaged run, DataError for errors of the hub.
    """
    name = repository(target)
    hub = optional("huggingface_hub", "hf", "tfkit.push needs")
    run = run if isinstance(run, Run) else load_run(run)
    if not run.folder.is_dir():
        raise UsageError(f"{run.folder}: is a file of weights alone; push a run's folder")
    folder = RunFolder(run.folder)
    files = _files(folder)
    card = run_card(folder, run.recipe.name, run.summary, target)
    contents: dict[str, Path | bytes] = {**files, SUMS: _sums(files), CARD: card.encode()}
    with in_words(target):
        api = hub.HfApi()
        is_there = bool(api.repo_exists(name))
        there = set(api.list_repo_files(name)) if is_there else set()
        _check_free(target, there, force)
        if CARD in there and not is_ours(Path(api.hf_hub_download(name, CARD))):
            del contents[CARD]  # written by the author
        if not is_there:
            api.create_repo(name, private=private)
        api.create_commit(name, _operations(hub, contents, there), commit_message=f"Push {run.recipe.name}")
    return target


def _files(folder: RunFolder) -> dict[str, Path]:
    """Return the files to push by name. Raise RunError if one has changed."""
    found = {name: folder / name for name in PUBLISHED if (folder / name).is_file()}
    kept = (path for path in kept_files(folder.path) if not is_temporary(path))
    found |= {path.relative_to(folder.path).as_posix(): path for path in kept}
    record.check(folder, found)
    return found


def _sums(files: Mapping[str, Path]) -> bytes:
    """Return the checksum manifest of the pushed files."""
    return "".join(f"{sha256_of(path)}  {name}\n" for name, path in sorted(files.items())).encode()


def _check_free(target: str, there: set[str], force: bool) -> None:
    """Raise UsageError for a repository with other contents, and for an existing run unless `force`."""
    if there <= BESIDE:
        return
    if not there >= MARKS:
        raise UsageError(f"{target}: is not empty and holds no run of tfkit; choose another name")
    if not force:
        raise UsageError(f"{target}: holds a run of tfkit; force=True replaces it, or choose another name")


def _operations(hub: Any, contents: Mapping[str, Path | bytes], there: Iterable[str]) -> list[Any]:
    """Build the commit: add files and delete those that only an earlier run had."""
    added = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one if isinstance(one, bytes) else str(one))
        for name, one in contents.items()
    ]
    own = {name for name in there if name in PUBLISHED or name.startswith(f"{KEPT}/")}
    return added + [hub.CommitOperationDelete(path_in_repo=name) for name in sorted(own - contents.keys())]
