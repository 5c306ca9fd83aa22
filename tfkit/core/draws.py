"""Random draws by name, so that models of one seed share the initial values of tensors of one name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

import torch

_SEED: ContextVar[int | None] = ContextVar("seed of the model that is being built", default=None)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw from `seed` within the block; the global RNG state on the CPU is restored afterwards."""
    token = _SEED.set(seed)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        _SEED.reset(token)


def draw_for(name: str) -> None:
    """Restart the draws from the seed of the block and `name`; a no-op outside of a block."""
    if (seed := _SEED.get()) is not None:
        digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
        torch.default_generator.manual_seed(int.from_bytes(digest, "big") >> 1)
