"""Models of one stack: encoder-only and decoder-only differ only in their default mask."""

# Axes: batch, time, heads, query and key (tokens), d_model.

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from torch import Tensor

from tfkit.core.registry import register
from tfkit.core.shape import Side
from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.call import Call, as_real, check_length, make_inputs, refuse_unknown
from tfkit.models.state import DecodeState


class SingleStack(Model):
    """A single stack and its heads."""

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
        observe: Collection[str] | None = None,
        with_heads: bool = True,
        **unknown: object,
    ) -> ModelOutput:
        """Compute logits and hidden states of [batch time] ids (or [batch time d_model] vectors in `inputs_embeds`).

        `attention_mask` [batch time]: 1 = a real token. `segment_ids` [batch time]: tokens of equal numbers see one
        another (packing). `prefix_length` [batch] and `global_attention_mask` [batch time] are inputs of those masks.
        With `state`, the ids continue those of earlier calls. `with_heads=False` leaves the heads to the caller,
        who may compute them at a few positions only. `observe={"attention", "hidden_states"}` keeps weights
        [batch heads query key] and layer outputs in `out.observed`, by place: `decoder.layers.3.attention`.
        Raises UsageError for inputs of the wrong shape or dtype.
        """
        if unknown:
            refuse_unknown(unknown, self.inputs(), self.part_name)
        inputs_embeds = self.stack(self.side).cut(inputs_embeds)
        special = global_attention_mask, prefix_length
        past = 0 if state is None else state.length
        inputs = make_inputs(input_ids, attention_mask, token_type_ids, *special, vectors=inputs_embeds, past=past)
        self.check(inputs)
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        check_length(position_ids, tokens, "position_ids")
        check_length(segment_ids, tokens, "segment_ids")
        check_length(global_attention_mask, tokens, "global_attention_mask", past)
        source = input_ids if encoder_hidden_states is None else encoder_hidden_states
        memory_real = as_real(encoder_attention_mask, source, "encoder_attention_mask")
        memory = encoder_hidden_states, memory_real
        call = Call(inputs, inputs_embeds, position_ids, segment_ids, *memory, state, self.collector(observe))
        return self.finish(Body(self.stack(self.side)(call), call), with_heads)


@register("model", "encoder")
class Encoder(SingleStack):
    """Encoder-only: every token attends to every other (Devlin et al. 2018, arXiv 1810.04805)."""

    side = "encoder"
    sides: ClassVar = {"encoder": False}


@register("model", "decoder")
class Decoder(SingleStack):
    """Decoder-only: a token attends to itself and the past (Liu et al. 2018, arXiv 1801.10198; Radford et al. 2018)."""

    side = "decoder"
    sides: ClassVar = {"decoder": True}
