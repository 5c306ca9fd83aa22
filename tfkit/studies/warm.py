"""Warm parent: a process with the imports of a training that forks a child for each request (a fork server).

Protocol: JSON lines on standard input are requests, lines on standard output the events `began JOB PROCESS` and
`ended JOB STATUS`. The parent exits when its standard input is closed; children continue.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MODULES = ("click", "tfkit.run", "tfkit.reports.counts", "torch._dynamo")
OPTIONAL = ("matplotlib.figure", "matplotlib.backends.backend_svg")
BEGAN, ENDED = "began", "ended"


@dataclass
class WarmParent:
    """Fork server: its pipes, and the job of each child process."""

    requests: int
    answers: int
    jobs: dict[int, int] = field(default_factory=dict)  # process -> job

    @classmethod
    def here(cls) -> WarmParent:
        """Use standard input and output as pipes, and redirect both to the null device."""
        requests, answers = os.dup(0), os.dup(1)
        empty = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(empty, stream)
        os.close(empty)
        return cls(requests, answers)

    def serve(self) -> list[str] | None:
        """Serve requests. Return None when standard input is closed, and the command line in a forked child."""
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        rest = b""
        while True:
            ready, _, _ = select.select([self.requests, wake], [], [])
            if wake in ready:
                os.read(wake, 512)
                self._reap()
            if self.requests in ready:
                block = os.read(self.requests, 65536)
                if not block:
                    return None
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    words = self._answer(json.loads(line))
                    if words is not None:
                        for end in (wake, woken):
                            os.close(end)
                        return words

    def _answer(self, request: dict[str, object]) -> list[str] | None:
        job, words, log = int(str(request["job"])), request.get("words"), str(request.get("log"))
        if not isinstance(words, list):
            for process in [process for process, own in self.jobs.items() if own == job]:
                os.killpg(process, signal.SIGINT)
            return None
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # stays pending until the child is ready
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)
            self._become(Path(log))
            return words
        os.setpgid(process, process)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self.jobs[process] = job
        self._say(BEGAN, job, process)
        return None

    def _become(self, log: Path) -> None:
        """Turn a forked child into an ordinary process: output to the log, default signal handlers."""
        signal.set_wakeup_fd(-1)
        os.close(self.requests)
        os.close(self.answers)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _reap(self) -> None:
        """Report ended children."""
        while self.jobs:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            self._say(ENDED, self.jobs.pop(process), os.waitstatus_to_exitcode(status))

    def _say(self, what: str, job: int, number: int) -> None:
        os.write(self.answers, f"{what} {job} {number}\n".encode())


def import_modules() -> None:
    """Import the modules that training needs."""
    for name in MODULES:
        importlib.import_module(name)
    if importlib.util.find_spec("matplotlib") is not None:
        for name in OPTIONAL:
            importlib.import_module(name)


def train(words: Sequence[str]) -> None:
    """Run a command line as `python -m tfkit` does."""
    sys.argv[1:] = words
    runpy.run_module("tfkit", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    parent = WarmParent.here()
    import_modules()
    gc.freeze()  # so that garbage collection does not copy pages shared with children
    command = parent.serve()
    if command is not None:
        train(command)
