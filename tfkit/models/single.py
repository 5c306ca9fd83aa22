"""Models with one stack. Encoder-only and decoder-only models differ only in their default mask."""

# Axes: batch, time, heads, query and key (tokens), d_model.

from __future__ import annotations

from typing import ClassVar, Unpack

from torch import Tensor

from tfkit.core.registry import register
from tfkit.core.shape import Side
from tfkit.models.base import Body, Model, ModelOutput
from tfkit.models.call import Call, StackInputs, as_real, check_length, make_inputs, named_inputs


class SingleStack(Model):
    """A single stack with its heads."""

    side: ClassVar[Side]
    optional: ClassVar = frozenset(StackInputs.__annotations__)

    @named_inputs(StackInputs)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **given: Unpack[StackInputs],
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
