"""Base class of the topologies, with stacks, heads and the model's output."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.context import OBSERVATIONS, Collector
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.output import block
from tfkit.core.slots import HeadFacts, ModelFacts
from tfkit.models.call import Call, DecodeState, check_needed, checked_extra, unknown_input
from tfkit.models.stack import Stack


@dataclass
class ModelOutput:
    """Output of a model; None for logits, states and losses that were not computed."""

    logits: Tensor | None = None  # of `head`
    hidden: Tensor | None = None  # output of the last stack [batch time d_model]
    memory: Tensor | None = None  # output of the encoder: [batch source d_model], or [batch 1 width] for last states
    heads: dict[str, Tensor] = field(default_factory=dict)  # outputs of `heads`, by name
    auxiliary_loss: Tensor | None = None  # sum over all sublayers
    observed: dict[str, Tensor] = field(
        default_factory=dict
    )  # observations by place, such as decoder.layers.3.attention


torch.export.register_dataclass(ModelOutput)


class Model(ModelFacts, nn.Module):
    """Base class of the topologies, built from a `blueprint`."""

    optional: ClassVar[frozenset[str]]  # names of all inputs except ids and their mask

    def __init__(self, config: Config, blueprint: Blueprint) -> None:
        super().__init__()
        self.blueprint = blueprint
        for plan in blueprint.stacks():
            self.add_module(plan.side, Stack(plan))
        self.special_inputs = frozenset(name for plan in blueprint.stacks() for name in self.stack(plan.side).needs)
        self.extra_inputs = blueprint.extra_inputs
        if blueprint.shared_embedding:
            self.stack("decoder").embedding.tokens = self.stack("encoder").embedding.tokens  # type: ignore[union-attr]
        self.head = None if blueprint.head is None else self._build_head(blueprint.head)
        self.heads = nn.ModuleDict({name: self._build_head(head) for name, head in blueprint.heads})
        # computed here, because torch.compile cannot trace the options
        self._readings = {"": HeadInput.of(blueprint.head)} | {
            name: HeadInput.of(head) for name, head in blueprint.heads
        }

    def __repr__(self) -> str:
        weights = list(self.parameters())
        kinds = {f"{one.dtype} on {one.device}".removeprefix("torch.") for one in weights}
        count = sum(one.numel() for one in weights)
        title = f"{type(self).__name__} {self.blueprint.name!r}: {count:,} parameters, {' and '.join(sorted(kinds))}"
        return block(title, self.blueprint.lines())

    def stack(self, side: str) -> Stack:
        """Return the encoder or the decoder. Raise UsageError if the model does not have it."""
        stack = getattr(self, side, None)
        if not isinstance(stack, Stack):
            raise UsageError(f"this model has no {side}")
        return stack

    @classmethod
    def inputs(cls) -> list[str]:
        """Return the names of the inputs of `forward`."""
        return [name for name in inspect.signature(cls.forward).parameters if name != "self"]

    def refuse_unknown(self, names: Collection[str]) -> None:
        """Raise UsageError if one of the names is not an input of this model."""
        for name in names:
            if name not in self.optional:
                raise unknown_input(name, self.inputs(), self.part_name)

    def check(self, inputs: Inputs) -> None:
        """Raise UsageError if a part's input is missing, or if no part reads an input."""
        special = {"global_attention_mask": inputs.global_attention_mask, "prefix_length": inputs.prefix_length}
        check_needed(self.special_inputs, special)

    def extra(self, given: object, rows: int | None = None) -> dict[str, Tensor]:
        """Return the extra inputs of a call of `rows` rows, [batch width] each, in the model's dtype, on its device.

        Raise UsageError unless they are those that parts read.
        """
        found = checked_extra(self.extra_inputs, given, rows)
        weight = next((one for one in self.parameters() if one.is_floating_point()), None) if found else None
        return found if weight is None else {name: one.to(weight.device, weight.dtype) for name, one in found.items()}

    def _build_head(self, config: HeadFacts.Config) -> nn.Module:
        plan = self.blueprint.read_by(config)
        head: nn.Module = config.build(plan.shape(plan.num_layers), self.stack(plan.side).embedding)
        return head

    @property
    def head_of_last(self) -> nn.Module:
        """Head that reads the last stack, as losses and generation require. Raise UsageError if there is none."""
        if self.head is None:
            raise UsageError("this model has no head that predicts tokens; add one, such as head: language_model")
        side = self.blueprint.last.side
        if self._readings[""].of_encoder and side != "encoder":
            raise UsageError(f"the head of this model reads the encoder, but tokens are predicted by the {side}")
        return self.head

    @property
    def caches(self) -> bool:
        """True if this model can decode from a state."""
        return self.stack(self.blueprint.last.side).caches

    def new_state(self, forgets: bool = True) -> DecodeState:
        """Return an empty decode state for incremental calls, which drops keys out of reach if it `forgets`.

        Raise UsageError if the model cannot cache.
        """
        return self.stack(self.blueprint.last.side).new_state(forgets)

    def collector(self, observe: Collection[str] | None) -> Collector:
        """Return the collector for a call. Raise UsageError if the model cannot provide the observations."""
        if not observe:
            return Collector()
        if not isinstance(observe, Collection) or isinstance(observe, str) or set(observe) - set(OBSERVATIONS):
            raise UsageError(f"observe must be a set of {' and '.join(OBSERVATIONS)}, got {observe!r}")
        if "attention" in observe:
            with_weights, without = self.attention_places()
            if not with_weights:
                raise UsageError("no part of this model exposes attention weights" + ": ".join(["", *without[:1]]))
        return Collector(frozenset(observe))

    def attention_places(self) -> tuple[list[str], list[str]]:
        """Return the sublayers that expose attention weights, and the attentions and mixers that do not."""
        with_weights: list[str] = []
        without: list[str] = []
        for plan in self.blueprint.stacks():
            for index, kind in enumerate(plan.order):
                for sublayer in plan.layers[kind].sublayers:
                    part, place = sublayer.config.part, f"{plan.side}.layers.{index}.{sublayer.name}"
                    if "weights" in part.able(sublayer.config):
                        with_weights.append(place)
                    elif part.part_slot in ("attention", "mixer"):
                        without.append(f"{place} ({part.part_name})")
        return with_weights, without

    def finish(self, body: Body, with_heads: bool) -> ModelOutput:
        """Return the output of a call from its hidden states, with the outputs of all heads if `with_heads` is set."""
        out = ModelOutput(hidden=body.hidden, memory=body.memory)
        collector = body.call.collector
        if collector.losses:
            out.auxiliary_loss = torch.stack(collector.losses).sum()
        out.observed = {place: values[-1] for place, values in collector.observed.items()}
        if not with_heads:
            return out
        if self.head is not None:
            out.logits = self.head(*body.read(self._readings[""]))
        out.heads = {name: head(*body.read(self._readings[name])) for name, head in self.heads.items()}
        return out


