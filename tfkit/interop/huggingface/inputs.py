"""Inputs for comparing a run with its Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import UsageError
from tfkit.interop.huggingface.classes import OF_TEXTS
from tfkit.interop.huggingface.reference_model import tokenizer_difference
from tfkit.run import Run

ROWS, LENGTH = 2, 48  # size of random inputs; the length is a multiple of common window sizes


def call_of(run: Run, folder: Path, text: str | None) -> tuple[dict[str, Tensor], str, list[str]]:
    """Return call arguments that both models accept, a description of them, and notes."""
    blueprint = run.blueprint
    notes: list[str] = []
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    if text is None:
        call = _random_input(next(blueprint.stacks()), _room(run), 0)
        description = f"{ROWS} rows of {_room(run)} random {'tokens' if 'input_ids' in call else 'vectors'}"
    else:
        ids = run.read([text])[0]
        if not ids:
            raise UsageError("the text has no tokens to compare")
        call, description = {"input_ids": torch.tensor([ids])}, f"{len(ids)} tokens of the text"
        notes += tokenizer_difference(folder, text, ids)
    count, length = next(iter(call.values())).shape[:2]
    if paired:
        again = _random_input(blueprint.last, _room(run), 1)
        call |= {f"decoder_{name}": values[:count] for name, values in again.items()}
        looked_up = {"input_ids", "decoder_input_ids"} <= call.keys()
        if looked_up and blueprint.head is not None and blueprint.head.part.part_name in OF_TEXTS:
            call |= _ended(call["input_ids"], call["decoder_input_ids"], dict(blueprint.special_ids).get("end"))
    marks, seen = _needed(blueprint, count, length)
    return call | marks, description, notes + seen


def _needed(blueprint: Blueprint, count: int, length: int) -> tuple[dict[str, Tensor], list[str]]:
    """Return the inputs that the mask rules require, for `count` rows, and a description of each."""
    needs = {name for plan in blueprint.stacks() for name in plan.needs}
    call: dict[str, Tensor] = {}
    notes = []
    if "global_attention_mask" in needs:
        call["global_attention_mask"] = (torch.arange(length) == 0).long().expand(count, length)
        notes.append("the first token attends to all tokens, and all attend to it")
    if "prefix_length" in needs:
        call["prefix_length"] = torch.full((count,), max(1, length // 2))
        notes.append(f"the first {max(1, length // 2)} tokens of a row attend to each other")
    return call, notes


def _random_input(plan: StackPlan, length: int, seed: int) -> dict[str, Tensor]:
    """Return random input for a stack: ids [rows length], or vectors."""
    embedding: Any = plan.embedding
    width = plan.d_model if embedding is None else embedding.reads(plan.shape())
    if width is None:
        return {"input_ids": _random(plan.vocab_size, length, seed)}
    generator = torch.Generator().manual_seed(seed)
    return {"inputs_embeds": torch.randn(ROWS, length, width, generator=generator)}


def _ended(rows: Tensor, again: Tensor, end: int | None) -> dict[str, Tensor]:
    """End each source row with the end token, whose state represents the row; return {} if not applicable."""
    if end is None or rows.shape != again.shape:
        return {}
    other = end - 1 if end else end + 1
    ended = rows.where(rows != end, other).index_fill(1, torch.tensor([rows.shape[1] - 1]), end)
    return {"input_ids": ended}


def _room(run: Run) -> int:
    """Return the length of random inputs that all stacks accept."""
    bounds = [plan.max_length for plan in run.blueprint.stacks() if plan.max_length is not None]
    return min([LENGTH, *bounds])


def _random(size: int | None, length: int, seed: int) -> Tensor:
    """Return random ids [rows length], excluding the lowest ids, which are often special tokens."""
    size = size or 1
    least = min(10, size - 1)
    return torch.randint(least, size, (ROWS, length), generator=torch.Generator().manual_seed(seed))
