"""The processes of a run, as started by torchrun or a single one, and a graceful stop on a signal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tfkit.core.errors import RunError
from tfkit.recipe.settings.sections import Train

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
INSISTENT = (signal.SIGINT, signal.SIGTERM)  # a closing terminal may send SIGHUP twice


class Interrupted(KeyboardInterrupt):
    """A signal stopped training, and a checkpoint was saved. The message says how to resume."""


class Interrupts:
    """Context manager in which the first signal sets `.asked` instead of ending the process.

    Signals that the process ignores (nohup) stay ignored. Outside the main thread this is a no-op.
    """

    def __init__(self) -> None:
        self.asked = False
        self._taken: set[int] = set()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            heeded = [one for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]
            self._before = {one: signal.signal(one, self._take) for one in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    def ignore(self) -> None:
        """Ignore signals from now on, even after the block, because the process is about to exit."""
        self._before = dict.fromkeys(self._before, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in self._taken and number in INSISTENT:
            raise KeyboardInterrupt
        self._taken.add(number)
        self.asked = True


WAIT = timedelta(hours=12)  # others wait while process 0 validates and writes; a dead process is noticed at once
GRACE = 2.0  # seconds before other processes exit, so that torchrun reports the one that failed first
LOST = (
    "gloo",
    "nccl",
    "connection closed",
    "connection reset",
    "broken pipe",
)  # found in messages of torch.distributed if a process has died
Value = TypeVar("Value")


@dataclass(frozen=True)
class Team:
    """Rank of this process, and the world size. Only process 0 writes files and reports progress."""

    rank: int = 0
    size: int = 1
    restarts: int = 0  # number of times that torchrun has restarted all processes after a failure

    @property
    def leads(self) -> bool:
        """True in process 0, which writes the run."""
        return self.rank == 0

    def gathered(self, numbers: Tensor) -> Tensor:
        """All-gather a CPU tensor that has the same shape in all processes. Return [process ...]."""
        found = [torch.empty_like(numbers) for _ in range(self.size)]
        if self.size == 1:
            return numbers[None]
        dist.all_gather(found, numbers)
        return torch.stack(found)

    def any(self, value: bool) -> bool:
        """True if `value` is true in any process."""
        return value if self.size == 1 else bool(self.gathered(torch.tensor(value)).any())

    def shared(self, make: Callable[[], Value]) -> Value:
        """Call `make` in process 0, and return its value in all processes."""
        if self.size == 1:
            return make()
        made = [make() if self.leads else None]
        dist.broadcast_object_list(made)
        return cast(Value, made[0])


def team() -> Team:
    """Return this process's rank and the world size."""
    if not dist.is_initialized():
        return Team(restarts=_number("TORCHELASTIC_RESTART_COUNT", 0))
    return Team(dist.get_rank(), dist.get_world_size(), _number("TORCHELASTIC_RESTART_COUNT", 0))


def parts_of(settings: Train) -> int:
    """Return the number of processes over which the weights are divided."""
    return team().size if settings.parallel.shard else 1


def follows(environment: Mapping[str, str] = os.environ) -> bool:
    """True in a process that torchrun started with a rank other than 0."""
    return environment.get("RANK", "0") != "0" and _number("WORLD_SIZE", 1, environment) > 1


@contextlib.contextmanager
def joined() -> Iterator[Team]:
    """Join the process group of torchrun for the duration of the block.

    If the connection to a process is lost, process 0 raises RunError and the others exit silently.
    """
    begins = _number("WORLD_SIZE", 1) > 1 and not dist.is_initialized()
    if begins:
        _begin()
    try:
        yield team()
    except RuntimeError as error:
        if not is_lost(error):
            raise
        if team().leads:
            raise RunError("another process of this run has ended; training stopped") from None
        time.sleep(GRACE)
        sys.exit(1)
    finally:
        if begins:
            dist.destroy_process_group()


@contextlib.contextmanager
def outliving(interrupts: Interrupts) -> Iterator[None]:
    """Ignore torchrun's signal if the block fails because another process ended, so that the error is reported."""
    try:
        yield
    except RuntimeError as error:
        if is_lost(error):
            interrupts.ignore()
        raise


def is_lost(error: RuntimeError) -> bool:
    """True if a collective operation failed because another process ended."""
    return team().size > 1 and any(word in str(error).lower() for word in LOST)


def _begin() -> None:
    """Start torch.distributed with gloo for CPU tensors and NCCL for GPU tensors."""
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(_number("LOCAL_RANK", 0) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=WAIT))
        # after a restart, the store may still hold addresses of the failed processes
        store = dist.PrefixStore(f"tfkit-{team().restarts}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
    except (ValueError, RuntimeError) as error:
        raise RunError(f"the processes of this run cannot connect: {error}") from None


def _number(name: str, default: int, environment: Mapping[str, str] = os.environ) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
