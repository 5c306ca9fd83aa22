"""Folders that are replaced: the old or the new one is whole whenever the process dies, and the old one is NAME.old."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kills import fails, kills, shares
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage.files import temporary, write_text
from tfkit.storage.folders import NewFolder, check_replaceable, recover
from tfkit.storage.locks import FolderBusy, FolderLock, held_by, lock_purpose, mark_lock

THEIRS = {"notes.txt": "mine", "kept/deep.txt": "mine too", "sub/own.txt": "in a folder of ours"}


def fill(folder: Path, what: str) -> None:
    for name in ("a", "b", "sub/c"):
        write_text(folder / name, f"{name} of the {what}")


def replace(target: Path, what: str = "new") -> None:
    """What a command does: clean up, build, rename."""
    recover(target)
    lock = FolderLock.take(target, "written") if target.exists() else None
    try:
        if lock is not None:
            check_replaceable(target)
        new = NewFolder(target)
        try:
            fill(new.path, what)
            new.put(replaces=lock is not None)
        finally:
            new.close()
    finally:
        if lock is not None:
            lock.release()


def content(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def of(what: str) -> dict[str, str]:
    return {name: f"{name} of the {what}" for name in ("a", "b", "sub/c")}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    begin(tmp_path / "goal")
    return tmp_path / "goal"


def begin(target: Path) -> None:
    """The old folder, which replaced an earlier one."""
    for path in target.parent.iterdir():
        shutil.rmtree(path)
    replace(target, "earlier")
    replace(target, "old")
    for name, text in THEIRS.items():
        write_text(target / name, text)


def test_what_was_there_is_name_old(target: Path) -> None:
    old = target.with_name("goal.old")
    assert content(old) == of("earlier")
    replace(target)
    assert content(target) == of("new") and content(old) == of("old") | THEIRS
    assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"] and not (target / ".lock").exists()
    assert lock_purpose(old) == "moved_aside" and held_by(old) is None


def test_where_nothing_was_it_is_only_renamed(tmp_path: Path) -> None:
    for empty in (False, True):
        if empty:
            (tmp_path / "goal").mkdir()
        replace(tmp_path / "goal")
        assert content(tmp_path / "goal") == of("new") and os.listdir(tmp_path) == ["goal"]
        shutil.rmtree(tmp_path / "goal")


def test_an_empty_folder_replaces_no_name_old(target: Path) -> None:
    shutil.rmtree(target)
    target.mkdir()
    replace(target)
    assert content(target) == of("new") and content(target.with_name("goal.old")) == of("earlier")


@pytest.mark.parametrize("kind", ["folder", "marked", "file", "link", "used"])
def test_a_name_old_of_somebody_else_is_never_touched(target: Path, kind: str) -> None:
    old, aside = target.with_name("goal.old"), target.with_name("aside")
    if kind == "used":  # it was trained in since
        FolderLock.take(old, "trained").release()
    else:
        old.rename(aside)
    if kind in ("folder", "marked"):
        fill(old, "user")
        if kind == "marked":
            (old / ".lock").write_text("mine")
    elif kind == "file":
        old.write_text("mine")
    elif kind == "link":
        old.symlink_to(aside)
    before = content(target.parent)
    with pytest.raises(RunError, match=r"goal\.old: already exists, and was not moved aside by tfkit; move it"):
        replace(target)
    assert content(target.parent) == before
    old.unlink() if kind in ("file", "link") else shutil.rmtree(old)
    replace(target)


def test_a_name_old_in_use_is_not_replaced(target: Path) -> None:
    new, held = NewFolder(target), FolderLock.take(target, "written")
    lock = FolderLock.take(target.with_name("goal.old"), None)  # as another process that replaces
    with pytest.raises(FolderBusy, match=r"goal\.old: is being"):
        new.put(replaces=True)
    lock.release()
    new.put(replaces=True)
    new.close()
    held.release()
    assert content(target) == {}


@shares(7)
def test_killed_at_any_file_event(target: Path, share: int) -> None:
    seen, old = set(), target.with_name("goal.old")
    for event in kills(lambda: replace(target), share):
        if target.exists() and content(target) == of("old") | THEIRS:
            seen.add("old")
        else:
            assert content(old) == of("old") | THEIRS, event
            assert not target.exists() or content(target) == of("new"), event
            seen.add("new" if target.exists() else "between")
        recover(target)
        assert set(os.listdir(target.parent)) <= {"goal", "goal.old"}, event
        assert content(target) in (of("old") | THEIRS, of("new")), event
        assert not old.exists() or content(old) in (of("earlier"), of("old") | THEIRS), event
        replace(target, "next")
        assert content(target) == of("next") and content(old) in (of("old") | THEIRS, of("new")), event
        begin(target)
    assert {"old", "new"} <= seen and (share > 1 or "between" in seen)


@pytest.mark.full
@shares(9)
def test_what_the_user_does_after_a_kill_counts(target: Path, share: int) -> None:
    """A folder that he removed does not come back, and one that he made stays as it is."""
    old = target.with_name("goal.old")
    for event in kills(lambda: replace(target), share):
        was_there, kept = target.exists(), content(old) if old.exists() else None
        between = lock_purpose(old) == "replaced"
        shutil.rmtree(target, ignore_errors=True)
        if not was_there:
            target.mkdir()
        recover(target)
        if not (was_there and between):  # killed before it was known that all is done
            assert content(target) == {} and target.exists() != was_there, event
            assert content(old) == (kept or {}), event
        else:
            assert content(target) == kept, event
        begin(target)


@pytest.mark.full
@shares(7)
def test_killed_where_nothing_was(tmp_path: Path, share: int) -> None:
    target = tmp_path / "goal"
    for event in kills(lambda: replace(target), share):
        assert not target.exists() or content(target) == of("new"), event
        recover(target)
        assert os.listdir(tmp_path) in ([], ["goal"]), event
        shutil.rmtree(target, ignore_errors=True)


@pytest.mark.full
@shares(7)
def test_killed_while_cleaning_up(target: Path, share: int) -> None:
    """A start that is killed too leaves nothing that the next one does not clean up."""
    for event in kills(lambda: replace(target), 4 * share):
        for _ in kills(lambda: recover(target), 2):
            pass
        recover(target)
        assert content(target) in (of("old") | THEIRS, of("new")), event
        assert set(os.listdir(target.parent)) <= {"goal", "goal.old"}, event
        begin(target)


@shares(7)
def test_what_the_system_refuses_costs_nothing(target: Path, share: int) -> None:
    for event in fails(lambda: replace(target), share):
        assert content(target) in (of("old") | THEIRS, of("new")), event
        assert content(target.with_name("goal.old")) in (of("earlier"), of("old") | THEIRS), event
        replace(target, "next")
        assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"], event
        begin(target)


def test_a_living_process_is_not_cleaned_up(target: Path) -> None:
    new = NewFolder(target)
    write_text(new.path / "a", "half")
    recover(target)
    assert (new.path / "a").exists()
    new.close()
    assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"]


def test_between_the_renames_of_a_living_process_nothing_is_renamed_back(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, seen = os.rename, []

    def beside(source: Path, goal: Path) -> None:
        plain(source, goal)
        if goal == target.with_name("goal.old"):
            with pytest.raises(FolderBusy, match=rf"goal\.old: is being replaced by process {os.getpid()}"):
                recover(target)
            seen.append(goal)

    monkeypatch.setattr(os, "rename", beside)
    replace(target)
    assert seen and content(target) == of("new")


def test_what_cannot_be_renamed_back_is_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = target.with_name("goal.old")
    shutil.rmtree(old)
    mark_lock(target, "replaced")
    target.rename(old)
    with (
        monkeypatch.context() as patch,
        pytest.raises(RunError, match=r"goal\.old: cannot be renamed back to .*goal after a process was killed"),
    ):
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(16, "Device or resource busy")))
        recover(target)
    assert content(old) == of("old") | THEIRS
    recover(target)
    assert content(target) == of("old") | THEIRS and os.listdir(target.parent) == ["goal"]
    assert not (target / ".lock").exists()


def test_what_only_looks_like_ours_is_left(tmp_path: Path, target: Path) -> None:
    other, stranger, link = temporary(tmp_path / "another"), temporary(target), temporary(target)
    other.mkdir()
    fill(stranger, "user")
    link.symlink_to(target)
    recover(target)
    assert other.is_dir() and link.is_symlink() and content(stranger) == of("user")
    assert not (stranger / ".lock").exists() and content(target) == of("old") | THEIRS


def test_a_link_in_the_old_folder_is_never_followed(tmp_path: Path, target: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, "others")
    shutil.rmtree(target / "sub")
    (target / "sub").symlink_to(outside)
    (target / "a").unlink()
    (target / "a").symlink_to(outside / "a")
    replace(target)
    assert content(outside) == of("others") and content(target) == of("new")
    replace(target)
    assert content(outside) == of("others") and content(target.with_name("goal.old")) == of("new")


def test_what_cannot_be_removed_is_told(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path.unlink

    def stubborn(self: Path, missing_ok: bool = False) -> None:
        if self.name == "b":
            raise PermissionError(1, "Operation not permitted", str(self))
        plain(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stubborn)
        with pytest.warns(TfkitWarning, match=r"\.goal\.\w+\.tmp: cannot be removed: Operation not permitted"):
            replace(target)
    assert content(target) == of("new")
    replace(target)
    assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_rename_that_is_refused_is_undone(target: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = os.rename, []

    def busy(source: Path, goal: Path) -> None:
        calls.append(goal)
        if len(calls) == number + 1:
            raise OSError(16, "Device or resource busy")
        plain(source, goal)

    before = content(target.parent)
    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(RunError, match="goal: cannot be replaced: Device or resource busy"):
        replace(target)
    assert len(calls) == 2 * number + 1 and content(target.parent) == before
    assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"] and not (target / ".lock").exists()
    replace(target)
    assert content(target) == of("new")


def test_folders_that_cannot_be_replaced_are_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_replaceable(target)
    monkeypatch.setattr(os.path, "ismount", lambda path: path == target.parent / "mounted")
    with pytest.raises(RunError, match="mounted: is a mount point, which cannot be replaced; choose a folder"):
        check_replaceable(target.parent / "mounted")
    for inside in (target, target / "sub"):
        monkeypatch.chdir(inside)
        with pytest.raises(RunError, match=r"goal: is the current folder.*change to another folder first"):
            check_replaceable(target)
    monkeypatch.chdir(target.parent)
    check_replaceable(target)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="x: cannot be written: cannot create a folder in"):
        NewFolder(tmp_path / "nowhere" / "x")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"x: cannot be written: .*file: Not a directory"):
        NewFolder(tmp_path / "file" / "x")
