"""Inputs and output of a printed model's forward, and tensors for the inputs."""

# Axes: batch, time (or source: tokens of the encoder, or of the memory), width.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.errors import UsageError
from tfkit.models.base import ModelOutput

PADDING = 3  # padded tokens at the end of row 0


class Unprintable(UsageError):
    """Model that cannot be printed as plain PyTorch, or whose text computes something else."""

    status = 1


def chosen(blueprint: Blueprint, more: Sequence[str] = ()) -> list[str]:
    """Return the names of the inputs in the order of the printed forward, with `more` at the end.

    Encoders and encoder-decoders have an `attention_mask` by default. Raise UsageError for a name that the model does
    not take.
    """
    for name, one in blueprint.extra_inputs.items():
        raise Unprintable(f"{one.readers[0]} reads the input '{name}', which the printed forward does not take")
    always, optional = _inputs(blueprint)
    known = list(dict.fromkeys([*always, *optional]))
    for name in more:
        if name not in known:
            raise UsageError(f"the printed model has no input '{name}'; available: {', '.join(known)}")
    return list(dict.fromkeys([*always, *more]))


def _inputs(blueprint: Blueprint) -> tuple[list[str], list[str]]:
    """Return the inputs of every printed forward, and those that can be added."""
    plans = list(blueprint.stacks())
    first, last, paired = plans[0], plans[-1], len(plans) > 1
    has_memory = not paired and last.memory_width is not None
    needs = sorted({name for plan in plans for name in plan.needs})
    pads, packs = (not any(plan.without(ability) for plan in plans) for ability in ("padding", "packing"))
    always = {
        "inputs_embeds" if first.reads_vectors else "input_ids": True,
        "encoder_hidden_states": has_memory,
        **dict.fromkeys(needs, True),
        "attention_mask": pads and (paired or last.side == "encoder"),
        "decoder_inputs_embeds" if last.reads_vectors else "decoder_input_ids": paired,
    }
    optional = {
        "attention_mask": pads,
        "token_type_ids": _segments(first) > 0,
        "segment_ids": packs and not paired and "prefix_length" not in needs,
        "position_ids": True,
        "encoder_attention_mask": pads and has_memory,
        "decoder_attention_mask": pads and paired,
        "decoder_position_ids": paired,
    }
    return [name for name, has in always.items() if has], [name for name, can in optional.items() if can]


def tensors(
    blueprint: Blueprint, names: Sequence[str], batch: int, time: int, source_time: int, device: str, seed: int = 0
) -> dict[str, Tensor]:
    """Return random inputs on `device`, cpu or meta, of `time` tokens and, in an encoder or a memory, `source_time`.

    The last tokens of row 0 are padding, each row packs several texts, and its first tokens see all tokens.
    """
    generator = Generator().manual_seed(seed)
    plans = list(blueprint.stacks())
    found = {}
    for name in names:
        of_last = len(plans) == 1 or name.startswith("decoder_")
        length = source_time if name.startswith("encoder_") or not of_last else time
        with torch.device(device):
            found[name] = _tensor(name, plans[-1 if of_last else 0], (batch, length), generator)
    return found


def _tensor(name: str, plan: StackPlan, size: tuple[int, int], generator: Generator) -> Tensor:
    """Return one input of `plan`; `size` is its batch and length."""
    half = -(-size[1] // 2)
    place = torch.arange(size[1]).expand(size)  # [batch time]
    row = torch.arange(size[0])[:, None]  # [batch 1]
    width = (plan.d_model if plan.embedding is None else plan.embedding.reads(plan.shape())) or plan.d_model
    makers = {
        "input_ids": lambda: torch.randint(plan.vocab_size or 1, size, generator=generator),
        "token_type_ids": lambda: torch.randint(_segments(plan) or 2, size, generator=generator),
        "inputs_embeds": lambda: torch.randn(*size, width, generator=generator),
        "hidden_states": lambda: torch.randn(*size, plan.memory_width or width, generator=generator),
        "attention_mask": lambda: 1 - ((row == 0) & (place >= max(1, size[1] - PADDING))).long(),
        "segment_ids": lambda: 1 + place // (half - row).clamp(min=1),
        "position_ids": lambda: place % half,
        "global_attention_mask": lambda: (place <= 2 * row).long(),
        "prefix_length": lambda: (half - row[:, 0]).clamp(min=0),
    }
    return makers[name.removeprefix("decoder_").removeprefix("encoder_")]()


def _segments(plan: StackPlan) -> int:
    return 0 if plan.embedding is None else plan.embedding.num_segments()


def answer(out: ModelOutput) -> Tensor:
    """Return the logits, else the output of the first additional head, else the hidden states."""
    return next(one for one in (out.logits, *out.heads.values(), out.hidden) if one is not None)
