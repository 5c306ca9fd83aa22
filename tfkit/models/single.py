"""The topologies: one stack, which only the default mask makes an encoder or a decoder, or an encoder and a decoder."""

# Axes: batch, time, heads, query and key (tokens), d_model, source and target (tokens).

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Unpack

from torch import Tensor

from tfkit.core.component import Side
from tfkit.core.context import Collector
from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.call import (
    Call,
    DecodeState,
    PairInputs,
    StackInputs,
    as_real,
    check_length,
    make_inputs,
    named_inputs,
)


class SingleStack(Model):
    """A single stack with its heads."""

    side: ClassVar[Side]
    optional: ClassVar = frozenset(StackInputs.__annotations__)

    @named_inputs(StackInputs)
    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **given: Unpack[StackInputs]
    ) -> ModelOutput:
        """Compute logits and hidden states of [batch time] ids (or [batch time d_model] vectors in `inputs_embeds`).

        `attention_mask` is [batch time] with 1 = real token; `StackInputs` lists the other inputs. With `state`, the
        ids continue those of earlier calls. `observe={"attention", "hidden_states"}` stores attention weights
        [batch heads query key] and layer outputs in `out.observed`, by place: `decoder.layers.3.attention`. Raise
        UsageError for inputs of the wrong shape or dtype.
        """
        self.refuse_unknown(given)
        call = self._call(input_ids, attention_mask, given)
        return self.finish(Body(self.stack(self.side)(call), call), given.get("with_heads", True))

    def _call(self, ids: Tensor | None, mask: Tensor | None, given: StackInputs) -> Call:
        """Check and bundle the inputs of the stack."""
        state, memory = given.get("state"), given.get("encoder_hidden_states")
        past = 0 if state is None else state.length
        vectors = self.stack(self.side).cut(given.get("inputs_embeds"))
        inputs = make_inputs(ids, mask, given, vectors, past)
        self.check(inputs)
        tokens = ids if vectors is None else vectors
        positions, segments = given.get("position_ids"), given.get("segment_ids")
        inputs = replace(inputs, extra=self.extra(given.get("inputs"), None if tokens is None else tokens.shape[0]))
        check_length(positions, tokens, "position_ids")
        check_length(segments, tokens, "segment_ids")
        check_length(inputs.global_attention_mask, tokens, "global_attention_mask", past)
        source = ids if memory is None else memory
        memory_real = as_real(given.get("encoder_attention_mask"), source, "encoder_attention_mask")
        collector = self.collector(given.get("observe"))
        return Call(inputs, vectors, positions, segments, memory, memory_real, state, collector)


@register("model", "encoder")
class Encoder(SingleStack):
    """Encoder-only: every token attends to all tokens (Devlin et al. 2018, arXiv 1810.04805)."""

    side = "encoder"
    sides: ClassVar = {"encoder": False}


@register("model", "decoder")
class Decoder(SingleStack):
    """Decoder-only: a token attends to itself and its past (Liu et al. 2018, arXiv 1801.10198; Radford et al. 2018)."""

    side = "decoder"
    sides: ClassVar = {"decoder": True}


@register("model", "encoder_decoder")
class EncoderDecoder(Model):
    """Encoder and decoder connected by cross-attention (Vaswani et al. 2017, arXiv 1706.03762)."""

    sides: ClassVar = {"encoder": False, "decoder": True}
    optional: ClassVar = frozenset(PairInputs.__annotations__)

    @named_inputs(PairInputs)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        **given: Unpack[PairInputs],
    ) -> ModelOutput:
        """Compute the decoder's logits for [batch target] ids, from [batch source] ids or an encoder's output.

        `attention_mask` is [batch source] with 1 = real token; `PairInputs` lists the other inputs. With `state`, the
        encoder runs only in the first call, and the decoder ids continue those of earlier calls.
        `observe={"attention", "hidden_states"}` stores attention weights [batch heads query key] and layer outputs in
        `out.observed`, by place: `decoder.layers.3.cross_attention`. Raise UsageError for inputs of the wrong shape or
        dtype.
        """
        self.refuse_unknown(given)
        collector = self.collector(given.get("observe"))
        source = self._source(input_ids, attention_mask, given, collector)
        target = self._target(decoder_input_ids, source, given)
        return self.finish(Body(self.stack("decoder")(target), target, source), given.get("with_heads", True))

    def _source(self, ids: Tensor | None, mask: Tensor | None, given: PairInputs, collector: Collector) -> Call:
        """Check and bundle the inputs of the encoder."""
        memory, positions = given.get("encoder_hidden_states"), given.get("position_ids")
        vectors = self.stack("encoder").cut(given.get("inputs_embeds"))
        if memory is not None and self.stack("decoder").plan.last_state:
            mask = None  # last states contain no padding
        tokens = memory if vectors is None else vectors
        inputs = make_inputs(ids, mask, given, tokens)
        check_length(positions, ids if tokens is None else tokens, "position_ids")
        return Call(inputs, vectors, positions, memory=memory, collector=collector)

    def _target(self, ids: Tensor | None, source: Call, given: PairInputs) -> Call:
        """Check and bundle the inputs of the decoder, including the encoder's output."""
        state, mask = given.get("state"), given.get("decoder_attention_mask")
        vectors = self.stack("decoder").cut(given.get("decoder_inputs_embeds"))
        past = 0 if state is None else state.length
        inputs = make_inputs(ids, mask, given, vectors, past, "decoder_")
        if ids is None and vectors is None:
            raise UsageError("pass decoder_input_ids, the start token and the tokens generated so far")
        self.check(source.inputs)
        tokens = vectors if ids is None else ids
        extra = self.extra(given.get("inputs"), None if tokens is None else tokens.shape[0])
        inputs, source = replace(inputs, extra=extra), replace(source, inputs=replace(source.inputs, extra=extra))
        memory = self._encoded(source, state)
        positions = given.get("decoder_position_ids")
        return Call(inputs, vectors, positions, None, *memory, state=state, collector=source.collector)

    def _encoded(self, source: Call, state: DecodeState | None) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's output and its padding mask, computed, passed in or cached."""
        if state is not None and state.memory is not None:
            return state.memory, state.memory_real
        memory = self.stack("encoder")(source) if source.memory is None else source.memory
        if state is not None:
            state.memory, state.memory_real = memory, source.real
        return memory, source.real
