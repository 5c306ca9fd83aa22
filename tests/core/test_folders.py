"""Folders that are replaced: the old or the new one is whole whenever the process dies, and nobody else's file goes."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kills import kills, shares
from tfkit.core import folders
from tfkit.core.errors import RunError
from tfkit.core.files import temporary, whole, write_text
from tfkit.core.folders import NewFolder, check_replaceable, exchange, named, recover, remove_leftovers
from tfkit.core.locks import FolderLock

NAMES = ("a", "b", "c")
THEIRS = {"notes.txt": "mine", "kept/deep.txt": "mine too", "sub/own.txt": "in a folder of ours"}


def ours(folder: Path) -> Iterator[Path]:
    yield from named(folder, NAMES)
    yield from named(folder / "sub", NAMES)


def fill(folder: Path, what: str) -> None:
    for name in ("a", "b", "sub/c"):
        write_text(folder / name, f"{name} of the {what}")


def replace(target: Path) -> list[str]:
    """What a command does: clean up, build, swap."""
    told = recover(target, ours)
    lock = FolderLock.take(target, "written") if target.exists() else None
    new = NewFolder(target)
    fill(new.path, "new")
    told += new.put(ours)
    new.close()
    if lock is not None:
        lock.release()
    return told


def content(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def of(what: str) -> dict[str, str]:
    return {name: f"{name} of the {what}" for name in ("a", "b", "sub/c")}


MOVED = {name.replace("sub/", "sub.old/"): text for name, text in THEIRS.items()}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "goal"
    fill(folder, "old")
    for name, text in THEIRS.items():
        write_text(folder / name, text)
    return folder


def test_the_new_folder_is_whole_and_keeps_what_is_not_ours(target: Path) -> None:
    told = replace(target)
    assert content(target) == of("new") | MOVED
    assert told == [f"{target / 'sub'}: held files of yours, which are in {target / 'sub.old'} now"]
    assert os.listdir(target.parent) == ["goal"] and not (target / ".lock").exists()
    assert any("sub.old-2" in line for line in replace_with_more(target))


def replace_with_more(target: Path) -> list[str]:
    write_text(target / "sub" / "more.txt", "x")
    return replace(target)


def test_where_nothing_was_it_is_only_renamed(tmp_path: Path) -> None:
    assert replace(tmp_path / "goal") == []
    assert content(tmp_path / "goal") == of("new") and os.listdir(tmp_path) == ["goal"]


def new_start(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    fill(target, "old")
    for name, text in THEIRS.items():
        write_text(target / name, text)


@pytest.fixture
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that can exchange two names, and others, on which the next start brings the old folder back."""
    if not request.param:
        monkeypatch.setattr(folders, "exchange", lambda *_: False)


@pytest.mark.parametrize("steps", [True, False], ids=["one step", "two steps"], indirect=True)
@shares(7)
def test_killed_at_any_file_event(target: Path, steps: None, share: int) -> None:
    seen = set()
    for event in kills(lambda: replace(target), share):
        everything = content(target.parent)
        assert set(THEIRS.values()) <= set(everything.values()), event
        if not target.exists():
            assert folders.exchange is not exchange, event
            recover(target, ours)
            assert content(target) == of("old") | THEIRS, event
        files = content(target)
        state = "old" if files["a"] == "a of the old" else "new"
        assert of(state).items() <= files.items(), f"event {event}: {files}"
        seen.add(state)
        replace(target)
        assert content(target) == of("new") | MOVED, event
        assert os.listdir(target.parent) == ["goal"], event
        new_start(target)
    assert seen == {"old", "new"}


@pytest.mark.parametrize("steps", [True, False], ids=["one step", "two steps"], indirect=True)
@shares(9)
def test_what_the_user_does_after_a_kill_counts(target: Path, steps: None, share: int) -> None:
    """A folder that he removed does not come back in parts, and one that he made costs nothing."""
    for event in kills(lambda: replace(target), share):
        was_there = target.exists()
        shutil.rmtree(target, ignore_errors=True)
        if not was_there:
            target.mkdir()
        told = recover(target, ours)
        files, everything = content(target), content(target.parent)
        if was_there:
            assert files in ({}, of("old") | THEIRS), event
            left = {text for name, text in everything.items() if not name.startswith("goal/")}
            assert left <= set(THEIRS.values()) and bool(left) == any("holds files of yours" in one for one in told)
        else:
            assert not files and set((of("old") | THEIRS).values()) <= set(everything.values()), event
            assert any("is what" in line and "was before a process was killed" in line for line in told), event
        for path in target.parent.iterdir():
            shutil.rmtree(path)
        new_start(target)


