"""Models on the meta device, and random draws keyed by name: equal initial values in every model of a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from tfkit.core.blueprint import Blueprint

DRAWS = (
    *(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.bernoulli_),
    *(init.normal_, init.uniform_, init.kaiming_normal_, init.kaiming_uniform_),
)


class NoDraws(TorchFunctionMode):
    """Mode that skips random initialization, which is useless on `meta` and makes torch import its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def skeleton(blueprint: Blueprint) -> nn.Module:
    """Build the model on the meta device."""
    with torch.device("meta"), NoDraws():
        model: nn.Module = blueprint.type.build(blueprint)
    return model


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
