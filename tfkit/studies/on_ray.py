"""Training on a Ray cluster: each run is one task, which starts a process on a node with free resources.

All nodes must see the study's folder and the recipe's files at the same paths and have tfkit installed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.studies.process import Job, started

INTERRUPTED = 130


def ray_module() -> Any:
    """Import ray; raise UsageError with the install command if it is missing."""
    return optional("ray", "ray", "--on ray needs")


class RayCluster:
    """Launcher of runs as tasks of the Ray cluster at RAY_ADDRESS, or of a local cluster if unset.

    A task gets an equal share of a node's CPUs, and one GPU if each node has one. Raises UsageError.
    """

    def __init__(self, jobs: int) -> None:
        self.ray = ray_module()
        try:
            if not self.ray.is_initialized():
                self.ray.init(log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"--on ray: {str(error).partition(chr(10))[0]}") from None
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self.threads = share([node.get("CPU", 0.0) for node in nodes], jobs)
        has_gpus = all(node.get("GPU", 0.0) >= 1 for node in nodes)
        options = {"num_cpus": self.threads, "num_gpus": int(has_gpus), "max_retries": 0}
        self.task = self.ray.remote(**options)(train)

    def start(self, words: Sequence[str], log: Path, threads: int | None) -> Job:
        return RayJob(self.ray, self.task.remote(list(words), str(Path.cwd()), str(log), self.threads))

    def close(self) -> None:
        """Do nothing: the cluster keeps running."""


def share(cpus: Sequence[float], jobs: int) -> int:
    """Return the CPUs per task, such that the smallest node fits its share of `jobs` concurrent tasks."""
    sizes = sorted(count for count in cpus if count >= 1) or [1.0]
    tasks = -(-jobs // len(sizes))
    return max(1, int(sizes[0]) // tasks)


class RayJob:
    """A run as a Ray task."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference
        self.problem = ""
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None and self.ray.wait([self.reference], timeout=0)[0]:
            self.wait()
        return self._status

    def wait(self) -> int:
        if self._status is None:
            try:
                self._status = int(self.ray.get(self.reference))
            except self.ray.exceptions.TaskCancelledError:
                self._status = INTERRUPTED
            except self.ray.exceptions.RayError as error:
                self._status, self.problem = 1, f"its task was lost: {str(error).partition(chr(10))[0]}"
        return self._status

    def interrupt(self) -> None:
        if self.poll() is None:
            self.ray.cancel(self.reference)


def train(words: Sequence[str], folder: str, log: str, threads: int) -> int:
    """Run a command of tfkit in the folder that the study was started from, and return its exit status."""
    os.chdir(folder)
    process = started(words, Path(log), threads)
    try:
        return process.wait()
    except KeyboardInterrupt:  # raised when Ray cancels a task
        os.killpg(process.pid, signal.SIGINT)
        return process.wait()
