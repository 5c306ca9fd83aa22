"""The command line of a run, and a process that runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfkit.core.files import read_text
from tfkit.recipe.text.node import inline
from tfkit.studies.arms import StudySource

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def command_of(source: StudySource, variants: Sequence[str], values: Mapping[str, Any], out: Path) -> list[str]:
    """`tfkit train ...` without its first word, which trains a run, or goes on with it."""
    words = ["train", source.file]
    for name in variants:
        words += ["--variant", name]
    for key, value in values.items():
        words += ["--set", f"{key}={inline(value)}"]
    for text in source.sets:
        words += ["--set", text]
    for name in source.imports:
        words += ["--import", name]
    return [*words, *(["--trust"] if source.trust else []), "--out", str(out), "--resume"]


def started(words: Sequence[str], log: Path, threads: int | None = None) -> subprocess.Popen[bytes]:
    """A process of its own group that runs the command, its output in `log`."""
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
    """The last thing that a command said: its error."""
    lines = [line for line in read_text(log, None).splitlines() if line.strip()]
    return lines[-1].removeprefix("tfkit: ") if lines else "it said nothing"
