"""Where and in what precision training runs, and whether the model fits there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from tfkit.core.errors import UsageError

TRAINED_BYTES = 16  # a float32 weight, its gradient and two moments of Adam
FROZEN_BYTES = 4


def choose_device(name: str) -> torch.device:
    """The device called `name`; `auto` takes CUDA where there is one. Raises UsageError for what is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"train.device: {name!r} is no device; write auto, cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"train.device: there is no {name}; torch sees {torch.cuda.device_count()} CUDA devices here")
    return device


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """bfloat16 where it is safe, with float32 parameters; or everything in float32."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"


def check_memory(model: nn.Module, device: torch.device) -> None:
    """Raise UsageError when training `model` (built on `meta`) cannot fit; what activations take is not counted."""
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    needed, free = trained * TRAINED_BYTES + frozen * FROZEN_BYTES, available_memory(device)
    if free is not None and needed > free:
        raise UsageError(
            f"training {trained + frozen:,} parameters needs {gigabytes(needed)} before any activation "
            f"({TRAINED_BYTES} bytes each: weight, gradient, two moments), and {device} has {gigabytes(free)} free; "
            "make the model smaller, or train on a larger machine"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that are free on `device`, None where nobody can say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    figures = [figure for figure in (_machine_memory(), _group_memory()) if figure is not None]
    return min(figures, default=None)


def _machine_memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_memory() -> int | None:
    """What a container leaves to its processes; page cache that it can drop is counted as free."""
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        return max(0, limit - used + _cache((group / "memory.stat").read_text(encoding="ascii").splitlines()))
    return None


def _cache(lines: Iterable[str]) -> int:
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def gigabytes(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:,.1f} GiB"
