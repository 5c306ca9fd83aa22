"""Imports and exports are killed at any of their file events: the old or the new folder is whole, nothing is lost."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kills import fails, kills, shares
from tests.training.small import RECIPE, small, trained
from tfkit.core.errors import RunError, UsageError
from tfkit.interop.huggingface import matching
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.importing import import_model
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, load_run
from tfkit.runs.claim import Claim
from tfkit.runs.folder import RunFolder
from tfkit.storage import folders
from tfkit.storage.files import FolderLock

from ..sampling import looped

LAYER: dict[str, Any] = {**RECIPE["model"]["layer"], "residual": "pre_norm"}
GPT2 = {"model.position": "learned", "model.layer": LAYER, "train.steps": 1, "train.metrics": []}


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Without waiting for the disk, and without asking transformers, which takes longer than the rest together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(matching, "_check_loads", lambda _: None)
        yield


@pytest.fixture(scope="module")
def exports(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports of two runs that differ in their weights, `1` and `2`, beside the runs `run-1` and `run-2`."""
    folder = tmp_path_factory.mktemp("exports")
    for seed in ("1", "2"):
        loaded = load_recipe(small(folder, seed=int(seed)).root.plain(), overrides=GPT2)
        assert export_model(trained(loaded, folder / f"run-{seed}"), folder / seed).family_config is not None
    return folder


@pytest.fixture(scope="module")
def runs(exports: Path) -> dict[int, Run]:
    """The two, with their weights in memory."""
    found = {number: load_run(exports / f"run-{number}") for number in (1, 2)}
    assert all(run.model is not None for run in found.values())
    return found


@pytest.fixture(params=["export", "import"])
def write(request: pytest.FixtureRequest, exports: Path, runs: dict[int, Run]) -> Callable[..., object]:
    """Writes the first or the second of them into a folder."""

    def export(number: int, folder: Path, force: bool = True) -> object:
        return export_model(runs[number], folder, force)

    def bring(number: int, folder: Path, force: bool = True) -> object:
        return import_model(str(exports / str(number)), folder, force=force)

    return export if request.param == "export" else bring


