"""Models of one stack: encoder-only and decoder-only differ in nothing but the mask they begin with."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from tfkit.core.context import Collector, Inputs
from tfkit.core.errors import UsageError
from tfkit.core.registry import register
from tfkit.core.shape import Side
from tfkit.models.base import Body, Model, ModelOutput, as_real, check_ids, check_needed
from tfkit.models.stack import Call
from tfkit.models.state import DecodeState


class SingleStack(Model):
    """One stack and its heads."""

    side: ClassVar[Side]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        state: DecodeState | None = None,
        collector: Collector | None = None,
        with_heads: bool = True,
    ) -> ModelOutput:
        """Logits and hidden states of [batch time] ids (or [batch time d_model] vectors in `inputs_embeds`).

        `attention_mask` [batch time]: 1 = a real token. `segment_ids` [batch time]: tokens of one number see one
        another (packing). `prefix_length` [batch] and `global_attention_mask` [batch time] serve those rules.
        With `state`, the ids follow those of earlier calls. `with_heads=False` leaves the heads to whoever asks them at
        a few positions only. Raises UsageError for inputs of the wrong shape or kind.
        """
        check_ids(input_ids, "input_ids")
        stack = self.stack(self.side)
        check_needed(stack.needs, {"global_attention_mask": global_attention_mask, "prefix_length": prefix_length})
        if prefix_length is not None and segment_ids is not None:
            raise UsageError(
                "prefix_length counts from the start of a row, which packed texts share; give one or the other"
            )
        real = as_real(attention_mask, input_ids, "attention_mask")
        call = Call(
            inputs=Inputs(input_ids, token_type_ids, global_attention_mask, prefix_length, real),
            vectors=inputs_embeds,
            real=real,
            positions=position_ids,
            segments=segment_ids,
            memory=encoder_hidden_states,
            memory_real=as_real(encoder_attention_mask, input_ids, "encoder_attention_mask"),
            state=state,
            collector=collector or Collector(),
        )
        body = Body(stack(call), call.real, collector=call.collector, ids=input_ids)
        return self.finish(body, with_heads)


@register("model", "encoder")
class Encoder(SingleStack):
    """Encoder-only: every token sees every other (Devlin et al. 2018, arXiv 1810.04805)."""

    side = "encoder"
    sides: ClassVar = {"encoder": False}


@register("model", "decoder")
class Decoder(SingleStack):
    """Decoder-only: a token sees itself and the past (Liu et al. 2018, arXiv 1801.10198; Radford et al. 2018)."""

    side = "decoder"
    sides: ClassVar = {"decoder": True}
