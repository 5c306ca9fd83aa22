"""The command line of a run, and the process that executes it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfkit.core.errors import RunError
from tfkit.recipe.text.node import shorten
from tfkit.storage.files import read_text
from tfkit.studies.arms import StudySource, texts_of
from tfkit.studies.warm import BEGAN

PARENT = (sys.executable, "-m", "tfkit.studies.warm")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def command_of(source: StudySource, variants: Sequence[str], values: Mapping[str, Any], out: Path) -> list[str]:
    """Return the arguments of `tfkit train` that start or continue a run."""
    words = ["train", source.file]
    for name in variants:
        words += ["--variant", name]
    for text in (*source.sets, *texts_of(values)):
        words += ["--set", text]
    for name in source.imports:
        words += ["--import", name]
    return [*words, *(["--trust"] if source.trust else []), "--out", str(out), "--resume"]


class Job(Protocol):
    """Started training."""

    problem: str  # reason if the job was lost, else empty

    def poll(self) -> int | None:
        """Return the exit status, negative after a signal; None while running."""

    def wait(self) -> int:
        """Wait for the end and return the exit status."""

    def interrupt(self) -> None:
        """Send SIGINT, which makes the training save and stop. Do nothing if it has ended."""


@dataclass
class LocalJob:
    """A run in a local process."""

    process: subprocess.Popen[bytes]
    problem: str = ""

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self) -> int:
        return self.process.wait()

    def interrupt(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)


class Here:
    """Launcher of runs on this machine. On Linux, runs are forked from a warm parent."""

    def __init__(self) -> None:
        self._parent: ForkServer | None = None

    def start(self, words: Sequence[str], log: Path, threads: int | None) -> Job:
        if not can_fork():
            return LocalJob(started(words, log, threads))
        if self._parent is None:
            self._parent = ForkServer(threads)
        return ForkedJob(self._parent, self._parent.start(words, log), words, log)

    def close(self) -> None:
        if self._parent is not None:
            self._parent.close()


def can_fork() -> bool:
    """True if runs can be forked from a warm parent, which is only done on Linux."""
    return sys.platform == "linux"


class ForkServer:
    """Client of the warm parent (studies/warm.py), with the jobs that have started and ended."""

    def __init__(self, threads: int | None) -> None:
        self.threads = threads
        self.process = subprocess.Popen(
            PARENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(threads),
            start_new_session=True,
        )
        self.is_lost = False
        self.began: dict[int, int] = {}  # job -> process
        self.ended: dict[int, int] = {}  # job -> exit status
        self._jobs, self._rest = 0, b""

    def start(self, words: Sequence[str], log: Path) -> int:
        """Request a run and return its job number."""
        self._jobs += 1
        self.request({"job": self._jobs, "words": list(words), "log": str(log.absolute())})
        return self._jobs

    def request(self, request: Mapping[str, object]) -> None:
        """Send a request. A request without a command line interrupts its job."""
        try:
            if self.process.stdin is not None:
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                self.process.stdin.flush()
        except OSError:
            self.is_lost = True

    def read(self, seconds: float = 0.0) -> None:
        """Read all pending answers. Wait up to `seconds` for the first answer."""
        pipe = self.process.stdout
        while pipe is not None and not self.is_lost and select.select([pipe], [], [], seconds)[0]:
            block = os.read(pipe.fileno(), 65536)
            self.is_lost = not block
            *lines, self._rest = (self._rest + block).split(b"\n")
            for what, job, number in (line.decode().split() for line in lines):
                (self.began if what == BEGAN else self.ended)[int(job)] = int(number)
            seconds = 0.0

    def close(self) -> None:
        """Stop the parent. Running trainings continue."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


@dataclass
class ForkedJob:
    """A run forked from a warm parent, or started as a new process if the parent dies before forking it."""

    parent: ForkServer
    job: int
    words: Sequence[str]
    log: Path
    problem: str = ""
    cold: LocalJob | None = None

    def poll(self) -> int | None:
        return self._status(0.0)

    def wait(self) -> int:
        while (status := self._status(0.5)) is None:
            pass
        return status

    def interrupt(self) -> None:
        if self.cold is not None:
            self.cold.interrupt()
        elif not self.parent.is_lost:
            self.parent.request({"job": self.job})
        elif self.poll() is None:
            os.killpg(self.parent.began[self.job], signal.SIGINT)

    def _status(self, seconds: float) -> int | None:
        if self.job in self.parent.ended:
            return self.parent.ended[self.job]
        self.parent.read(seconds)
        if not self.parent.is_lost or self.job in self.parent.ended:
            return self.parent.ended.get(self.job)
        if self.job not in self.parent.began:
            if self.cold is None:
                self.cold = LocalJob(started(self.words, self.log, self.parent.threads))
            return self.cold.poll()
        time.sleep(seconds)
        try:
            os.kill(self.parent.began[self.job], 0)
        except ProcessLookupError:  # the exit status is unknown; the state of the run is read from its folder
            self.parent.ended[self.job] = 1
        return self.parent.ended.get(self.job)


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment variables of a run's process."""
    return {**os.environ, **({} if threads is None else dict.fromkeys(THREADS, str(threads)))}


def started(words: Sequence[str], log: Path, threads: int | None = None) -> subprocess.Popen[bytes]:
    """Start the command in its own process group with its output in `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tfkit", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            start_new_session=True,
        )


def failure(log: Path) -> str:
    """Return the last message of a failed command on one line."""
    try:
        text = read_text(log, None)
    except RunError as error:
        return str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    first = next((place for place in range(len(lines) - 1, -1, -1) if not lines[place].startswith(" ")), 0)
    return shorten(" ".join(line.strip() for line in lines[first:]).removeprefix("tfkit: "), 300) or "no output"