def content(folder: Path) -> dict[str, bytes]:
    """All but what says when it was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "environment.json")]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    if "SHA256SUMS" in found:
        lines = found["SHA256SUMS"].splitlines(keepends=True)
        found["SHA256SUMS"] = b"".join(line for line in lines if not line.endswith(b"environment.json\n"))
    return found


@pytest.mark.full
@shares(23)
def test_killed_while_replacing(tmp_path: Path, write: Callable[..., object], share: int) -> None:
    goal, states = tmp_path / "goal", {}
    for number in (2, 1):
        write(number, goal)
        states[number] = content(goal)
    shutil.rmtree(tmp_path / "goal.old")
    mine = {"notes.txt": b"mine", "mine/deep.txt": b"mine too"}
    for name, text in mine.items():
        (goal / name).parent.mkdir(exist_ok=True)
        (goal / name).write_bytes(text)
    shutil.copytree(goal, tmp_path / "before")
    seen = set()
    for event in kills(lambda: write(2, goal), share):
        found = content(goal)
        assert found in ({}, states[1] | mine, states[2]), event
        assert found == states[1] | mine or content(tmp_path / "goal.old") == states[1] | mine, event
        seen.add("old" if mine.items() <= found.items() else "new" if found else "between")
        write(2, goal)
        assert content(goal) == states[2], event
        assert sorted(os.listdir(tmp_path)) == ["before", "goal", "goal.old"], event
        assert not list(goal.glob(".*")), event
        shutil.rmtree(goal), shutil.rmtree(tmp_path / "goal.old")
        shutil.copytree(tmp_path / "before", goal)
    assert share > 1 or seen == {"old", "between", "new"}


@pytest.mark.slow
def test_what_the_disk_refuses_is_told_and_costs_nothing(tmp_path: Path, write: Callable[..., object]) -> None:
    goal, states = tmp_path / "goal", []
    for number in (1, 2):
        write(number, goal)
        states.append(content(goal))
    for event in fails(lambda: write(1, goal)):
        assert content(goal) in states, event
        write(2, goal)
        assert content(goal) == states[1] and sorted(os.listdir(tmp_path)) == ["goal", "goal.old"], event


@pytest.mark.slow
def test_killed_where_nothing_was(tmp_path: Path, write: Callable[..., object]) -> None:
    goal = tmp_path / "goal"
    write(1, goal)
    whole = content(goal)
    shutil.rmtree(goal)
    for event in kills(lambda: write(1, goal, force=False)):
        assert not goal.exists() or content(goal) == whole, event
        if not goal.exists():
            write(1, goal, force=False)
        assert content(goal) == whole, event
        shutil.rmtree(goal)
        write(1, goal, force=False)  # what the last kill left goes
        assert os.listdir(tmp_path) == ["goal"], event
        shutil.rmtree(goal)


def test_a_run_that_is_trained_is_not_replaced(tmp_path: Path, exports: Path) -> None:
    shutil.copytree(exports / "run-1", tmp_path / "run")
    before = content(tmp_path / "run")
    with (
        Claim(RunFolder(tmp_path / "run"), resume=True),
        pytest.raises(RunError, match=rf"run: is being trained by process {os.getpid()}"),
    ):
        import_model(str(exports / "2"), tmp_path / "run", force=True)
    assert content(tmp_path / "run") == before
    import_model(str(exports / "2"), tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "checkpoints").exists() and not list((tmp_path / "run").glob(".*"))
    lock = FolderLock.take(tmp_path / "run", "written")
    with pytest.raises(RunError, match="run: is being written by process"):
        trained(load_recipe(small(exports).root.plain(), overrides=GPT2), tmp_path / "run", force=True)
    lock.release()


@pytest.mark.full
def test_the_users_files_and_links_stay(tmp_path: Path, exports: Path, write: Callable[..., object]) -> None:
    outside, goal = tmp_path / "outside", tmp_path / "goal"
    outside.mkdir()
    (outside / "step-00000001").mkdir()
    (outside / "step-00000001" / "state.json").write_text("theirs")
    write(1, goal)
    (goal / "link").symlink_to(outside)
    (goal / "model.safetensors").rename(outside / "model.safetensors")
    (goal / "model.safetensors").symlink_to(outside / "model.safetensors")
    before = content(outside)
    write(2, goal)
    assert content(outside) == before and (tmp_path / "goal.old" / "link").is_symlink()
    assert not (goal / "link").exists() and not (goal / "model.safetensors").is_symlink()
    write(1, goal)
    assert content(outside) == before and not (tmp_path / "goal.old" / "link").exists()


def test_a_name_old_of_somebody_else_stays(tmp_path: Path, write: Callable[..., object]) -> None:
    goal = tmp_path / "goal"
    write(1, goal)
    shutil.copytree(goal, tmp_path / "goal.old")
    before = content(tmp_path)
    with pytest.raises(RunError, match=r"goal\.old: already exists, and was not moved aside by tfkit; move it"):
        write(2, goal)
    assert content(tmp_path) == before


def test_a_link_to_the_folder_stays(tmp_path: Path, write: Callable[..., object]) -> None:
    (tmp_path / "link").symlink_to("goal")
    write(1, tmp_path / "link", force=False)
    write(2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "goal" / "model.safetensors").is_file()


@pytest.mark.parametrize("empty", [True, False])
def test_what_cannot_be_replaced_is_told(
    tmp_path: Path, write: Callable[..., object], empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    goal = tmp_path / "goal"
    goal.mkdir()
    if not empty:
        write(1, goal)
    before = content(goal)
    monkeypatch.chdir(goal)
    with pytest.raises(RunError, match="is the current folder, which would be replaced; change to another"):
        write(2, Path("."))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == goal)
    with pytest.raises(RunError, match="goal: is a mount point"):
        write(2, goal)
    assert content(goal) == before and os.listdir(tmp_path) == ["goal"]


@looped("name", ["", " ", "a\0b"])
def test_what_is_no_name_is_refused(write: Callable[..., object], name: str) -> None:
    with pytest.raises(UsageError, match="not a valid folder name"):
        write(1, name)


def test_two_at_once(tmp_path: Path, write: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the folder when it wants to put its own there, and does not replace it unasked."""
    goal, plain = tmp_path / "goal", folders._renamed

    def beside(*arguments: Any) -> Any:
        monkeypatch.setattr(folders, "_renamed", plain)
        thread = threading.Thread(target=lambda: write(1, goal, force=False))
        thread.start()
        thread.join()
        return plain(*arguments)

    monkeypatch.setattr(folders, "_renamed", beside)
    with pytest.raises(RunError, match="goal: cannot be replaced: Directory not empty"):
        write(2, goal, force=False)
    assert os.listdir(tmp_path) == ["goal"] and not list(goal.glob(".*"))
