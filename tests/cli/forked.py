"""The real command in a fork of this process: real signals, pipes and terminals, without the seconds of an import."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from tfkit.cli.main import main

Setup = Callable[[], object]


class Ended:
    """A command that has ended: its exit status (negative: the signal), and what it wrote."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def __repr__(self) -> str:
        return f"status {self.status}\n{self.out}\n{self.err}"


def start(*arguments: str | Path, out: int, err: int, stdin: int | None = None, setup: Setup | None = None) -> int:
    """Start a command with these descriptors as its standard streams; `setup` runs in the child first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads, which stay idle
        child = os.fork()
    if child == 0:
        _become([str(argument) for argument in arguments], out, err, stdin, setup)
    return child


def _become(arguments: list[str], out: int, err: int, stdin: int | None, setup: Setup | None) -> NoReturn:
    status = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if setup is not None:
            setup()
        sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
        try:
            main(arguments, prog_name="tfkit")
        except SystemExit as error:
            status = int(error.code or 0)
    except BaseException:
        import traceback

        with contextlib.suppress(Exception):
            os.write(2, traceback.format_exc().encode())
    finally:
        for stream in (sys.stdout, sys.stderr):  # as Python does in the end; 120 is its status where that fails
            try:
                if stream is not None:
                    stream.flush()
            except OSError:
                status = 120
        os._exit(status)


def _stream(number: int, mode: str):
    """A standard stream as Python makes it: None where the descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    return open(number, mode, encoding=encoding, errors=errors or "strict", closefd=False)


def wait(child: int) -> int:
    """The exit status of a child; the number of a signal that ended it, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def command(
    *arguments: str | Path, folder: Path, out: str | None = None, stdin: bytes = b"", setup: Setup | None = None
) -> Ended:
    """Run a command to its end; standard output goes to a file in `folder`, or to the path `out`."""
    paths = {name: folder / f"stream.{name}" for name in ("in", "out", "err")}
    paths["in"].write_bytes(stdin)
    with open(paths["in"], "rb") as read, open(out or paths["out"], "wb") as wrote, open(paths["err"], "wb") as told:
        child = start(*arguments, out=wrote.fileno(), err=told.fileno(), stdin=read.fileno(), setup=setup)
        status = wait(child)
    texts = [
        paths[name].read_bytes().decode("utf-8", "replace") if paths[name].exists() else "" for name in ("out", "err")
    ]
    return Ended(status, *texts)


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the commands within."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
