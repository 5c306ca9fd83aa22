"""Replacement of folders: the old or the new one is whole whenever the process dies, and the old one is NAME.old."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kills import fails, kills, shares
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage.files import FolderBusy, FolderLock, held_by, lock_purpose, mark_lock, temporary, write_text
from tfkit.storage.folders import check_replaceable, new_folder, recover

THEIRS = {"notes.txt": "mine", "kept/deep.txt": "mine too", "sub/own.txt": "in a folder of ours"}


def fill(folder: Path, what: str) -> None:
    for name in ("a", "b", "sub/c"):
        write_text(folder / name, f"{name} of the {what}")


def replace(target: Path, what: str = "new") -> None:
    """Clean up, fill a new folder and rename it, as commands do."""
    recover(target)
    lock = FolderLock.take(target, "written") if target.exists() else None
    try:
        if lock is not None:
            check_replaceable(target)
        with new_folder(target, replaces=lock is not None) as new:
            fill(new, what)
    finally:
        if lock is not None:
            lock.release()


def content(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def of(what: str) -> dict[str, str]:
    return {name: f"{name} of the {what}" for name in ("a", "b", "sub/c")}


OLD = of("old") | THEIRS


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    begin(tmp_path / "goal")
    return tmp_path / "goal"


def begin(target: Path) -> None:
    """Create the old folder, which replaced an earlier one."""
    for path in target.parent.iterdir():
        shutil.rmtree(path)
    replace(target, "earlier")
    replace(target, "old")
    for name, text in THEIRS.items():
        write_text(target / name, text)


def test_a_replaced_folder_is_name_old(target: Path) -> None:
    old = target.with_name("goal.old")
    assert content(old) == of("earlier")
    replace(target)
    assert content(target) == of("new") and content(old) == OLD
    assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"] and not (target / ".lock").exists()
    assert lock_purpose(old) == "moved_aside" and held_by(old) is None
    for path in (target, old):
        shutil.rmtree(path)
    for empty in (False, True):  # nothing to replace
        if empty:
            target.mkdir()
        replace(target)
        assert content(target) == of("new") and os.listdir(target.parent) == ["goal"]
        shutil.rmtree(target)


@pytest.mark.parametrize("kind", ["folder", "marked", "file", "link", "used"])
def test_a_name_old_of_somebody_else_is_never_touched(target: Path, kind: str) -> None:
    old, aside = target.with_name("goal.old"), target.with_name("aside")
    if kind == "used":
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


def test_folders_in_use_are_left_alone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, plain, seen = target.with_name("goal.old"), os.rename, []
    lock = FolderLock.take(old, None)
    with pytest.raises(FolderBusy, match=r"goal\.old: is being"):
        replace(target)
    lock.release()
    assert content(target) == OLD
    with new_folder(target.with_name("other"), replaces=False) as new:
        fill(new, "new")
        recover(target.with_name("other"))
        assert content(new) == of("new")

    def recovering(source: Path, goal: Path) -> None:
        plain(source, goal)
        if goal == old:  # between the renames of a living process
            with pytest.raises(FolderBusy, match=rf"goal\.old: is being replaced by process {os.getpid()}"):
                recover(target)
            seen.append(goal)

    monkeypatch.setattr(os, "rename", recovering)
    replace(target)
    assert seen and content(target) == of("new")


@shares(7)
def test_killed_at_any_file_event(target: Path, share: int) -> None:
    seen, old = set(), target.with_name("goal.old")
    for event in kills(lambda: replace(target), share):
        if target.exists() and content(target) == OLD:
            seen.add("old")
        else:
            assert content(old) == OLD, event
            assert not target.exists() or content(target) == of("new"), event
            seen.add("new" if target.exists() else "between")
        recover(target)
        assert set(os.listdir(target.parent)) <= {"goal", "goal.old"}, event
        assert content(target) in (OLD, of("new")), event
        assert not old.exists() or content(old) in (of("earlier"), OLD), event
        replace(target, "next")
        assert content(target) == of("next") and content(old) in (OLD, of("new")), event
        begin(target)
    assert "old" in seen and (share > 1 or {"between", "new"} <= seen)


@pytest.mark.full
@shares(9)
def test_changes_of_the_user_after_a_kill_count(target: Path, share: int) -> None:
    """A folder that the user removed does not come back, and one that the user created stays."""
    old = target.with_name("goal.old")
    for event in kills(lambda: replace(target), share):
        was_there, kept = target.exists(), content(old) if old.exists() else None
        between = lock_purpose(old) == "replaced"
        shutil.rmtree(target, ignore_errors=True)
        if not was_there:
            target.mkdir()
        recover(target)
        if not (was_there and between):  # killed before the end was recorded
            assert content(target) == {} and target.exists() != was_there, event
            assert content(old) == (kept or {}), event
        else:
            assert content(target) == kept, event
        begin(target)


@pytest.mark.full
@shares(7)
def test_killed_in_an_empty_place(tmp_path: Path, share: int) -> None:
    target = tmp_path / "goal"
    for event in kills(lambda: replace(target), share):
        assert not target.exists() or content(target) == of("new"), event
        recover(target)
        assert os.listdir(tmp_path) in ([], ["goal"]), event
        shutil.rmtree(target, ignore_errors=True)


@pytest.mark.full
@shares(7)
def test_killed_while_cleaning_up(target: Path, share: int) -> None:
    """The next start cleans up after a start that was killed too."""
    for event in kills(lambda: replace(target), 4 * share):
        for _ in kills(lambda: recover(target), 2):
            pass
        recover(target)
        assert content(target) in (OLD, of("new")), event
        assert set(os.listdir(target.parent)) <= {"goal", "goal.old"}, event
        begin(target)


@shares(7)
def test_errors_of_the_system_lose_nothing(target: Path, share: int) -> None:
    for event in fails(lambda: replace(target), share):
        assert content(target) in (OLD, of("new")), event
        assert content(target.with_name("goal.old")) in (of("earlier"), OLD), event
        replace(target, "next")
        assert sorted(os.listdir(target.parent)) == ["goal", "goal.old"], event
        begin(target)


def test_a_folder_that_cannot_be_renamed_back_is_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert content(old) == OLD
    recover(target)
    assert content(target) == OLD and os.listdir(target.parent) == ["goal"] and not (target / ".lock").exists()


def test_folders_and_links_of_others_are_left_alone(tmp_path: Path, target: Path) -> None:
    other, stranger, link, outside = *map(temporary, (tmp_path / "another", target, target)), tmp_path / "outside"
    other.mkdir()
    fill(stranger, "user")
    link.symlink_to(target)
    recover(target)
    assert other.is_dir() and link.is_symlink() and content(stranger) == of("user")
    assert not (stranger / ".lock").exists() and content(target) == OLD
    fill(outside, "others")
    shutil.rmtree(target / "sub")
    (target / "sub").symlink_to(outside)
    for _ in range(2):  # the second one removes the folder with the link
        replace(target)
        assert content(outside) == of("others") and content(target) == of("new")


def test_leftovers_that_cannot_be_removed_are_named(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_rename_that_fails_is_undone(target: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (target.parent / "file").touch()
    for parent, why in {"nowhere": "cannot create a folder in", "file": ".*file: Not a directory"}.items():
        with (
            pytest.raises(RunError, match=f"x: cannot be written: {why}"),
            new_folder(target.parent / parent / "x", replaces=False),
        ):
            pytest.fail("the block ran")
