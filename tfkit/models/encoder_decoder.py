"""The original topology: an encoder whose output a causal decoder attends to."""

# Axes: batch, source and target (tokens), heads, query and key (tokens).

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.call import Call, check_length, make_inputs, refuse_unknown
from tfkit.models.state import DecodeState


@register("model", "encoder_decoder")
class EncoderDecoder(Model):
    """Encoder and decoder joined by cross-attention (Vaswani et al. 2017, arXiv 1706.03762)."""

    sides: ClassVar = {"encoder": False, "decoder": True}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        state: DecodeState | None = None,
        observe: Collection[str] | None = None,
        with_heads: bool = True,
        **unknown: object,
    ) -> ModelOutput:
        """Compute the decoder's logits for [batch target] ids, given [batch source] ids (or an encoder's output).

        `attention_mask` [batch source] and `decoder_attention_mask` [batch target]: 1 = a real token. With `state`, the
        encoder runs in the first call only, and the decoder ids follow those of earlier calls. `with_heads=False`
        leaves the heads to the caller, who may compute them at a few positions only. `observe={"attention",
        "hidden_states"}` keeps weights [batch heads query key] and the outputs of layers in `out.observed`, by place:
        `decoder.layers.3.cross_attention`. Raises UsageError for inputs of the wrong shape or kind.
        """
        if unknown:
            refuse_unknown(unknown, self.inputs(), self.part_name)
        inputs_embeds = self.stack("encoder").cut(inputs_embeds)
        decoder_inputs_embeds = self.stack("decoder").cut(decoder_inputs_embeds)
        if encoder_hidden_states is not None and self.stack("decoder").plan.last_state:
            attention_mask = None  # last states have no padding
        special = global_attention_mask, prefix_length
        vectors = encoder_hidden_states if inputs_embeds is None else inputs_embeds
        inputs = make_inputs(input_ids, attention_mask, token_type_ids, *special, vectors=vectors)
        check_length(position_ids, input_ids if vectors is None else vectors, "position_ids")
        target_inputs = make_inputs(
            decoder_input_ids,
            decoder_attention_mask,
            None,
            *special,
            prefix="decoder_",
            vectors=decoder_inputs_embeds,
            past=0 if state is None else state.length,
        )
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise UsageError("give decoder_input_ids: the tokens so far, the start token first")
        self.check(inputs)
        collector = self.collector(observe)
        source = Call(inputs, inputs_embeds, position_ids, memory=encoder_hidden_states, collector=collector)
        memory = self._encoded(source, state)
        target = Call(
            target_inputs, decoder_inputs_embeds, decoder_position_ids, None, *memory, state=state, collector=collector
        )
        return self.finish(Body(self.stack("decoder")(target), target, source), with_heads)

    def _encoded(self, source: Call, state: DecodeState | None) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's output and its padding mask, computed, passed in or cached."""
        if state is not None and state.memory is not None:
            return state.memory, state.memory_real
        memory = self.stack("encoder")(source) if source.memory is None else source.memory
        if state is not None:
            state.memory, state.memory_real = memory, source.real
        return memory, source.real
