"""The command line of a run, and a process for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfkit.core.errors import RunError
from tfkit.recipe.text.node import shorten
from tfkit.storage.files import read_text
from tfkit.studies.arms import StudySource, texts_of

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

    problem: str  # why it was lost; empty if it was not

    def poll(self) -> int | None:
        """Return its exit status, negative after a signal; None while it runs."""

    def wait(self) -> int:
        """Wait for the end and return the exit status."""

    def interrupt(self) -> None:
        """Ask it to save and stop; a no-op if it has ended."""


class Launcher(Protocol):
    """Launcher of the trainings of a study."""

    def start(self, words: Sequence[str], log: Path, threads: int | None) -> Job:
        """Start a command line of tfkit with its output in `log`."""


@dataclass
class LocalJob:
    """Training in a local process."""

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
    """Launcher of trainings on this machine."""

    def start(self, words: Sequence[str], log: Path, threads: int | None) -> Job:
        return LocalJob(started(words, log, threads))


def started(words: Sequence[str], log: Path, threads: int | None = None) -> subprocess.Popen[bytes]:
    """Start the command in its own process group with its output in `log`."""
    environment = dict(os.environ)
    if threads is not None:
        environment |= {name: str(threads) for name in THREADS}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "tfkit", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
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
    return shorten(" ".join(line.strip() for line in lines[first:]).removeprefix("tfkit: "), 300) or "it said nothing"
