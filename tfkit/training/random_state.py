"""Global RNG state: capture, restoration and temporary seeding."""

from __future__ import annotations

import base64
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def capture() -> dict[str, Any]:
    """Capture the RNG states of Python, numpy and torch (with CUDA) as JSON-serializable data."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    name, keys, place, has_gauss, cached = legacy
    cuda: list[Tensor] = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), int(place), int(has_gauss), float(cached)],
        "torch": _text(torch.get_rng_state()),
        "cuda": [_text(state) for state in cuda],
    }


def restore(state: dict[str, Any]) -> None:
    """Restore all RNG states. Skip CUDA states if the number of GPUs differs."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([_tensor(text) for text in state["cuda"]])


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all RNGs within the block and restore their states afterwards."""
    before = capture()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        restore(before)


def _text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
