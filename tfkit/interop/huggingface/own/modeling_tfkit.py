"""A tfkit model for transformers; load it with trust_remote_code=True. Its recipe is in config.json."""

# mypy: disable-error-code="misc, override, no-untyped-call, arg-type"

# Axes: batch, time, source and target (tokens), vocab, d_model.

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

# packages that the sources need, imported here so that transformers reports missing ones
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
    ModelOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from tfkit.interop.huggingface.own.tfkit_sources import build, write_code

WEIGHTS = frozenset({"attention"})  # observed for output_attentions
TEXT = ("input_ids", "attention_mask")
TARGET = ("decoder_input_ids", "decoder_attention_mask")
MARKS = ("global_attention_mask", "prefix_length")
TYPED = (*TEXT, "token_type_ids", "position_ids", "inputs_embeds")
# model inputs, except those that the class computes itself
INPUTS = {*TYPED, *TARGET, "decoder_inputs_embeds", *MARKS}
ANSWER = ("output_attentions", "return_dict")

Values = dict[str, Any]  # arguments of a call by name
Result: TypeAlias = "ModelOutput | tuple[Tensor, ...]"  # a tuple if return_dict=False
Forward = Callable[[Any, Values, Values], Result]  # (model, named arguments, other keyword arguments)


class TfkitOutput(Protocol):
    """The fields of a tfkit model's output that are used here."""

    logits: Tensor  # output of the head
    hidden: Tensor  # [batch time d_model]
    memory: Tensor | None  # [batch source d_model]
    observed: Mapping[str, Tensor]  # attention weights by layer name


class TfkitState(Protocol):
    """The decode state of a tfkit model."""

    length: int

    def reorder(self, rows: Tensor) -> None: ...


def takes(*names: str) -> Callable[[Forward], Callable[..., Result]]:
    """Give a forward that receives two dicts a signature with the arguments `names` (default None) and **kwargs."""
    kind, place = inspect.Parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD
    arguments = [kind("self", place), *(kind(name, place, default=None) for name in names)]
    signature = inspect.Signature([*arguments, kind("kwargs", kind.VAR_KEYWORD)])

    def wrap(forward: Forward) -> Callable[..., Result]:
        @functools.wraps(forward)
        def called(self: object, *args: object, **kwargs: object) -> Result:
            if len(args) > len(names) or any(name in kwargs for name in names[: len(args)]):
                signature.bind(self, *args, **kwargs)  # raises TypeError
            call: Values = dict.fromkeys(names) | dict(zip(names, args, strict=False))
            call |= {name: kwargs.pop(name) for name in names if name in kwargs}
            return forward(self, call, kwargs)

        vars(called)["__signature__"] = signature
        return called

    return wrap


class TfkitConfig(PreTrainedConfig):
    """Config whose `recipe` holds the architecture in tfkit's recipe language, every value explicit."""

    model_type = "tfkit"

    def __init__(self, recipe: Values | None = None, tied: dict[str, str] | None = None, **kwargs: object) -> None:
        self.recipe = recipe or {}
        self.tied = tied or {}
        super().__init__(**kwargs)


class Past:
    """A decode state, wrapped as a cache for `generate`."""

    def __init__(self, state: TfkitState) -> None:
        self.state = state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.state.length)

    def reorder_cache(self, beam_idx: Tensor) -> Past:
        """Reorder the rows: row i becomes the former row `beam_idx[i]`."""
        self.state.reorder(beam_idx)
        return self


