"""Locks of folders: one writer, whichever process or thread; a dead one keeps nobody out."""

import errno
import fcntl
import os
import signal
import warnings
from pathlib import Path

import pytest

from tests.kills import KILLED, forked
from tfkit.core.errors import RunError, TfkitWarning
from tfkit.storage import locks
from tfkit.storage.locks import FolderBusy, FolderLock, lock_purpose, mark_lock


def refused(folder: Path) -> None:
    """Succeeds where the folder cannot be locked."""
    with pytest.raises(FolderBusy):
        FolderLock.take(folder, "trained")


def test_the_second_is_refused_with_the_process_of_the_first(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    assert lock_purpose(tmp_path) == "trained"
    with pytest.raises(FolderBusy, match=rf"{tmp_path}: is being trained by process {os.getpid()}$"):
        FolderLock.take(tmp_path, "trained")  # of this process too
    assert forked(lambda: refused(tmp_path)) == 0
    lock.release()
    lock.release()  # again is nothing
    assert not list(tmp_path.iterdir()) and lock_purpose(tmp_path) is None
    assert forked(lambda: FolderLock.take(tmp_path, "trained")) == 0


def test_another_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setattr(locks.platform, "node", lambda: "node 7")
        lock = FolderLock.take(tmp_path, "written")
    with pytest.raises(FolderBusy, match=rf"is being written by process {os.getpid()} on node-7$"):
        FolderLock.take(tmp_path, "trained")
    lock.release()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    def die() -> None:
        FolderLock.take(tmp_path, "trained")
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(die) == KILLED
    assert (tmp_path / ".lock").exists()
    FolderLock.take(tmp_path, "written").release()
    assert not list(tmp_path.iterdir())


def test_a_child_does_not_hold_what_its_parent_holds(tmp_path: Path) -> None:
    """Else a worker that lives on would keep the folder closed."""
    lock = FolderLock.take(tmp_path, "trained")
    ready, there = os.pipe()
    done, gone = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if not child:
        os.write(there, b".")
        os.close(gone)
        os.read(done, 1)  # until the parent is done
        os._exit(0)
    os.read(ready, 1)
    lock._close()  # what the system does when a process dies
    locks._held.discard(lock)
    FolderLock.take(tmp_path, "trained").release()
    os.close(gone)
    assert os.waitpid(child, 0)[1] == 0
    for handle in (ready, there, done):
        os.close(handle)


def test_a_child_that_ends_leaves_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    assert forked(lock.release) == 0
    refused(tmp_path)
    lock.release()


def test_a_word_that_somebody_else_wrote_stays(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path, "trained")
    mark_lock(tmp_path, "old")
    lock.release()
    assert lock_purpose(tmp_path) == "old"
    again = FolderLock.take(tmp_path, None)
    assert lock_purpose(tmp_path) == "old"
    again.set_purpose("trained")
    again.release()
    assert not list(tmp_path.iterdir())


def test_the_lock_goes_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    lock = FolderLock.take(tmp_path / "a", "trained")
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    FolderLock.take(tmp_path / "a", "trained").release()
    refused(tmp_path / "b")
    lock.release()
    assert not list((tmp_path / "b").iterdir())


@pytest.mark.parametrize("what", ["file", "folder"])
def test_whoever_was_overtaken_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The file or the folder goes between opening it and locking it."""
    folder, plain, calls = tmp_path / "run", fcntl.flock, []
    folder.mkdir()

    def late(file: int, how: int) -> None:
        plain(file, how)
        if not calls:
            calls.append(file)
            (folder / ".lock").unlink()
            if what == "folder":
                folder.rmdir()
                folder.mkdir()

    monkeypatch.setattr(fcntl, "flock", late)
    lock = FolderLock.take(folder, "trained")
    assert calls and lock_purpose(folder) == "trained"
    refused(folder)
    lock.release()


def test_what_is_no_lock_is_left_alone(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.write_text("1 here trained\n")
    folder.mkdir()

    def put(kind: str) -> None:
        if kind == "link":
            (folder / ".lock").symlink_to(outside)
        elif kind == "hard link":
            (folder / ".lock").hardlink_to(outside)
        elif kind == "folder":
            (folder / ".lock").mkdir()
        elif kind == "fifo":
            os.mkfifo(folder / ".lock")
        else:
            (folder / ".lock").write_text(kind)

    for kind in ("link", "hard link", "folder", "fifo", "mine\n", "1 here trained\n" * 100):
        put(kind)
        with pytest.raises(RunError, match=r"run/\.lock: not a tfkit lock"):
            FolderLock.take(folder, "trained")
        assert os.path.lexists(folder / ".lock") and outside.read_text() == "1 here trained\n"
        (folder / ".lock").rmdir() if kind == "folder" else (folder / ".lock").unlink()
    (folder / ".lock").touch()  # of a process that was killed before it wrote
    FolderLock.take(folder, "trained").release()


def test_what_cannot_be_locked_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FolderLock.take(tmp_path / "nowhere", "trained")
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(RunError, match="cannot be written: Permission denied"):
            FolderLock.take(tmp_path, "trained")
        tmp_path.chmod(0o700)
    (tmp_path / ".lock").mkdir()
    with pytest.raises(RunError):
        FolderLock.take(tmp_path, "trained")
    after = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else set()
    assert before == after  # no handle stays open


def test_without_locks_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some network file systems, and on Windows."""

    def unsupported(file: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for patched in ("file system", "system"):
        with monkeypatch.context() as patch:
            if patched == "system":
                patch.setattr(locks, "_fcntl", None)
            else:
                patch.setattr(fcntl, "flock", unsupported)
            with pytest.warns(TfkitWarning, match="cannot be locked .*make sure no other process writes there"):
                lock = FolderLock.take(tmp_path, "trained")
            assert lock_purpose(tmp_path) == "trained"
            lock.release()
            assert not list(tmp_path.iterdir())