@shares(7)
def test_killed_where_nothing_was(tmp_path: Path, share: int) -> None:
    target = tmp_path / "goal"
    for event in kills(lambda: replace(target), share):
        assert not target.exists() or content(target) == of("new"), event
        recover(target, ours)
        assert os.listdir(tmp_path) in ([], ["goal"]), event
        shutil.rmtree(target, ignore_errors=True)


@pytest.mark.parametrize("steps", [True, False], ids=["one step", "two steps"], indirect=True)
@shares(7)
def test_killed_while_cleaning_up(target: Path, steps: None, share: int) -> None:
    """Whatever a kill left is dealt with by a start that is killed, too."""
    for event in kills(lambda: replace(target), 4 * share):
        for _ in kills(lambda: recover(target, ours), 2):
            pass
        recover(target, ours)
        assert content(target) in (of("old") | THEIRS, of("new") | MOVED), event
        assert os.listdir(target.parent) == ["goal"], event
        new_start(target)


def test_a_living_process_is_not_cleaned_up(target: Path) -> None:
    new = NewFolder(target)
    write_text(new.path / "a", "half")
    assert recover(target, ours) == [] and (new.path / "a").exists()
    new.close()
    assert os.listdir(target.parent) == ["goal"]


def test_what_only_looks_like_ours_is_left(tmp_path: Path, target: Path) -> None:
    other = temporary(tmp_path / "another")
    other.mkdir()
    link = temporary(target)
    link.symlink_to(target)
    assert recover(target, ours) == [] and other.is_dir() and link.is_symlink()
    assert content(target) == of("old") | THEIRS


def test_leftovers_of_files_go_when_their_process_is_dead(tmp_path: Path) -> None:
    for name in ("a", "other"):
        temporary(tmp_path / name).write_text("half")
    temporary(tmp_path / "a").symlink_to(tmp_path / "nowhere")
    temporary(tmp_path / "a").mkdir()
    (tmp_path / ".a.tmp").touch()  # a name of somebody else
    with whole(tmp_path / "b") as beside:
        remove_leftovers(tmp_path, ("a", "b"))
        assert beside.exists()
        beside.write_text("whole")
    left = sorted(re.sub(r"[0-9a-f]{16}", "*", name) for name in os.listdir(tmp_path))
    assert left == [".a.*.tmp", ".a.tmp", ".other.*.tmp", "b"] and (tmp_path / "b").read_text() == "whole"


def test_a_link_in_the_old_folder_is_never_followed(tmp_path: Path, target: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, "others")
    shutil.rmtree(target / "sub")
    (target / "sub").symlink_to(outside)
    (target / "a").unlink()
    (target / "a").symlink_to(outside / "a")
    replace(target)
    assert content(outside) == of("others")
    assert content(target)["a"] == "a of the new"


def test_what_cannot_be_removed_stays_and_is_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.unlink

    def stubborn(self: Path, missing_ok: bool = False) -> None:
        if self.name == "b":
            raise PermissionError(1, "Operation not permitted", str(self))
        plain(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stubborn)
        told = replace(target)
    assert of("new").items() <= content(target).items()
    assert len(told) == 1 and re.search(r"\.goal\.\w+\.tmp: holds what .*goal held before.*not permitted", told[0])
    replace(target)
    assert os.listdir(target.parent) == ["goal"]


@pytest.mark.parametrize("way", ["exchange", "aside"])
def test_a_swap_that_is_refused_leaves_the_old_folder(target: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.rename

    def busy(source: Path, goal: Path) -> None:
        if way == "exchange" or (str(goal) == str(target) and len(calls) < 1):
            calls.append(goal)
            raise OSError(16, "Device or resource busy")
        plain(source, goal)

    calls: list[Path] = []
    monkeypatch.setattr(folders, "exchange", busy if way == "exchange" else lambda *_: False)
    if way == "aside":
        monkeypatch.setattr(os, "rename", busy)
    lock = FolderLock.take(target, "written")
    new = NewFolder(target)
    fill(new.path, "new")
    with pytest.raises(RunError, match="goal: cannot be replaced: Device or resource busy"):
        new.put(ours)
    new.close()
    lock.release()
    assert content(target) == of("old") | THEIRS and os.listdir(target.parent) == ["goal"]


def test_folders_that_cannot_be_replaced_are_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replaceable(target)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == target.parent / "mounted")
    with pytest.raises(RunError, match="mounted: is a mount point, which cannot be replaced; choose a folder in it"):
        check_replaceable(target.parent / "mounted")
    for inside in (target, target / "sub"):
        monkeypatch.chdir(inside)
        with pytest.raises(RunError, match=r"goal: is the folder you are in.*go to another folder first"):
            check_replaceable(target)
    monkeypatch.chdir(target.parent)
    check_replaceable(target)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="x: cannot be written: no folder can be made in"):
        NewFolder(tmp_path / "nowhere" / "x")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"x: cannot be written: .*file: Not a directory"):
        NewFolder(tmp_path / "file" / "x")
