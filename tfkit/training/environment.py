"""Software versions and hardware of a run, for environment.json."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import tfkit
from tfkit import __version__
from tfkit.training.device import describe

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "pydantic")


def environment(seed: int, device: torch.device) -> dict[str, Any]:
    """Return the contents of a new environment.json. Its key "tfkit" identifies run folders."""
    return {
        **versions(),
        "device": describe(device),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Return the versions of tfkit, its dependencies and Python, a hash of tfkit's code, and the platform."""
    return {
        "tfkit": __version__,
        "code": _code(),
        **{name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def resumption(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the list of resumptions with a new entry: step, time, device and changed versions."""
    other = {name: now[name] for name in versions() if now[name] != before.get(name)}
    again = {"step": step, "started": now["started"], "device": now["device"], "threads": now["threads"], **other}
    resumed = before.get("resumed")
    return {"resumed": [*(resumed if isinstance(resumed, list) else []), again]}


@cache
def _code() -> str:
    """Return an abbreviated hash of tfkit's source, which distinguishes versions under development."""
    root, digest = Path(tfkit.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
