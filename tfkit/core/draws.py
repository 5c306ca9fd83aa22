"""Random draws keyed by name: models with the same seed share initial values for tensors of equal name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

import torch

_SEED: ContextVar[int | None] = ContextVar("seed of the model that is being built", default=None)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Seed the CPU generator within the block and restore its state afterwards."""
    token = _SEED.set(seed)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        _SEED.reset(token)


def draw_for(name: str) -> None:
    """Reseed the CPU generator from the block's seed and `name`; a no-op outside a block."""
    if (seed := _SEED.get()) is not None:
        digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
        torch.default_generator.manual_seed(int.from_bytes(digest, "big") >> 1)
