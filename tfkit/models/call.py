"""Inputs of a model call, and their validation and bundling for one stack."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

import torch
from torch import Tensor

from tfkit.core.context import Collector
from tfkit.core.errors import UsageError, with_article
from tfkit.core.inputs import Inputs
from tfkit.core.synonyms import nearest
from tfkit.models.state import DecodeState

DEFAULTS = {"with_heads": True}  # defaults of optional inputs other than None

Forward = TypeVar("Forward", bound=Callable[..., object])


class CallInputs(TypedDict, total=False):
    """Optional inputs that every model accepts, in addition to ids and their mask."""

    token_type_ids: Tensor | None  # [batch time]
    position_ids: Tensor | None  # [batch time]
    global_attention_mask: Tensor | None  # [batch time], 1 = attends to all and is attended to by all
    prefix_length: Tensor | None  # [batch], length of the prefix that all tokens see
    inputs_embeds: Tensor | None  # [batch time d_model], instead of ids
    encoder_hidden_states: Tensor | None  # [batch source width]
    state: DecodeState | None  # state of earlier calls, which this call continues
    observe: Collection[str] | None  # "attention", "hidden_states": stored in `out.observed`
    with_heads: bool  # False if the caller computes the heads, such as for only a few positions


class StackInputs(CallInputs, total=False):
    """Optional inputs of a model with one stack."""

    segment_ids: Tensor | None  # [batch time], only tokens with equal numbers see each other (packing); 0 = padding
    encoder_attention_mask: Tensor | None  # [batch source], 1 = real token


class PairInputs(CallInputs, total=False):
    """Optional inputs of an encoder-decoder; inputs of the decoder have the prefix `decoder_`."""

    decoder_attention_mask: Tensor | None  # [batch target], 1 = real token
    decoder_position_ids: Tensor | None  # [batch target]
    decoder_inputs_embeds: Tensor | None  # [batch target d_model], instead of ids


def named_inputs(inputs: type[CallInputs]) -> Callable[[Forward], Forward]:
    """Return a decorator that adds the keys of `inputs` to a forward's signature (for help, export and messages)."""

    def rename(forward: Forward) -> Forward:
        known = inspect.signature(forward)
        own = [one for one in known.parameters.values() if one.kind is not one.VAR_KEYWORD]
        names = [name for name in inputs.__annotations__ if name not in known.parameters]
        keys = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name)) for name in names]
        vars(forward).update(__signature__=known.replace(parameters=[*own, *keys]))
        return forward

    return rename


@dataclass(frozen=True)
class Call:
    """Inputs of one stack in a call: ids or vectors, and optional inputs."""

    inputs: Inputs = field(default_factory=Inputs)
    vectors: Tensor | None = None  # [batch time width], instead of ids
    positions: Tensor | None = None  # [batch time]
    segments: Tensor | None = None  # [batch time], only tokens with equal numbers see each other
    memory: Tensor | None = None  # [batch source memory_width]
    memory_real: Tensor | None = None  # [batch source]
    state: DecodeState | None = None
    collector: Collector = field(default_factory=Collector)

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens, [batch time]; None if all are real."""
        return self.inputs.real

    @property
    def tokens(self) -> Tensor:
        """Ids or vectors of the call. Raise UsageError if it has neither."""
        given = self.inputs.input_ids if self.vectors is None else self.vectors
        if given is None:
            raise UsageError("pass input_ids, or vectors as inputs_embeds")
        return given


def make_inputs(
    ids: Tensor | None,
    mask: Tensor | None,
    given: CallInputs,
    vectors: Tensor | None = None,
    past: int = 0,
    prefix: str = "",
) -> Inputs:
    """Check and bundle the inputs of one stack. Raise UsageError for a wrong shape or dtype.

    `vectors` replace ids, `past` is the number of tokens in a decode state, and `prefix` is the prefix of input names
    in messages.
    """
    check_ids(ids, f"{prefix}input_ids")
    tokens = ids if vectors is None else vectors
    real = as_real(mask, tokens, f"{prefix}attention_mask", past)
    types = None if prefix else given.get("token_type_ids")
    check_length(types, tokens, "token_type_ids")
    return Inputs(ids, types, given.get("global_attention_mask"), given.get("prefix_length"), real)


def as_real(mask: Tensor | None, tokens: Tensor | None, name: str, past: int = 0) -> Tensor | None:
    """Convert an attention mask (1 = real token) to booleans. Raise UsageError if its shape does not match `tokens`.

    With a decode state of `past` tokens, the mask may cover only the new tokens or all tokens so far.
    """
    if mask is None:
        return None
    _check_tensor(mask, name)
    if mask.dim() != 2 or (tokens is not None and mask.shape[0] != tokens.shape[0]):
        want = "[batch time]" if tokens is None else f"[{tokens.shape[0]} time]"
        raise UsageError(f"{name} must be {want} with 1 for real tokens, got shape {list(mask.shape)}")
    check_length(mask, tokens, name, past)
    return mask.bool()


def check_length(value: Tensor | None, tokens: Tensor | None, name: str, past: int = 0) -> None:
    """Raise UsageError if an input [batch time] matches neither the new tokens nor all tokens including the past."""
    if (
        value is None or tokens is None or torch.compiler.is_compiling()
    ):  # comparing lengths would specialize compiled graphs
        return
    _check_tensor(value, name)
    time = tokens.shape[1]
    if value.dim() != 2 or value.shape[1] not in (time, past + time):
        want = f"{time}" if not past else f"{time}, or {past + time} including the past"
        raise UsageError(f"{name} must be [batch time] for {want} tokens, got shape {list(value.shape)}")


def beyond(ids: Tensor | None, size: int | None, name: str) -> UsageError | None:
    """Return an error if some ids are outside a table of this size, else None."""
    if ids is None or size is None or ids.is_meta or not ids.numel():
        return None
    least, most = int(ids.min()), int(ids.max())
    if least >= 0 and most < size:
        return None
    return UsageError(f"{name} must be from 0 to {size - 1:,}, got {least if least < 0 else most:,}")


def unknown_input(name: str, known: Collection[str], model: str) -> UsageError:
    """Return the error for an unknown input of a model call, with a hint."""
    if name == "labels":
        why = "compute the loss from out.logits, or use tfkit.train"
    elif name.startswith("decoder_"):
        why = f"use {name.removeprefix('decoder_')}; only an encoder_decoder has {name}"
    else:
        hint = nearest(name, list(known))
        why = f"did you mean {hint}?" if hint else f"available: {', '.join(known)}"
    return UsageError(f"{model}: unknown input {name}: {why}")


def check_ids(ids: Tensor | None, name: str) -> None:
    """Raise UsageError unless `ids` are integers of shape [batch time]."""
    if ids is None:
        return
    _check_tensor(ids, name)
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise UsageError(
            f"{name} must be integers [batch time] (torch.int64 or torch.int32), got shape {list(ids.shape)} of "
            f"{ids.dtype}"
        )


def _check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} must be a tensor [batch time], got {with_article(type(value).__name__)}; use torch.tensor"
        )


def check_needed(needed: Collection[str], given: Mapping[str, Tensor | None]) -> None:
    """Raise UsageError if a required input is missing, or if a given input is not read by any part."""
    for name, value in given.items():
        if name in needed and value is None:
            raise UsageError(f"this model requires {name} in every call")
        if name not in needed and value is not None:
            raise UsageError(f"no part of this model reads {name}")
