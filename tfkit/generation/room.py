"""Memory check before generation: all texts of a batch must fit into memory."""

from __future__ import annotations

from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.machine import free_memory, readable_bytes
from tfkit.generation.strategy import Strategy
from tfkit.models import Model

COPIES = 4  # minimum number of float32 tensors of vocabulary size per text: logits, log-probabilities, totals, order
TEXT = 1000  # minimum bytes of other data per text


def check_room(strategy: Strategy, model: Model, prompts: int) -> None:
    """Raise UsageError if a batch of `prompts` needs more memory than is free on the device."""
    weight: Tensor = next(model.parameters())
    each = COPIES * 4 * (model.blueprint.last.vocab_size or 0) + TEXT
    needed, free = prompts * strategy.texts_at_once * each, free_memory(weight.device)
    if free is None or needed <= free:
        return
    what = f"{prompts:,} prompts" if prompts > 1 else "a prompt"
    if strategy.texts_at_once > 1:
        what += (
            f" with {strategy.texts_at_once:,} texts each" if prompts > 1 else f" with {strategy.texts_at_once:,} texts"
        )
    raise UsageError(
        f"{what} need at least {readable_bytes(needed)} of memory, but only {readable_bytes(free)} are free; "
        f"at most {free // each:,} texts fit at once"
    )
