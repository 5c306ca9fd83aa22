"""The current machine: a description to store with results, and free and peak memory."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tfkit.core.bounds import JsonObject

if TYPE_CHECKING:
    import torch

SAYINGS = ("out of memory", "can't allocate memory", "not enough memory")  # found in messages of torch's allocators


def machine() -> JsonObject:
    """Return the host name, the processor, the cores available to this process, and the memory in bytes."""
    processor = _cpuinfo("model name") or platform.processor() or platform.machine()
    cores = os.cpu_count() or 1
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        cores = len(os.sched_getaffinity(0))
    return {"host": platform.node(), "processor": processor, "cores": cores, "memory": _total_memory()}


@functools.cache
def vendor() -> str:
    """Return the vendor of the processor as it names itself: AuthenticAMD, GenuineIntel; empty if unknown."""
    name = _cpuinfo("vendor_id") or platform.processor().rpartition(", ")[2]  # Windows: Intel64 Family 6, GenuineIntel
    return name if name.isalpha() else ""


def _cpuinfo(key: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


def _total_memory() -> int | None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def free_memory(device: torch.device | None = None) -> int | None:
    """Return the memory available to this process in bytes, on a device or in RAM; None if unknown."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    figures = [figure for figure in (_machine_memory(), _group_memory()) if figure is not None]
    return min(figures, default=None)


def peak_memory(device: torch.device | None = None) -> int | None:
    """Return the peak memory of this process in bytes, on a device or in RAM; None if unknown."""
    if device is not None and device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _machine_memory() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return _total_memory()


def _group_memory() -> int | None:
    """Return the free memory of the container (cgroup); reclaimable page cache counts as free."""
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        cache = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return max(0, limit - used + cache)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error was raised by a failed allocation; torch raises a RuntimeError."""
    failed = isinstance(error, RuntimeError) and any(saying in str(error) for saying in SAYINGS)
    return failed or isinstance(error, MemoryError)


def readable_bytes(count: int) -> str:
    """Format bytes: 512 B, 63.5 KiB, 1.2 GiB."""
    if count < 1024:
        return f"{count} B"
    value, unit = float(count), ""
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        value /= 1024
        if value < 1023.95 or unit == "EiB":
            break
    return f"{value:,.1f} {unit}"
