"""A run -> a repository on the Hugging Face hub, from which `load_run` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfkit.core.checksums import SUMS, sha256_of
from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.core.files import is_temporary
from tfkit.core.hub import in_words, repository
from tfkit.run import Run, load_run
from tfkit.training import record
from tfkit.training.card import is_ours, run_card
from tfkit.training.folder import CARD, ENVIRONMENT, PUBLISHED, RESOLVED, RunFolder
from tfkit.training.kept import KEPT, kept_files

MARKS = {ENVIRONMENT, RESOLVED}  # by which a run on the hub is known
BESIDE = {CARD, ".gitattributes"}  # files that a repository may begin with


def push(run: Run | str | Path, target: str, force: bool = False, private: bool = False) -> str:
    """Push a run to hf://user/name in one commit, and return that address.

    Weights, recipes, tokenizer, scores and a model card are pushed; checkpoints and logs are not. A new repository is
    public unless `private`. `force` replaces a run that is there. Raises UsageError for a repository in the way,
    RunError for a damaged run, DataError for what the hub refuses.
    """
    name = repository(target)
    hub = optional("huggingface_hub", "hf", "tfkit.push needs")
    run = run if isinstance(run, Run) else load_run(run)
    if not run.folder.is_dir():
        raise UsageError(f"{run.folder}: is a file of weights alone; push a run's folder")
    folder = RunFolder(run.folder)
    files = _files(folder)
    card = run_card(folder, run.recipe, run.cost, target)
    contents: dict[str, Path | bytes] = {**files, SUMS: _sums(files), CARD: card.encode()}
    with in_words(target):
        api = hub.HfApi()
        is_there = bool(api.repo_exists(name))
        there = set(api.list_repo_files(name)) if is_there else set()
        _check_free(target, there, force)
        if CARD in there and not is_ours(Path(api.hf_hub_download(name, CARD))):
            del contents[CARD]  # the author's own
        if not is_there:
            api.create_repo(name, private=private)
        api.create_commit(name, _operations(hub, contents, there), commit_message=f"Push {run.recipe.name}")
    return target


def _files(folder: RunFolder) -> dict[str, Path]:
    """Files of a run that are pushed, by their names; raises RunError for one that has changed."""
    found = {name: folder / name for name in PUBLISHED if (folder / name).is_file()}
    kept = (path for path in kept_files(folder.path) if not is_temporary(path))
    found |= {path.relative_to(folder.path).as_posix(): path for path in kept}
    record.check(folder, found)
    return found


def _sums(files: Mapping[str, Path]) -> bytes:
    """The manifest of the pushed files."""
    return "".join(f"{sha256_of(path)}  {name}\n" for name, path in sorted(files.items())).encode()


def _check_free(target: str, there: set[str], force: bool) -> None:
    """Raise UsageError for a repository that holds something else, and for a run unless `force`."""
    if there <= BESIDE:
        return
    if not there >= MARKS:
        raise UsageError(f"{target}: is not empty and holds no run of tfkit; choose another name")
    if not force:
        raise UsageError(f"{target}: holds a run of tfkit; force=True replaces it, or choose another name")


def _operations(hub: Any, contents: Mapping[str, Path | bytes], there: Iterable[str]) -> list[Any]:
    """The changes of the commit: files of an earlier run that this one lacks are deleted, others stay."""
    added = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=one if isinstance(one, bytes) else str(one))
        for name, one in contents.items()
    ]
    own = {name for name in there if name in PUBLISHED or name.startswith(f"{KEPT}/")}
    return added + [hub.CommitOperationDelete(path_in_repo=name) for name in sorted(own - contents.keys())]
