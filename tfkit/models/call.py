"""The inputs of one stack in a call, checked and bundled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from tfkit.core.context import Collector, Inputs
from tfkit.core.errors import UsageError
from tfkit.models.state import DecodeState


@dataclass(frozen=True)
class Call:
    """The inputs of one stack in a call: ids or vectors, and optional others."""

    inputs: Inputs = field(default_factory=Inputs)
    vectors: Tensor | None = None  # [batch time width] instead of ids
    positions: Tensor | None = None  # [batch time]
    segments: Tensor | None = None  # [batch time], equal numbers see one another
    memory: Tensor | None = None  # [batch source memory_width]
    memory_real: Tensor | None = None  # [batch source]
    state: DecodeState | None = None
    collector: Collector = field(default_factory=Collector)

    @property
    def real(self) -> Tensor | None:
        """Which tokens are real, [batch time]; None: all of them."""
        return self.inputs.real

    @property
    def tokens(self) -> Tensor:
        """Ids or vectors, whichever was given."""
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
) -> Inputs:
    """The inputs of one stack; `prefix` begins their names in messages. Raises UsageError for a wrong shape or kind."""
    check_ids(ids, f"{prefix}input_ids")
    real = as_real(mask, ids, f"{prefix}attention_mask")
    return Inputs(ids, token_type_ids, global_attention_mask, prefix_length, real)


def as_real(mask: Tensor | None, tokens: Tensor | None, name: str) -> Tensor | None:
    """An attention mask (1 = a real token) as booleans; raises UsageError when its shape cannot fit `tokens`."""
    if mask is None:
        return None
    if mask.dim() != 2 or (tokens is not None and mask.shape[0] != tokens.shape[0]):
        want = "[batch time]" if tokens is None else f"[{tokens.shape[0]} time]"
        raise UsageError(f"{name} is {want} with 1 for a real token, got shape {list(mask.shape)}")
    return mask.bool()


def check_ids(ids: Tensor | None, name: str) -> None:
    """Raise UsageError unless `ids` are whole numbers of shape [batch time]."""
    if ids is None:
        return
    if ids.dim() != 2 or ids.is_floating_point():
        raise UsageError(f"{name} is [batch time] of whole numbers, got shape {list(ids.shape)} of {ids.dtype}")


def check_needed(needed: Collection[str], given: Mapping[str, Tensor | None]) -> None:
    """Raise UsageError where a part needs an input the call lacks, or the call gives one that no part reads."""
    for name, value in given.items():
        if name in needed and value is None:
            raise UsageError(f"this model needs {name} with every call")
        if name not in needed and value is not None:
            raise UsageError(f"{name} was given, but no part of this model reads it")