@dataclass(frozen=True)
class HeadInput:
    """Input of a head: the states of the encoder or of the last stack, up to the token `until` if set."""

    of_encoder: bool = False
    until: int | None = None

    @classmethod
    def of(cls, head: HeadFacts.Config | None) -> HeadInput:
        """Return the input that a head's options request."""
        return cls() if head is None else cls(head.reads == "encoder", head.end_token())


@dataclass(frozen=True)
class Body:
    """Hidden states of the last stack before any head, with the inputs of this stack and of the encoder, if any."""

    hidden: Tensor
    call: Call
    source: Call | None = None

    @property
    def memory(self) -> Tensor | None:
        """Hidden states of the encoder; None in a model with one stack."""
        return None if self.source is None else self.call.memory

    def read(self, reading: HeadInput) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states that a head reads, with the mask of real tokens."""
        if reading.of_encoder and self.source is not None and self.call.memory is not None:
            return self.call.memory, as_text(self.call.memory_real, self.source.inputs.input_ids, reading.until)
        # with a decode state, the mask may also cover the past
        real = None if self.call.real is None else self.call.real[:, -self.hidden.shape[1] :]
        return self.hidden, as_text(real, self.call.inputs.input_ids, reading.until)


def as_text(real: Tensor | None, ids: Tensor | None, end: int | None) -> Tensor | None:
    """Restrict the mask `real` [batch time] to tokens up to the first `end`. Raise UsageError if there are no ids."""
    if end is None:
        return real
    if ids is None:
        raise UsageError(f"a head of this model searches the input for token {end}; pass input_ids")
    ends = ids == end if real is None else (ids == end) & real  # padding may have the same id
    before = ends.cumsum(dim=1) == ends  # true up to and including the first `end`
    return before if real is None else before & real
