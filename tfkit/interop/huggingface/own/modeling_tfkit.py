"""A model of tfkit's for transformers: load it with trust_remote_code=True. Its recipe stands in config.json."""

# mypy: disable-error-code="misc, override, no-untyped-call, arg-type"

from __future__ import annotations

from pathlib import Path
from typing import Any

# the sources need einops and pydantic, and transformers tells who has not installed what this file imports
import einops  # noqa: F401
import pydantic  # noqa: F401
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from tfkit.interop.huggingface.own.tfkit_sources import build, write_code

WEIGHTS = frozenset({"attention"})  # what output_attentions observes


class TfkitConfig(PreTrainedConfig):
    """`recipe` is the architecture in tfkit's recipe language, with every value spelled out."""

    model_type = "tfkit"

    def __init__(self, recipe: dict[str, Any] | None = None, tied: dict[str, str] | None = None, **kwargs: Any) -> None:
        self.recipe = recipe or {}
        self.tied = tied or {}
        super().__init__(**kwargs)


class Past:
    """What decoding keeps between calls, as `generate` handles it."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens it holds."""
        return int(self.state.length)

    def reorder_cache(self, beam_idx: Tensor) -> Past:
        """Keep row `beam_idx[i]` as row i."""
        self.state.reorder(beam_idx)
        return self


class TfkitPreTrainedModel(PreTrainedModel):
    """Builds the model of a config's recipe."""

    config_class = TfkitConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it by the steps that it accumulates

    def __init__(self, config: TfkitConfig, model: nn.Module | None = None) -> None:
        """Take `model` as it is, or build the one of the config's recipe."""
        super().__init__(config)
        self.model: Any = self._built(config) if model is None else model
        self._tied_weights_keys = dict(config.tied)
        self.post_init()

    def _built(self, config: TfkitConfig) -> nn.Module:
        loading = torch.get_default_device().type == "meta"  # weights come from a file right after
        with torch.device("cpu" if loading else torch.get_default_device()):
            built: nn.Module = build(config.recipe, initialised=not loading)
        return built

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the recipe says how weights begin."""

    def named_non_persistent_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """None, so that tables that parts have made are not taken for weights that a file should have held."""
        return iter(())

    def get_input_embeddings(self) -> nn.Module:
        """The token table of the first stack; what takes its place in a model that reads vectors."""
        stack = self.model.blueprint.encoder or self.model.blueprint.decoder
        embedding: nn.Module = self.model.stack(stack.side).embedding
        return getattr(embedding, "tokens", embedding)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save weights and config, with the code that loads them."""
        write_code(self.model, Path(save_directory))
        super().save_pretrained(save_directory, *args, **kwargs)

    def called(self, asked: dict[str, Any], output_attentions: bool | None = None, **call: Any) -> Any:
        """Return the model's own output, with the attention weights observed if they are asked for.

        Arguments that are None are left out.
        """
        if asked.get("output_hidden_states"):
            raise ValueError("output_hidden_states: the hidden states of each layer are not given; leave it out")
        watched = self.config.output_attentions if output_attentions is None else output_attentions
        call["observe"] = WEIGHTS if watched else None
        return self.model(**{name: value for name, value in call.items() if value is not None})


class TfkitReader(TfkitPreTrainedModel):
    """Base of the classes that read a text as a whole; they differ in what they say of it."""

    with_heads = True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """What `as_output` makes of the model's own output."""
        out = self.called(
            kwargs,
            output_attentions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=_segments(self.model, token_type_ids),
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_inputs_embeds=decoder_inputs_embeds,
            global_attention_mask=global_attention_mask,
            prefix_length=prefix_length,
            with_heads=self.with_heads,
        )
        return _given(_with_weights(self.as_output(out, labels), out), return_dict)

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """The output in transformers' words; with `labels` its loss."""
        raise NotImplementedError


class TfkitModel(TfkitReader):
    """Hidden states of the last stack."""

    with_heads = False

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """Hidden states [batch time d_model]."""
        return BaseModelOutput(last_hidden_state=out.hidden)


class TfkitForMaskedLM(TfkitReader):
    """Logits of the tokens after masks."""

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """Logits [batch time vocab]; the mean loss of `labels` (-100: none)."""
        loss = None if labels is None else _loss(out.logits, labels)
        return MaskedLMOutput(loss=loss, logits=out.logits)


class TfkitForTokenClassification(TfkitReader):
    """Logits of the classes of each token."""

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """Logits [batch time classes]; the mean loss of `labels` (-100: none)."""
        loss = None if labels is None else _loss(out.logits, labels)
        return TokenClassifierOutput(loss=loss, logits=out.logits)


class TfkitForSequenceClassification(TfkitReader):
    """Logits of the classes of a text, or the one number that it stands for."""

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """Logits [batch classes]; the mean loss of `labels`, whose kind is the config's problem_type."""
        problem, logits = self.config.problem_type, out.logits
        logits = logits if logits.dim() == 2 else logits[:, None]
        if labels is None:
            loss = None
        elif problem == "regression":
            loss = mse_loss(logits.flatten(), labels.flatten().to(logits.dtype))
        elif problem == "multi_label_classification":
            loss = binary_cross_entropy_with_logits(logits, labels.view_as(logits).to(logits.dtype))
        else:
            loss = cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class TfkitForQuestionAnswering(TfkitReader):
    """Where an answer begins and ends."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """What `as_output` makes of the model's own output; the labels are the two positions."""
        places = (start_positions, end_positions)
        labels = None if start_positions is None or end_positions is None else torch.stack(places, dim=-1)
        return super().forward(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, labels=labels, **kwargs
        )

    def as_output(self, out: Any, labels: Tensor | None) -> Any:
        """Logits [batch time] of each of the two; their mean loss."""
        loss = None if labels is None else cross_entropy(out.logits, labels, ignore_index=-100)
        begins, ends = out.logits.unbind(dim=-1)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=begins, end_logits=ends)