class TfkitPreTrainedModel(PreTrainedModel):
    """Base class that builds the model from the recipe in its config."""

    config_class = TfkitConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = False  # losses are means, so Trainer must divide them by the number of accumulation steps

    def __init__(self, config: TfkitConfig, model: nn.Module | None = None) -> None:
        """Wrap `model`, or build it from the config's recipe."""
        super().__init__(config)
        self.model: Any = self._built(config) if model is None else model
        self._tied_weights_keys = dict(config.tied)
        self.post_init()

    def _built(self, config: TfkitConfig) -> nn.Module:
        loading = torch.get_default_device().type == "meta"  # the checkpoint is loaded right afterwards
        with torch.device("cpu" if loading else torch.get_default_device()):
            built: nn.Module = build(config.recipe, initialised=not loading)
        return built

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the recipe defines the initialization."""

    def named_non_persistent_buffers(self, *args: object, **kwargs: object) -> Iterator[tuple[str, Tensor]]:
        """Return nothing, so that computed buffers are not reported as missing weights."""
        return iter(())

    def get_input_embeddings(self) -> nn.Module:
        """Return the token table of the first stack, or the whole embedding if the model takes vectors."""
        plan = self.model.blueprint.encoder or self.model.blueprint.decoder
        embedding = self.model.stack(plan.side).embedding
        module: nn.Module = embedding if plan.reads_vectors else embedding.tokens
        return module

    def save_pretrained(self, save_directory: str | Path, *args: object, **kwargs: object) -> None:
        """Save weights, config and the code that loads them."""
        write_code(self.model, Path(save_directory))
        super().save_pretrained(save_directory, *args, **kwargs)

    def extra(self, given: Values) -> Values:
        """Return the inputs besides ids that parts of the model declare."""
        return {name: given[name] for name in self.model.extra_inputs if given.get(name) is not None}

    def called(self, call: Values, rest: Values, **more: object) -> TfkitOutput:
        """Run the model on the inputs in `call` and `more`, returning attention weights if requested.

        Inputs that are None are omitted.
        """
        if rest.get("output_hidden_states"):
            raise ValueError(
                "output_hidden_states is not supported: the model does not return the states of each layer; omit it"
            )
        requested = call.get("output_attentions")
        more["observe"] = WEIGHTS if (self.config.output_attentions if requested is None else requested) else None
        if extra := self.extra(rest):
            more["inputs"] = extra
        inputs = {name: value for name, value in call.items() if name in INPUTS} | more
        output: TfkitOutput = self.model(**{name: value for name, value in inputs.items() if value is not None})
        return output


class TfkitReader(TfkitPreTrainedModel):
    """Base class of models that process whole texts; subclasses convert the output."""

    with_heads = True

    @takes(*TYPED, *TARGET, "decoder_inputs_embeds", *MARKS, "labels", *ANSWER)
    def forward(self, call: Values, rest: Values) -> Result:
        call["token_type_ids"] = _segments(self.model.blueprint, call["token_type_ids"])
        out = self.called(call, rest, with_heads=self.with_heads)
        return _as_requested(_with_weights(self.as_output(out, call["labels"]), out), call["return_dict"])

    def as_output(self, out: TfkitOutput, labels: Tensor | None) -> ModelOutput:
        """Convert the output to transformers' format and compute the loss from `labels`."""
        raise NotImplementedError


class TfkitModel(TfkitReader):
    """The model without a head; returns the hidden states of the last stack."""

    with_heads = False

    def as_output(self, out: TfkitOutput, labels: Tensor | None) -> ModelOutput:
        """Return hidden states [batch time d_model]."""
        return BaseModelOutput(last_hidden_state=out.hidden)


class TfkitForMaskedLM(TfkitReader):
    """The model with a masked language modelling head."""

    output_class: type[ModelOutput] = MaskedLMOutput

    def as_output(self, out: TfkitOutput, labels: Tensor | None) -> ModelOutput:
        """Return logits [batch time vocab or classes] and the mean loss of `labels` (-100: ignored)."""
        loss = None if labels is None else _loss(out.logits, labels)
        return self.output_class(loss=loss, logits=out.logits)


class TfkitForTokenClassification(TfkitForMaskedLM):
    """The model with a token classification head."""

    output_class = TokenClassifierOutput


class TfkitForSequenceClassification(TfkitReader):
    """The model with a head for text classification or regression."""

    def as_output(self, out: TfkitOutput, labels: Tensor | None) -> ModelOutput:
        """Return logits [batch classes] and the mean loss of `labels` for the config's problem_type."""
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
    """The model with a head for extractive question answering."""

    @takes(*TYPED, "start_positions", "end_positions")
    def forward(self, call: Values, rest: Values) -> Result:
        """Run the model with the start and end positions as labels."""
        places = call.pop("start_positions"), call.pop("end_positions")
        labels = None if places[0] is None or places[1] is None else torch.stack(places, dim=-1)
        result: Result = super().forward(**call, **rest, labels=labels)
        return result

    def as_output(self, out: TfkitOutput, labels: Tensor | None) -> ModelOutput:
        """Return start and end logits [batch time] and their mean loss."""
        loss = None if labels is None else cross_entropy(out.logits, labels, ignore_index=-100)
        begins, ends = out.logits.unbind(dim=-1)
        return QuestionAnsweringModelOutput(loss=loss, start_logits=begins, end_logits=ends)


class TfkitWriter(TfkitPreTrainedModel, GenerationMixin):
    """Base class of models that generate text."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the model has its own cache

    def _validate_model_kwargs(self, model_kwargs: Values) -> None:
        known = self.model.extra_inputs
        super()._validate_model_kwargs({name: value for name, value in model_kwargs.items() if name not in known})

    def past(self, past: Past | None, use_cache: bool | None) -> Past | None:
        """Return the cache, or a new one; None if positions depend on the text length and states must be recomputed."""
        serves = use_cache and self.model.caches and not self.model.stack(self.model.blueprint.last.side).moves
        return Past(self.model.new_state()) if past is None and serves else past

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Past | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        prefix_length: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Tensor,
    ) -> Values:
        """Return the uncached tokens."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "global_attention_mask": _marks(global_attention_mask, input_ids, seen),
            "prefix_length": prefix_length,
            "past_key_values": past_key_values,
            "use_cache": use_cache,
            **self.extra(kwargs),
        }


