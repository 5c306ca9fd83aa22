"""Greedy search: always the most likely next token."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from tfkit.core.errors import UsageError
from tfkit.generation.rules import Rules
from tfkit.generation.stepper import Ids, Stepper, evaluating, most_positions
from tfkit.models import Model

DROP_SHARE = 0.25  # so many finished rows leave the batch: copying the state then costs less than computing them


def greedy(
    model: Model,
    prompts: Sequence[Ids],
    max_new_tokens: int | Sequence[int],
    rules: Rules | None = None,
    *,
    sources: Sequence[Ids] | None = None,
    use_cache: bool = True,
) -> list[list[int]]:
    """What the model writes behind each prompt until a stop rule ends it; tokens that a rule cuts off are left out.

    `max_new_tokens` is one number, or one for each row; a model of bounded positions stops where they end, and a row
    for which the logits rules leave no token ends too. In an encoder-decoder `sources` are translated, and a prompt is
    what the target begins with (the start token). Raises UsageError for what the model cannot read, before anything is
    computed.
    """
    rules = rules or Rules()
    room = _room(model, prompts, max_new_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    began = time.monotonic()
    with evaluating(model):
        stepper = Stepper(model, prompts, sources, use_cache)
        rows = list(range(len(prompts)))  # which prompt each row of the stepper writes on
        done = {row for row in rows if room[row] == 0}
        while len(done) < len(prompts):
            best, chosen = rules.scores(stepper.logits(), stepper.tokens(), stepper.written()).max(dim=-1)
            seconds = time.monotonic() - began
            for row, score, token in zip(rows, best.tolist(), chosen.tolist(), strict=True):
                if row in done:
                    continue
                if score == -math.inf:
                    done.add(row)
                    continue
                written[row].append(token)
                if len(written[row]) == room[row] or rules.done(prompts[row], written[row], seconds):
                    done.add(row)
            stepper.append(chosen)
            alive = [place for place, row in enumerate(rows) if row not in done]
            if alive and len(alive) <= (1 - DROP_SHARE) * len(rows):
                stepper.keep(torch.tensor(alive, device=chosen.device))
                rows = [rows[place] for place in alive]
    return [rules.cut(ids) for ids in written]


def _room(model: Model, prompts: Sequence[Ids], most: int | Sequence[int]) -> list[int]:
    """How many tokens each row may write: as many as asked for, and no more than its positions hold."""
    asked = [most] * len(prompts) if isinstance(most, int) else list(most)
    if len(asked) != len(prompts) or min(asked, default=0) < 0:
        raise UsageError(f"max_new_tokens is a number from 0 on, or one for each of {len(prompts)} prompts, got {most}")
    bound = most_positions(model, model.blueprint.last.side)
    if bound is None:
        return asked
    # the last token written is never read again, so it needs no position
    return [min(number, bound - len(prompt) + 1) for number, prompt in zip(asked, prompts, strict=True)]
