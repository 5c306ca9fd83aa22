"""The processes of one training, as torchrun starts them; a training without torchrun is a team of one."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from tfkit.core.errors import RunError
from tfkit.recipe.settings.sections import Train
from tfkit.training.interrupt import Interrupts

WAIT = timedelta(hours=12)  # for process 0, which validates and writes; a dead process is noticed at once
GRACE = 2.0  # seconds in which torchrun sees the process that failed first
LOST = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe")  # in messages of torch.distributed
Value = TypeVar("Value")


@dataclass(frozen=True)
class Team:
    """This process among those of a training. Process 0 writes the run; all others are silent."""

    rank: int = 0
    size: int = 1
    restarts: int = 0  # of all processes by torchrun, after one of them failed

    @property
    def leads(self) -> bool:
        """True in the process that writes."""
        return self.rank == 0

    def gathered(self, numbers: Tensor) -> Tensor:
        """Return the numbers of all processes, [process ...], of equal shapes on a CPU."""
        found = [torch.empty_like(numbers) for _ in range(self.size)]
        if self.size == 1:
            return numbers[None]
        dist.all_gather(found, numbers)
        return torch.stack(found)

    def any(self, value: bool) -> bool:
        """True if `value` is true in any process."""
        return value if self.size == 1 else bool(self.gathered(torch.tensor(value)).any())

    def shared(self, make: Callable[[], Value]) -> Value:
        """Return the value that process 0 makes, in all processes."""
        if self.size == 1:
            return make()
        made = [make() if self.leads else None]
        dist.broadcast_object_list(made)
        return cast(Value, made[0])


def team() -> Team:
    """Return the processes that have joined."""
    if not dist.is_initialized():
        return Team(restarts=_number("TORCHELASTIC_RESTART_COUNT", 0))
    return Team(dist.get_rank(), dist.get_world_size(), _number("TORCHELASTIC_RESTART_COUNT", 0))


def parts_of(settings: Train) -> int:
    """Return the number of processes that the weights are divided over."""
    return team().size if settings.parallel.shard else 1


def follows(environment: Mapping[str, str] = os.environ) -> bool:
    """True in a process of torchrun that is not the first, and writes nothing."""
    return environment.get("RANK", "0") != "0" and _number("WORLD_SIZE", 1, environment) > 1


@contextlib.contextmanager
def joined() -> Iterator[Team]:
    """Join the processes that torchrun has started, until the block ends.

    Raise RunError in process 0 if another one has ended; the others exit without a word if process 0 has.
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
            raise RunError("another process of this training has ended; training stopped") from None
        time.sleep(GRACE)
        sys.exit(1)
    finally:
        if begins:
            dist.destroy_process_group()


@contextlib.contextmanager
def outliving(interrupts: Interrupts) -> Iterator[None]:
    """Let this process say that another one is gone, although torchrun sends it a signal."""
    try:
        yield
    except RuntimeError as error:
        if is_lost(error):
            interrupts.ignore()
        raise


def is_lost(error: RuntimeError) -> bool:
    """True if the error of a collective operation says that another process is gone."""
    return team().size > 1 and any(word in str(error).lower() for word in LOST)


def _begin() -> None:
    """Start torch.distributed: gloo for tensors on a CPU, NCCL for those on a GPU."""
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(_number("LOCAL_RANK", 0) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=WAIT))
        # a store may still hold the addresses of processes that failed before a restart
        store = dist.PrefixStore(f"tfkit-{team().restarts}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)
    except (ValueError, RuntimeError) as error:
        raise RunError(f"the processes of this training cannot connect: {error}") from None


def _number(name: str, default: int, environment: Mapping[str, str] = os.environ) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else default
