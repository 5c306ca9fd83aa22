"""Decode state, and inputs of a model call with their validation and bundling for one stack."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from tfkit.core.context import Collector, Span
from tfkit.core.errors import UsageError, with_article
from tfkit.core.inputs import Inputs
from tfkit.core.store import ExtraInput
from tfkit.core.synonyms import nearest
from tfkit.functional.view import GrowingBuffers
from tfkit.models.layer import LayerState


class DecodeState:
    """Data kept between decoding calls: the states of all sublayers, and properties of the tokens so far.

    For layer i, `names[i]` are the names of parts for messages, and `memories[i]` the sublayers that attend to the
    memory, whose states do not grow.
    """

    forgets = True  # True if keys that are no longer visible may be dropped

    def __init__(
        self, layers: list[LayerState], names: Sequence[dict[str, str]] = (), memories: Sequence[frozenset[str]] = ()
    ) -> None:
        self.layers = layers
        self.length = 0
        self.known = 0  # text length of the last call, including tokens rewound since
        self.memory: Tensor | None = None  # output of the encoder, [rows source d_model]
        self.memory_real: Tensor | None = None
        self.sources: Tensor | None = None  # [rows], rows with equal numbers have the same source; None if unknown
        self._names = names or [{name: name for name in layer} for layer in layers]
        self._memories = memories or [frozenset()] * len(layers)
        self._facts: dict[str, GrowingBuffers] = {}

    @property
    def positions(self) -> Tensor | None:
        """Positions of the tokens so far, [rows|1 length]."""
        return self._fact("positions")

    @property
    def real(self) -> Tensor | None:
        """Mask of real tokens so far, [rows length]; None if there is no padding."""
        return self._fact("real")

    @property
    def segments(self) -> Tensor | None:
        """Segment number of each token so far, [rows length]."""
        return self._fact("segments")

    def _fact(self, name: str) -> Tensor | None:
        return self._facts[name].held()[0] if name in self._facts else None

    def extend(
        self, positions: Tensor, real: Tensor | None, segments: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Append the properties of new tokens, each [rows|1 new]; return the properties of all tokens so far."""
        new = positions.shape[1]
        self._add("positions", positions)
        if real is not None and real.shape[1] == self.length + new:
            self._facts.pop("real", None)  # this mask also covers the past
            self._add("real", real)
        elif real is not None or "real" in self._facts:
            real = torch.ones_like(positions, dtype=torch.bool) if real is None else real
            if "real" not in self._facts and self.length:
                self._add("real", real.new_ones(real.shape[0], self.length))
            self._add("real", real)
        if segments is not None:
            self._add("segments", segments)
        self.length += new
        known = self.positions
        return positions if known is None else known, self.real, self.segments

    def real_with(self, real: Tensor | None, new: int) -> Tensor | None:
        """Return the mask of all tokens so far and `new` ones, whose mask may also cover the past."""
        past = self.real
        if real is None:
            return None if past is None else F.pad(past, (0, new), value=True)
        if real.shape[1] > new or not self.length:
            return real
        past = real.new_ones(len(real), self.length) if past is None else past.expand(len(real), -1)
        return torch.cat((past, real), dim=1)

    def span(self, queries: int, device: torch.device) -> Span:
        return Span(queries, self.length + queries, self.length, device)

    def take_back(self, length: int) -> None:
        """Truncate the tokens' properties to `length`; the states of layers are unchanged."""
        for held in self._facts.values():
            held.rewind(length)
        self.length = length

    def _add(self, name: str, new: Tensor) -> None:
        if name not in self._facts:
            self._facts[name] = GrowingBuffers(axis=1)
        held = self._facts[name]
        if held.rows == 1 < new.shape[0]:
            held.reorder(torch.zeros(new.shape[0], dtype=torch.long, device=new.device))
        held.append(new.expand(max(held.rows, new.shape[0]), -1))

    def reserve(self, length: int) -> None:
        for _, state in self._of_text():
            if hasattr(state, "reserve"):
                state.reserve(length)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`, to reorder beams or drop finished sequences; `rows` is [new_rows]."""
        for held in self._facts.values():
            if held.rows > 1:
                held.reorder(rows)
        for _, state in self._of_text():
            state.reorder(rows)
        sources = None if self.sources is None else self.sources.index_select(0, rows)
        same = sources is not None and self.sources is not None and torch.equal(sources, self.sources)
        self.sources = sources
        if same:
            return
        if self.memory is not None:
            self.memory = self.memory.index_select(0, rows)
        if self.memory_real is not None and self.memory_real.shape[0] > 1:
            self.memory_real = self.memory_real.index_select(0, rows)
        for layer, memories in zip(self.layers, self._memories, strict=True):
            for name in memories & layer.keys():
                layer[name].reorder(rows)

    def check_rewind(self, length: int) -> None:
        """Raise UsageError if a part cannot rewind to `length` tokens."""
        for name, state in self._of_text():
            if not hasattr(state, "rewind"):
                raise UsageError(f"the state of {name} cannot be rewound")
            earliest = state.earliest() if hasattr(state, "earliest") else 0
            if length < earliest:
                raise UsageError(
                    f"{name} has dropped keys beyond the reach of its mask: its state of {self.length} tokens can be "
                    f"rewound to {earliest} tokens or more, not to {length}"
                )

    def rewind(self, length: int) -> None:
        """Truncate to the first `length` tokens. Raise UsageError and change nothing if a part cannot rewind."""
        if not 0 <= length <= self.length:
            raise UsageError(f"a state of {self.length} tokens cannot be rewound to {length}")
        self.check_rewind(length)
        for _, state in self._of_text():
            state.rewind(length)
        self.take_back(length)

    def bytes(self) -> int:
        """Return the size of the layers' states in bytes."""
        return sum(state.bytes() for layer in self.layers for state in layer.values())

    def _of_text(self) -> Iterator[tuple[str, Any]]:
        """Yield the states that grow with the text, with the names of their parts; skip attention to the memory."""
        for layer, names, memories in zip(self.layers, self._names, self._memories, strict=True):
            yield from ((names[name], state) for name, state in layer.items() if name not in memories)


DEFAULTS = {"with_heads": True}  # defaults of optional inputs other than None

Forward = TypeVar("Forward", bound=Callable[..., object])


class CallInputs(TypedDict, total=False):
    """Optional inputs that every model accepts, in addition to ids and their mask."""

    token_type_ids: Tensor | None  # [batch time]
    position_ids: Tensor | None  # [batch time]
    global_attention_mask: Tensor | None  # [batch time], 1 = attends to all and is attended to by all
    prefix_length: Tensor | None  # [batch], length of the prefix that all tokens see
    inputs_embeds: Tensor | None  # [batch time d_model], instead of ids
    inputs: Mapping[str, Tensor] | None  # [batch width] each: the extra inputs that parts declare
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


def checked_extra(needed: Mapping[str, ExtraInput], given: object, rows: int | None) -> dict[str, Tensor]:
    """Return the extra inputs of a call of `rows` rows (None: any), which parts read. Raise UsageError for others."""
    extra = {} if given is None else given
    if not isinstance(extra, Mapping):
        raise UsageError(f"inputs must be a mapping of names to tensors [batch width], got {type(extra).__name__}")
    for name in extra.keys() - needed.keys():
        known = f"its parts read {', '.join(needed)}" if needed else "its parts read only ids"
        raise UsageError(f"no part of this model reads the input '{name}'; {known}")
    for name, (width, readers) in needed.items():
        value = extra.get(name)
        want = f"inputs['{name}'], which {' and '.join(readers)} reads, must be a tensor [{rows or 'batch'} {width}]"
        if not isinstance(value, Tensor):
            raise UsageError(f"{want}, got {'none' if value is None else with_article(type(value).__name__)}")
        sizes = [*(value.shape[:1] if rows is None else [rows]), width]
        # comparing sizes would specialize compiled graphs
        if not torch.compiler.is_compiling() and sizes != [*value.shape]:
            raise UsageError(f"{want}, got shape {[*value.shape]}")
    return dict(extra)


def check_needed(needed: Collection[str], given: Mapping[str, Tensor | None]) -> None:
    """Raise UsageError if a required input is missing, or if a given input is not read by any part."""
    for name, value in given.items():
        if name in needed and value is None:
            raise UsageError(f"this model requires {name} in every call")
        if name not in needed and value is not None:
            raise UsageError(f"no part of this model reads {name}")