class TfkitWriter(TfkitPreTrainedModel, GenerationMixin):
    """Base of the classes that write."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the past is the model's own

    def past(self, past: Past | None, use_cache: bool | None) -> Past | None:
        """Return the past, or a new one; none where positions change with the length, so that all is computed anew."""
        serves = use_cache and self.model.caches and not self.model.stack(self.model.blueprint.last.side).moves
        return Past(self.model.new_state()) if past is None and serves else past


class TfkitForCausalLM(TfkitWriter):
    """Logits of the next token, and `generate`."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Past | None = None,
        inputs_embeds: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits [batch time vocab]; with `labels` (-100: none) the mean loss of the next tokens."""
        past = self.past(past_key_values, use_cache)
        if position_ids is None and attention_mask is not None and past_key_values is None:
            position_ids = _places(attention_mask)
        out = self.called(
            kwargs,
            output_attentions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            global_attention_mask=global_attention_mask,
            prefix_length=prefix_length,
            state=None if past is None else past.state,
        )
        loss = None if labels is None else _loss(out.logits[:, :-1], labels[:, 1:])
        made = CausalLMOutputWithPast(loss=loss, logits=out.logits, past_key_values=past)
        return _given(_with_weights(made, out), return_dict)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Past | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The tokens that the past does not hold yet; positions are counted from each row's first real token."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = None if attention_mask is None else _places(attention_mask)[:, seen:]
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "position_ids": places,
            "global_attention_mask": _marks(global_attention_mask, input_ids, seen),
            "prefix_length": prefix_length,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
        }


class EncoderOnly(nn.Module):
    """The encoder of a pair, as `generate` asks for it."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        object.__setattr__(self, "whole", whole)  # no submodule: it would hold itself

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Hidden states [batch source d_model]."""
        whole: Any = self.whole
        first = input_ids.new_zeros(input_ids.shape[0], 1)  # the pair is called as one; this token's states are dropped
        out = whole.called(
            kwargs,
            kwargs.pop("output_attentions", None),
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=first,
            global_attention_mask=global_attention_mask,
            prefix_length=prefix_length,
            with_heads=False,
        )
        weights = [value for place, value in out.observed.items() if place.startswith("encoder.")]
        return BaseModelOutput(last_hidden_state=out.memory, attentions=tuple(weights) or None)


class TfkitForSeq2SeqLM(TfkitWriter):
    """Logits of the next token of the target, and `generate`."""

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """What `generate` encodes the source with."""
        return EncoderOnly(self)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Past | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits [batch time vocab]; with `labels` (-100: none) their mean loss, the decoder's input made of them."""
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self._shifted(labels)
        memory = None if encoder_outputs is None else encoder_outputs[0]
        past = self.past(past_key_values, use_cache)
        out = self.called(
            kwargs,
            output_attentions,
            input_ids=input_ids if memory is None else None,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds if memory is None else None,
            encoder_hidden_states=None if past is not None and past.get_seq_length() else memory,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            decoder_inputs_embeds=decoder_inputs_embeds,
            global_attention_mask=global_attention_mask,
            prefix_length=prefix_length,
            state=None if past is None else past.state,
        )
        loss = None if labels is None else _loss(out.logits, labels)
        made = Seq2SeqLMOutput(loss=loss, logits=out.logits, past_key_values=past, encoder_last_hidden_state=out.memory)
        return _given(_with_weights(made, out), return_dict)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Past | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The tokens that the past does not hold yet, and the encoded source."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "decoder_input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "encoder_outputs": encoder_outputs,
            "global_attention_mask": global_attention_mask,
            "prefix_length": prefix_length,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
        }

    def _shifted(self, labels: Tensor) -> Tensor:
        """The labels after the start token, without their last."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ValueError("the target begins with config.decoder_start_token_id: set it, or give decoder_input_ids")
        first = labels.new_full((labels.shape[0], 1), start)
        return torch.cat((first, labels[:, :-1].clamp(min=0)), dim=1)


def _places(attention_mask: Tensor) -> Tensor:
    return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)


def _marks(marks: Tensor | None, input_ids: Tensor, seen: int) -> Tensor | None:
    """The marks of the tokens that are not seen yet; those that were written have none."""
    if marks is None:
        return None
    written = input_ids.shape[1] - marks.shape[1]
    return torch.cat((marks, marks.new_zeros(len(marks), written)), dim=1)[:, seen:]


def _segments(model: Any, token_type_ids: Tensor | None) -> Tensor | None:
    """The segments, where the model has any: tokenizers of others hand them over in any case."""
    stack = model.blueprint.encoder or model.blueprint.decoder
    return token_type_ids if getattr(stack.embedding, "segments", 0) else None


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


def _with_weights(made: Any, out: Any) -> Any:
    """The attention weights of the layers that have any, [batch heads query key] each, under transformers' names."""
    fields = made.__dataclass_fields__
    last = "decoder" if any(place.startswith("decoder") for place in out.observed) else "encoder"
    found: dict[str, list[Tensor]] = {}
    for place, weights in out.observed.items():
        side, cross = place.partition(".")[0], place.endswith(".cross_attention")
        name = "cross_attentions" if cross else f"{side}_attentions"
        if name not in fields and side == last and not cross:
            name = "attentions"
        if name in fields:
            found.setdefault(name, []).append(weights)
    for name, layers in found.items():
        made[name] = tuple(layers)
    return made


def _given(output: Any, return_dict: bool | None) -> Any:
    return output.to_tuple() if return_dict is False else output
