"""Checks before anything is computed that the texts that are generated at once fit into memory."""

from __future__ import annotations

from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.memory import free_memory, gigabytes
from tfkit.generation.strategy import Strategy
from tfkit.models import Model

COPIES = 4  # of the float32 scores of the next token, at least: logits, log-probabilities, totals and their order
TEXT = 1000  # bytes of what else is kept of a text, at least


def check_room(strategy: Strategy, model: Model, prompts: int) -> None:
    """Raise UsageError where so many prompts together take more memory than their device has free."""
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
        f"{what} followed at once take {gigabytes(needed)} at least, and {gigabytes(free)} are free; "
        f"at most {free // each:,} texts fit"
    )
