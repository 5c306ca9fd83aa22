"""What every topology has: stacks, heads, one public forward that takes and gives tensors only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component, Config
from tfkit.core.context import Collector
from tfkit.core.errors import UsageError
from tfkit.core.shape import Side
from tfkit.models.stack import Stack
from tfkit.models.state import DecodeState


@dataclass
class ModelOutput:
    """What a model gives. Fields that the architecture or the call has no use for are None."""

    logits: Tensor | None = None  # of `head`
    hidden: Tensor | None = None  # [batch time d_model] of the last stack
    memory: Tensor | None = None  # [batch source d_model] of the encoder, in an encoder-decoder
    heads: dict[str, Tensor] = field(default_factory=dict)  # of `heads`, by name
    auxiliary_loss: Tensor | None = None  # sum of what sublayers added


torch.export.register_dataclass(ModelOutput)


class Model(Component, nn.Module):
    """Base of the topologies; `blueprint` says what it is made of."""

    # the stacks of this topology, each with whether it hides the future unless a recipe says otherwise
    sides: ClassVar[Mapping[Side, bool]] = {}
    # whether a decoder beside an encoder reads it by cross-attention and in no other way
    joined_by_cross_attention: ClassVar[bool] = True

    def __init__(self, config: Config, blueprint: Blueprint) -> None:
        super().__init__()
        self.blueprint = blueprint
        for plan in blueprint.stacks():
            self.add_module(plan.side, Stack(plan))
        if blueprint.shared_embedding:
            self.stack("decoder").embedding.tokens = self.stack("encoder").embedding.tokens  # type: ignore[union-attr]
        self.head = None if blueprint.head is None else self._build_head(blueprint.head)
        self.heads = nn.ModuleDict({name: self._build_head(head) for name, head in blueprint.heads})
        # what each head reads, asked of its options here: the compiler cannot look at them
        self._readings = {"": Reading.of(blueprint.head)} | {name: Reading.of(head) for name, head in blueprint.heads}

    def stack(self, side: str) -> Stack:
        """The encoder or the decoder; raises UsageError for one that this model does not have."""
        stack = getattr(self, side, None)
        if not isinstance(stack, Stack):
            raise UsageError(f"this model has no {side}")
        return stack

    def _build_head(self, config: Config) -> nn.Module:
        plan = self.blueprint.read_by(config)
        head: nn.Module = config.build(plan.shape(plan.num_layers), self.stack(plan.side).embedding)
        return head

    @property
    def head_of_last(self) -> nn.Module:
        """The head that reads the last stack, as losses and generation do; raises UsageError for none, or another."""
        if self.head is None:
            raise UsageError("this model has no head that predicts tokens; give it one, such as head: language_model")
        side = self.blueprint.last.side
        if self._readings[""].of_encoder and side != "encoder":
            raise UsageError(f"the head of this model reads the encoder, and tokens are predicted by the {side}")
        return self.head

    @property
    def caches(self) -> bool:
        """Whether this model can decode from a state."""
        return self.stack(self.blueprint.last.side).caches

    def new_state(self) -> DecodeState:
        """An empty decode state: pass it as `state` to decode a few tokens a call; raises UsageError."""
        return self.stack(self.blueprint.last.side).new_state()

    def finish(self, body: Body, with_heads: bool) -> ModelOutput:
        """The output of a call: its hidden states and, if asked for, every head computed from those it reads."""
        out = ModelOutput(hidden=body.hidden, memory=body.memory)
        if body.collector.losses:
            out.auxiliary_loss = torch.stack(body.collector.losses).sum()
        if not with_heads:
            return out
        if self.head is not None:
            out.logits = self.head(*body.read(self._readings[""]))
        out.heads = {name: head(*body.read(self._readings[name])) for name, head in self.heads.items()}
        return out


@dataclass(frozen=True)
class Reading:
    """What a head reads: the encoder or the last stack, and the text up to which token."""

    of_encoder: bool = False
    until: int | None = None

    @classmethod
    def of(cls, head: Config | None) -> Reading:
        """What the options of a head say."""
        return cls(getattr(head, "reads", None) == "encoder", getattr(head, "until", None))


@dataclass
class Body:
    """Hidden states before any head: of the last stack, and of the encoder where there are two."""

    hidden: Tensor
    real: Tensor | None
    memory: Tensor | None = None
    memory_real: Tensor | None = None
    collector: Collector = field(default_factory=Collector)
    ids: Tensor | None = None  # [batch time] of the last stack
    memory_ids: Tensor | None = None  # of the encoder

    def read(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """Hidden states and which of them are real, those of the text that a head asks for."""
        if reading.of_encoder and self.memory is not None:
            return self.memory, as_text(self.memory_real, self.memory_ids, reading.until)
        # with a decode state the mask may be that of everything so far
        real = None if self.real is None else self.real[:, -self.hidden.shape[1] :]
        return self.hidden, as_text(real, self.ids, reading.until)


def as_real(mask: Tensor | None, tokens: Tensor | None, name: str) -> Tensor | None:
    """An attention mask (1 = a real token) as booleans; raises UsageError when its shape cannot fit `tokens`."""
    if mask is None:
        return None
    if mask.dim() != 2 or (tokens is not None and mask.shape[0] != tokens.shape[0]):
        want = "[batch time]" if tokens is None else f"[{tokens.shape[0]} time]"
        raise UsageError(f"{name} is {want} with 1 for a real token, got shape {list(mask.shape)}")
    return mask.bool()


def as_text(real: Tensor | None, ids: Tensor | None, end: int | None) -> Tensor | None:
    """Of the `real` tokens [batch time] those up to the first `end` among them; raises UsageError without ids."""
    if end is None:
        return real
    if ids is None:
        raise UsageError(f"this model looks for the token {end} in its input: give input_ids")
    found = ids == end if real is None else (ids == end) & real  # padding may be of that id too
    before = found.cumsum(dim=1) == found  # the first one itself is not behind it
    return before if real is None else before & real


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
