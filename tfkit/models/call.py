"""The inputs of one stack in a call, checked and bundled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tfkit.core.context import Collector
from tfkit.core.errors import UsageError, with_article
from tfkit.core.inputs import Inputs
from tfkit.core.synonyms import nearest
from tfkit.models.state import DecodeState


@dataclass(frozen=True)
class Call:
    """The inputs of one stack in a call: ids or vectors, and optional others."""

    inputs: Inputs = field(default_factory=Inputs)
    vectors: Tensor | None = None  # [batch time width] instead of ids
    positions: Tensor | None = None  # [batch time]
    segments: Tensor | None = None  # [batch time], tokens of equal numbers see one another
    memory: Tensor | None = None  # [batch source memory_width]
    memory_real: Tensor | None = None  # [batch source]
    state: DecodeState | None = None
    collector: Collector = field(default_factory=Collector)

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens, [batch time]; None: all."""
        return self.inputs.real

    @property
    def tokens(self) -> Tensor:
        """The given ids or vectors. Raises UsageError if there are none."""
        given = self.inputs.input_ids if self.vectors is None else self.vectors
        if given is None:
            raise UsageError("give input_ids, or vectors as inputs_embeds")
        return given


def make_inputs(
    ids: Tensor | None,
    mask: Tensor | None,
    token_type_ids: Tensor | None = None,
    global_attention_mask: Tensor | None = None,
    prefix_length: Tensor | None = None,
    prefix: str = "",
    vectors: Tensor | None = None,
    past: int = 0,
) -> Inputs:
    """Check and bundle the inputs of one stack; `prefix` begins their names in messages.

    `vectors` replace ids. `past` is the number of tokens in a decode state. Raises UsageError for a wrong shape or
    dtype.
    """
    check_ids(ids, f"{prefix}input_ids")
    tokens = ids if vectors is None else vectors
    real = as_real(mask, tokens, f"{prefix}attention_mask", past)
    check_length(token_type_ids, tokens, "token_type_ids")
    return Inputs(ids, token_type_ids, global_attention_mask, prefix_length, real)


def as_real(mask: Tensor | None, tokens: Tensor | None, name: str, past: int = 0) -> Tensor | None:
    """Convert an attention mask (1 = a real token) to booleans. Raise UsageError if its shape does not match `tokens`.

    After `past` tokens it may cover all tokens so far.
    """
    if mask is None:
        return None
    _check_tensor(mask, name)
    if mask.dim() != 2 or (tokens is not None and mask.shape[0] != tokens.shape[0]):
        want = "[batch time]" if tokens is None else f"[{tokens.shape[0]} time]"
        raise UsageError(f"{name} is {want} with 1 for a real token, got shape {list(mask.shape)}")
    check_length(mask, tokens, name, past)
    return mask.bool()


def check_length(value: Tensor | None, tokens: Tensor | None, name: str, past: int = 0) -> None:
    """Raise UsageError if an input [batch time] has neither the length of the tokens nor that including the past."""
    if value is None or tokens is None or torch.compiler.is_compiling():  # compiled graphs must not compare lengths
        return
    _check_tensor(value, name)
    time = tokens.shape[1]
    if value.dim() != 2 or value.shape[1] not in (time, past + time):
        want = f"{time}" if not past else f"{time}, or {past + time} with those before them"
        raise UsageError(f"{name} is [batch time] for {want} tokens, got shape {list(value.shape)}")


def beyond(ids: Tensor | None, size: int | None, name: str) -> UsageError | None:
    """Return the error for ids outside a table of that size; None if all are inside."""
    if ids is None or size is None or ids.is_meta or not ids.numel():
        return None
    least, most = int(ids.min()), int(ids.max())
    if least >= 0 and most < size:
        return None
    return UsageError(f"{name} are from 0 to {size - 1:,}, got {least if least < 0 else most:,}")


def refuse_unknown(unknown: Mapping[str, object], known: Collection[str], model: str) -> None:
    """Raise UsageError for inputs that the model's call does not take."""
    name = next(iter(unknown))
    if name == "labels":
        why = "a loss is computed from out.logits, or by tfkit.train"
    elif name.startswith("decoder_"):
        why = f"its input is {name.removeprefix('decoder_')}; {name} is for an encoder_decoder"
    else:
        hint = nearest(name, list(known))
        why = f"did you mean {hint}?" if hint else f"it takes {', '.join(known)}"
    raise UsageError(f"{model}: takes no {name}: {why}")


def check_ids(ids: Tensor | None, name: str) -> None:
    """Raise UsageError unless `ids` are whole numbers of shape [batch time]."""
    if ids is None:
        return
    _check_tensor(ids, name)
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise UsageError(
            f"{name} is [batch time] of whole numbers (torch.int64 or torch.int32), got shape {list(ids.shape)} of "
            f"{ids.dtype}"
        )


def _check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} is a tensor [batch time], got {with_article(type(value).__name__)}; torch.tensor makes one of it"
        )


def check_needed(needed: Collection[str], given: Mapping[str, Tensor | None]) -> None:
    """Raise UsageError for a missing input that a part needs, or a given one that no part reads."""
    for name, value in given.items():
        if name in needed and value is None:
            raise UsageError(f"this model needs {name} with every call")
        if name not in needed and value is not None:
            raise UsageError(f"{name} was given, but no part of this model reads it")
