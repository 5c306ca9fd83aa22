"""Folder locks: one writer, in any process or thread; a dead process blocks nobody."""

import errno
import fcntl
import os
import signal
import warnings
from pathlib import Path

import pytest

from tests.kills import KILLED, forked
from tests.sampling import each
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage import files
from tfkit.storage.files import FolderBusy, FolderLock, held_by, lock_purpose, mark_lock


def refused(folder: Path) -> None:
    with pytest.raises(FolderBusy):
        FolderLock.take(folder, "trained")


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    assert lock_purpose(tmp_path) == "trained" and held_by(tmp_path) == f"trained by process {os.getpid()}"
    with pytest.raises(FolderBusy, match=rf"{tmp_path}: is being trained by process {os.getpid()}$"):
        FolderLock.take(tmp_path, "trained")  # in the same process
    assert forked(lambda: refused(tmp_path)) == 0
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir()) and lock_purpose(tmp_path) is None
    assert forked(lambda: FolderLock.take(tmp_path, "trained")) == 0


def test_a_holder_on_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files.platform, "node", lambda: "node 7")
        lock = FolderLock.take(tmp_path, "written")
    with pytest.raises(FolderBusy, match=rf"is being written by process {os.getpid()} on node-7$"):
        FolderLock.take(tmp_path, "trained")
    lock.release()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    def die() -> None:
        FolderLock.take(tmp_path, "trained")
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(die) == KILLED
    assert (tmp_path / ".lock").exists() and held_by(tmp_path) is None
    FolderLock.take(tmp_path, "written").release()
    assert not list(tmp_path.iterdir())


def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    ready, there = os.pipe()
    done, gone = os.pipe()

    def parent() -> None:
        FolderLock.take(tmp_path, "trained")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            child = os.fork()
        if not child:
            os.close(gone)
            os.write(there, b".")
            os.read(done, 1)
            os._exit(0)
        os.read(ready, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(parent) == KILLED
    FolderLock.take(tmp_path, "trained").release()
    for handle in (ready, there, done, gone):
        os.close(handle)


def test_a_child_leaves_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    assert forked(lock.release) == 0
    refused(tmp_path)
    lock.release()


def test_marks_are_kept(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    mark_lock(tmp_path, "old")
    lock.release()
    assert lock_purpose(tmp_path) == "old"
    again = FolderLock.take(tmp_path, None)
    assert lock_purpose(tmp_path) == "old"
    again.set_purpose("trained")
    again.release()
    assert not list(tmp_path.iterdir())


def test_a_lock_follows_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lock = FolderLock.take(tmp_path / "a", "trained")
    (tmp_path / "a").rename(tmp_path / "b")
    lock.moved(tmp_path / "b")
    (tmp_path / "a").mkdir()
    FolderLock.take(tmp_path / "a", "trained").release()
    refused(tmp_path / "b")
    lock.release()
    assert not list((tmp_path / "b").iterdir())


def test_a_lock_file_that_was_removed_meanwhile_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = fcntl.flock, []

    def late(file: int, how: int) -> None:
        plain(file, how)
        if not calls:
            calls.append(file)
            (tmp_path / ".lock").unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    lock = FolderLock.take(tmp_path, "trained")
    assert calls and lock_purpose(tmp_path) == "trained"
    refused(tmp_path)
    lock.release()


def test_other_files_named_lock_are_left_alone(tmp_path: Path) -> None:
    outside, file = tmp_path / "outside", tmp_path / "run" / ".lock"
    outside.write_text("1 here trained\n")
    file.parent.mkdir()

    def left(kind: str) -> None:
        make = {
            "link": lambda: file.symlink_to(outside),
            "hard link": lambda: file.hardlink_to(outside),
            "folder": file.mkdir,
            "fifo": lambda: os.mkfifo(file),
        }
        make.get(kind, lambda: file.write_text(kind))()
        with pytest.raises(RunError, match=r"run/\.lock: not a tfkit lock"):
            FolderLock.take(file.parent, "trained")
        assert os.path.lexists(file) and outside.read_text() == "1 here trained\n"
        file.rmdir() if kind == "folder" else file.unlink()

    each(["link", "hard link", "folder", "fifo", "mine\n", "1 here trained\n" * 100], left)
    file.touch()  # of a process that was killed before it wrote
    FolderLock.take(file.parent, "trained").release()


def test_folders_that_cannot_be_locked_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        FolderLock.take(tmp_path / "nowhere", "trained")
    assert not (tmp_path / "nowhere").exists()

    def refuse(file: int, how: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RunError, match="cannot be written: Operation not permitted"):
        FolderLock.take(tmp_path, "trained")
    after = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    assert before == after  # no handle stays open


def test_file_systems_without_locks_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(TfkitWarning, match="cannot be locked .No locks available.; make sure no other process writes"):
        lock = FolderLock.take(tmp_path, "trained")
    assert lock_purpose(tmp_path) == "trained"
    lock.release()
    assert not list(tmp_path.iterdir())
