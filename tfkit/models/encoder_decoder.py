"""The original topology: an encoder whose output a causal decoder attends to."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tfkit.core.context import Collector, Inputs
from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.models.base import Body, Model, ModelOutput, as_real, check_ids, check_needed
from tfkit.models.stack import Call
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
        collector: Collector | None = None,
        with_heads: bool = True,
    ) -> ModelOutput:
        """Logits of the decoder for [batch target] ids, given [batch source] ids (or an encoder's output).

        `attention_mask` [batch source] and `decoder_attention_mask` [batch target]: 1 = a real token. With `state`, the
        encoder runs in the first call only, and the decoder ids follow those of earlier calls. `with_heads=False`
        leaves the heads to whoever asks them at a few positions only. Raises UsageError for
        inputs of the wrong shape or kind.
        """
        check_ids(input_ids, "input_ids")
        check_ids(decoder_input_ids, "decoder_input_ids")
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise UsageError("give decoder_input_ids: the tokens so far, the start token first")
        special = {"global_attention_mask": global_attention_mask, "prefix_length": prefix_length}
        check_needed(self.stack("encoder").needs | self.stack("decoder").needs, special)
        real = as_real(attention_mask, input_ids, "attention_mask")
        source = Call(
            inputs=Inputs(input_ids, token_type_ids, global_attention_mask, prefix_length, real),
            vectors=inputs_embeds,
            real=real,
            positions=position_ids,
            memory=encoder_hidden_states,
            collector=collector or Collector(),
        )
        memory, memory_real = self._encoded(source, state)
        real = as_real(decoder_attention_mask, decoder_input_ids, "decoder_attention_mask")
        target = Call(
            inputs=Inputs(decoder_input_ids, None, global_attention_mask, prefix_length, real),
            vectors=decoder_inputs_embeds,
            real=real,
            positions=decoder_position_ids,
            memory=memory,
            memory_real=memory_real,
            state=state,
            collector=source.collector,
        )
        body = Body(
            self.stack("decoder")(target),
            target.real,
            memory,
            memory_real,
            source.collector,
            decoder_input_ids,
            input_ids,
        )
        return self.finish(body, with_heads)

    def _encoded(self, source: Call, state: DecodeState | None) -> tuple[Tensor, Tensor | None]:
        """The encoder's output and what of it is real: computed, given by the caller, or kept from an earlier call."""
        if state is not None and state.memory is not None:
            return state.memory, state.memory_real
        memory = self.stack("encoder")(source) if source.memory is None else source.memory
        if state is not None:
            state.memory, state.memory_real = memory, source.real
        return memory, source.real
