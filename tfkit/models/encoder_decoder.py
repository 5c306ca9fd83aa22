"""The original topology: an encoder, and a causal decoder that attends to the encoder's output."""

# Axes: batch, source and target (tokens), heads, query and key (tokens).

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from tfkit.core.context import Collector
from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.call import Call, PairInputs, check_length, make_inputs, named_inputs
from tfkit.models.state import DecodeState


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