class TfkitForCausalLM(TfkitWriter):
    """The model with a causal language modelling head, which can generate."""

    @takes(*TEXT, "position_ids", "past_key_values", "inputs_embeds", *MARKS, "labels", "use_cache", *ANSWER)
    def forward(self, call: Values, rest: Values) -> Result:
        """Return logits [batch time vocab] and, with `labels` (-100: ignored), the mean next-token loss."""
        labels, past = call["labels"], self.past(call["past_key_values"], call["use_cache"])
        out = self.called(call, rest, state=None if past is None else past.state)
        loss = None if labels is None else _loss(out.logits[:, :-1], labels[:, 1:])
        output = CausalLMOutputWithPast(loss=loss, logits=out.logits, past_key_values=past)
        return _as_requested(_with_weights(output, out), call["return_dict"])


class EncoderOnly(nn.Module):
    """The encoder of an encoder-decoder, for `generate`."""

    whole: TfkitForSeq2SeqLM

    def __init__(self, whole: TfkitForSeq2SeqLM) -> None:
        super().__init__()
        object.__setattr__(self, "whole", whole)  # not a submodule, to avoid a cycle

    @takes(*TEXT, *MARKS, "output_attentions")
    def forward(self, call: Values, rest: Values) -> BaseModelOutput:
        """Return hidden states [batch source d_model]."""
        ids = call["input_ids"]
        first = ids.new_zeros(ids.shape[0], 1)  # the target is a dummy token, whose states are dropped
        out = self.whole.called(call, rest, decoder_input_ids=first, with_heads=False)
        weights = [value for place, value in out.observed.items() if place.startswith("encoder.")]
        return BaseModelOutput(last_hidden_state=out.memory, attentions=tuple(weights) or None)


class TfkitForSeq2SeqLM(TfkitWriter):
    """An encoder-decoder with a language modelling head, which can generate."""

    def get_encoder(self, *args: object, **kwargs: object) -> nn.Module:
        return EncoderOnly(self)

    @takes(
        *(*TEXT, *TARGET, "inputs_embeds", "decoder_inputs_embeds", "encoder_outputs", "past_key_values", *MARKS),
        *("labels", "use_cache", *ANSWER),
    )
    def forward(self, call: Values, rest: Values) -> Result:
        """Return logits [batch time vocab], and the mean loss of `labels` (-100: ignored).

        If there are no decoder inputs, they are the labels shifted to the right.
        """
        labels, encoded = call["labels"], call["encoder_outputs"]
        if call["decoder_input_ids"] is None and labels is not None:
            call["decoder_input_ids"] = self._shifted(labels)
        past = self.past(call["past_key_values"], call["use_cache"])
        state = None if past is None else past.state
        memory: Values = {}
        if encoded is not None:
            kept = past is not None and past.get_seq_length()
            memory = {"input_ids": None, "inputs_embeds": None, "encoder_hidden_states": None if kept else encoded[0]}
        out = self.called(call, rest, state=state, **memory)
        loss = None if labels is None else _loss(out.logits, labels)
        output = Seq2SeqLMOutput(
            loss=loss, logits=out.logits, past_key_values=past, encoder_last_hidden_state=out.memory
        )
        return _as_requested(_with_weights(output, out), call["return_dict"])

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, encoder_outputs: ModelOutput | None = None, **kwargs: Any
    ) -> Values:
        """Return the uncached target tokens and the encoded source."""
        inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        return {"decoder_input_ids": inputs.pop("input_ids"), "encoder_outputs": encoder_outputs, **inputs}

    def _shifted(self, labels: Tensor) -> Tensor:
        """Shift labels right: prepend the start token and drop the last label."""
        start = self.config.decoder_start_token_id
        if start is None:
            raise ValueError("config.decoder_start_token_id is not set; set it, or pass decoder_input_ids")
        first = labels.new_full((labels.shape[0], 1), start)
        return torch.cat((first, labels[:, :-1].clamp(min=0)), dim=1)


def _marks(marks: Tensor | None, input_ids: Tensor, seen: int) -> Tensor | None:
    """Return the marks of uncached tokens; generated tokens are unmarked."""
    if marks is None:
        return None
    written = input_ids.shape[1] - marks.shape[1]
    return torch.cat((marks, marks.new_zeros(len(marks), written)), dim=1)[:, seen:]


def _segments(blueprint: Any, token_type_ids: Tensor | None) -> Tensor | None:
    """Return the token types if the model uses them; some tokenizers always return them."""
    embedding = (blueprint.encoder or blueprint.decoder).embedding
    return token_type_ids if embedding is not None and embedding.num_segments() else None


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


def _with_weights(output: ModelOutput, out: TfkitOutput) -> ModelOutput:
    """Add the attention weights [batch heads query key] of each layer under transformers' names."""
    fields = output.__dataclass_fields__
    last = "decoder" if any(place.startswith("decoder") for place in out.observed) else "encoder"
    by_name: dict[str, list[Tensor]] = {}
    for place, weights in out.observed.items():
        side, cross = place.partition(".")[0], place.endswith(".cross_attention")
        name = "cross_attentions" if cross else f"{side}_attentions"
        if name not in fields and side == last and not cross:
            name = "attentions"
        if name in fields:
            by_name.setdefault(name, []).append(weights)
    for name, layers in by_name.items():
        output[name] = tuple(layers)
    return output


def _as_requested(output: ModelOutput, return_dict: bool | None) -> Result:
    return output.to_tuple() if return_dict is False else output
