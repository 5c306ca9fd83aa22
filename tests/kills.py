"""Kills a process at the n-th thing that it does to files, as a power switch would."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tfkit.core.errors import TfkitError, TfkitWarning

KILLED = -signal.SIGKILL
_CALLS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "chmod", "ftruncate", "pwrite")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def shares(every: int, slow: int = 1) -> Any:
    """Parametrize `share`: one in `every` events is full, a third of these quick, and one in `slow` slow."""
    few = pytest.param(3 * every, id="few")
    some = pytest.param(every, id="some", marks=pytest.mark.full)
    whole = pytest.param(slow, id="all" if slow == 1 else "more", marks=pytest.mark.slow)
    return pytest.mark.parametrize("share", [few, some, whole])


def ways(name: str, quick: str, every: int, full: int, **slow: int) -> Any:
    """Parametrize `name` and `share`: one way at every so many events, at more in the full suite, all in the slow."""
    more = pytest.param(quick, full, marks=pytest.mark.full)
    rest = [pytest.param(way, share, marks=pytest.mark.slow) for way, share in slow.items()]
    return pytest.mark.parametrize((name, "share"), [(quick, every), more, *rest])


def forked(work: Callable[[], object], event: int | None = None) -> int:
    """Do `work` in a process of its own, which is killed before its file event of that number; returns how it ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if not child:
        status = 1
        try:
            if event is not None:
                _count_down(event)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fails(work: Callable[[], object], share: int = 1) -> Iterator[int]:
    """Let the system refuse every `share`-th file event of `work` in turn; returns the number of each.

    That is told as an error of the user's, or does not matter.
    """
    for event in count(0, share):
        reached, there = os.pipe()
        status = forked(lambda event=event, there=there: _refused(work, event, there))  # type: ignore[misc]
        os.close(there)
        with open(reached) as stream:
            if not stream.read():
                assert status == 0
                return
        assert status == 0, f"at event {event} it ended with an error that is not the user's"
        yield event


def _refused(work: Callable[[], object], event: int, there: int) -> None:
    def refuse() -> None:
        os.write(there, b"x")
        raise OSError(errno.EIO, "Input/output error", "a file")

    _count_down(event, refuse)
    warnings.simplefilter("ignore", TfkitWarning)  # of what could not be removed
    try:
        work()
    except TfkitError as error:
        assert "None" not in str(error), error


def kills(work: Callable[[], object], share: int = 1) -> Iterator[int]:
    """Kill `work` at every `share`-th of its file events in turn; returns the number of each."""
    for event in count(0, share):
        status = forked(work, event)
        if status == 0:
            return
        assert status == KILLED, f"at event {event} it ended with status {status} of its own"
        yield event


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _count_down(event: int, then: Callable[[], None] = _die) -> None:
    """Before file event number `event`, counted from 0, do something else."""
    left = event

    def happens() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            then()

    def before(module: Any, name: str, counts: Callable[..., bool] = lambda *_, **__: True) -> None:
        plain = getattr(module, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if counts(*arguments, **options):
                happens()
            return plain(*arguments, **options)

        setattr(module, name, counted)

    for name in _CALLS:
        before(os, name)
    before(os, "open", lambda path, flags, *_, **__: bool(flags & _WRITING))
    for module in (builtins, io):
        before(module, "open", lambda file, mode="r", *_, **__: any(letter in mode for letter in "wax+"))
