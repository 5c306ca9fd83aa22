"""Pydantic schemas of the recipe's sections besides `model:`; their parts are resolved by the registry."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from tfkit.core.component import Config
from tfkit.core.options import (
    DeviceName,
    Duration,
    FolderPath,
    Layers,
    Names,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RowCount,
    RunPath,
    Seed,
    Slot,
    as_tuple,
)
from tfkit.core.slots import MetricFacts, ObjectiveFacts, TokenizerFacts

SECTIONS = ("data", "objective", "generate")
MADE = ("data.tokenizer", "objective.type")  # fixed by the weights
TAKEN = ("train", "valid", "test", "longer", "generation")  # names in evaluation.json
NAME = re.compile(r"[a-z][a-z0-9_]*")


def value_problem(key: str) -> str:
    """Return why `key` cannot be changed for evaluating a trained model; empty if it can."""
    section, dot, _ = key.partition(".")
    if not dot or section not in SECTIONS:
        return f"what can be set of a trained model begins with {', '.join(f'{name}.' for name in SECTIONS)}"
    made = next((name for name in MADE if key == name or key.startswith(f"{name}.")), None)
    return "" if made is None else f"the model was trained with its {made}"


def _checked(evaluations: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name, values in evaluations.items():
        if not NAME.fullmatch(name) or name in TAKEN:
            taken = ", ".join(TAKEN)
            raise ValueError(f"'{name}' names no evaluation: use small letters, digits and _; {taken} are taken")
        if not values:
            raise ValueError(f"{name}: give at least one value by key, as in objective.block: 512")
        for key in values:
            if problem := value_problem(key):
                raise ValueError(f"{name}: {key}: {problem}")
    return evaluations


def _or_none(value: Any) -> Any:
    return {} if value is None else value


Evaluations = Annotated[dict[str, dict[str, Any]], BeforeValidator(_or_none), AfterValidator(_checked)]
Tokenizer = Annotated[TokenizerFacts.Config, Slot("tokenizer")]
Corpus = Annotated[Config, Slot("corpus")]
Objective = Annotated[ObjectiveFacts.Config, Slot("objective")]
Optimizer = Annotated[Config, Slot("optimizer")]
Schedule = Annotated[Config, Slot("schedule")]
Metric = Annotated[MetricFacts.Config, Slot("metric")]
AdapterPart = Annotated[Config, Slot("adapter")]
CallbackPart = Annotated[Config, Slot("callback")]
LogitsRule = Annotated[Config, Slot("logits")]
StopRule = Annotated[Config, Slot("stop")]
Strategy = Annotated[Config, Slot("strategy")]
TOKENIZER = "data.tokenizer"


class Section(BaseModel):
    """A recipe mapping that is not a part: strict, closed and frozen like a part's options."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class Batch(Section):
    """Batching of examples: exactly one of `tokens` (rows times the longest, including padding) and `size` (rows)."""

    tokens: PositiveInt | None = Field(
        None, description="padded tokens per batch; 4096 where neither this nor size is set"
    )
    size: RowCount | None = Field(None, description="rows per batch, instead of tokens")
    by_length: bool = Field(True, description="group examples of similar length, in random order")
    pack: bool = Field(False, description="put several short examples into one row, kept apart by their segments")
    length: PositiveInt | None = Field(None, description="longest example in tokens; the row length when packed")

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("tokens") is None and data.get("size") is None:
            return {**data, "tokens": 4096}
        return data

    @model_validator(mode="after")
    def _one_budget(self) -> Batch:
        if self.tokens is not None and self.size is not None:
            raise ValueError(f"tokens: {self.tokens} and size: {self.size} are both set; write `none` for one of them")
        if self.tokens is not None and self.length is not None and self.length > self.tokens:
            raise ValueError(f"an example of length: {self.length} does not fit into a batch of tokens: {self.tokens}")
        return self


class SideTokenizers(Section):
    """A tokenizer with its own vocabulary for each side of a pair."""

    source: Tokenizer = Field(description="splits what the encoder reads")
    target: Tokenizer = Field(description="splits what the decoder writes")


def _tokenizer_form(value: Any) -> str:
    """Return "sides" for a mapping without a type that has a side as key, else "one"."""
    named = isinstance(value, Mapping) and "type" not in value and bool(SideTokenizers.model_fields.keys() & value)
    return "sides" if named or isinstance(value, SideTokenizers) else "one"


class Data(Section):
    """The data, its tokenization and batching."""

    folder: FolderPath | None = Field(
        None, description="where the files of the corpora are, but for paths that --set says; none: beside the recipe"
    )
    tokenizer: Annotated[
        Annotated[Tokenizer | None, Tag("one")] | Annotated[SideTokenizers, Tag("sides")],
        Discriminator(_tokenizer_form),
    ] = Field(
        None,
        description="how text is split into tokens; {source: ..., target: ...}: each side in its own way; "
        "none where the corpora give vectors and no text",
    )
    train: Corpus = Field(description="the examples that the model learns from")
    valid: Corpus | None = Field(None, description="the examples that choose the best weights while training")
    test: Corpus | None = Field(None, description="the examples that evaluate measures on")
    longer: Corpus | None = Field(
        None, description="examples beyond those of training, such as longer ones, measured beside test"
    )
    batch: Batch = Field(Batch(tokens=4096), description="how examples become batches")

    @property
    def source_tokenizer(self) -> TokenizerFacts.Config | None:
        """Tokenizer of the encoder's input."""
        return self.tokenizer.source if isinstance(self.tokenizer, SideTokenizers) else self.tokenizer

    @property
    def target_tokenizer(self) -> TokenizerFacts.Config | None:
        """Tokenizer of the decoder's output, or the only one."""
        return self.tokenizer.target if isinstance(self.tokenizer, SideTokenizers) else self.tokenizer

    def tokenizers(self) -> dict[str, TokenizerFacts.Config]:
        """Return the tokenizers by path."""
        if isinstance(self.tokenizer, SideTokenizers):
            return {f"{TOKENIZER}.source": self.tokenizer.source, f"{TOKENIZER}.target": self.tokenizer.target}
        return {} if self.tokenizer is None else {TOKENIZER: self.tokenizer}

    def fields(self) -> frozenset[str]:
        """Return the fields of the training examples."""
        return frozenset(self.train.build().fields)

    def measured(self) -> list[str]:
        """Return the splits measured at the end of training: test, or else valid; and longer."""
        found = dict(self.splits())
        return [split for split in ("test" if "test" in found else "valid", "longer") if split in found]

    def splits(self) -> list[tuple[str, Config]]:
        """Return the configured corpora by split."""
        found = (("train", self.train), ("valid", self.valid), ("test", self.test), ("longer", self.longer))
        return [(name, config) for name, config in found if config is not None]


class Mean(Section):
    """Keep the mean of the last checkpoints."""

    mean: PositiveInt = Field(description="how many of the last checkpoints are averaged")


class InitFrom(Section):
    """Initialize from the weights of a run: all tensors must match, except those named here."""

    run: RunPath = Field(description="the run's folder")
    new: Names = Field((), description="tensors of this model that may be new: names, where * stands for anything")
    unused: Names = Field((), description="tensors of the run that may be left: names, where * stands for anything")
    layers: Layers = Field(
        {}, description="the run's layer that each layer starts from, {0: 0, 1: 2}; none: the one of the same number"
    )


class Teacher(Section):
    """A trained model to distill from, in addition to the objective (Hinton et al. 2015, arXiv 1503.02531)."""

    run: RunPath = Field(description="the teacher's folder, of the same vocabulary; its weights stay as they are")
    temperature: PositiveFloat = Field(2.0, description="T: soft targets are softmax(logits / T), their loss times T^2")
    weight: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of the soft targets in the loss; the rest is the objective's own loss"
    )
    cosine: NonNegativeFloat = Field(
        0.0, description="factor on 1 - cosine of the last hidden states of both (DistilBERT, arXiv 1910.01108)"
    )
    hidden: Layers = Field(
        {}, description="layers whose hidden states follow the teacher's, {student: teacher} (TinyBERT: 1909.10351)"
    )
    hidden_weight: PositiveFloat = Field(1.0, description="factor on the mean squared error of each of these layers")
    attention: Layers = Field({}, description="layers whose attention weights do the same, {student: teacher}")
    attention_weight: PositiveFloat = Field(1.0, description="factor on the mean squared error of each of these")
    projection: bool = Field(
        False, description="where widths differ, learn a projection of the student's states, dropped after training"
    )
    sequences: Strategy | None = Field(
        None, description="rewrite the targets of training by the teacher, such as by beam (Kim and Rush: 1606.07947)"
    )

    @property
    def is_read(self) -> bool:
        """True if the teacher is run on each training batch."""
        return bool(self.weight or self.cosine or self.hidden or self.attention)


ParameterKind = Literal[
    "embedding", "position", "attention", "mixer", "feedforward", "norm", "residual", "mask", "activation", "head",
    "bias", "matrix", "vector",
]  # fmt: skip


class ParameterGroup(Section):
    """Parameters with their own learning rate or weight decay, selected by `names` and `kind`."""

    names: Names = Field((), description="names of parameters, where * stands for anything; by default all")
    kind: ParameterKind | None = Field(
        None, description="the slot of the part that they are in; or bias, vector, or matrix: those of hidden layers"
    )
    rate: PositiveFloat = Field(1.0, description="factor on the learning rate; several groups multiply theirs")
    weight_decay: NonNegativeFloat | None = Field(
        None, description="in place of the optimizer's; the last group's counts"
    )

    @model_validator(mode="after")
    def _selects(self) -> ParameterGroup:
        if not self.names and self.kind is None:
            raise ValueError("select parameters by names, by kind, or by both")
        return self


class GenerationRate(Section):
    """Benchmark of greedy generation from random prompts."""

    batch: RowCount = Field(8, description="sequences at once")
    prompt: PositiveInt = Field(32, description="tokens of each prompt, or source")
    new: PositiveInt = Field(64, description="tokens generated after each prompt")


class Validate(Section):
    """Measurements of each validation besides the loss."""

    metrics: Annotated[tuple[Metric, ...], BeforeValidator(as_tuple)] = Field(
        (), description="computed at each validation"
    )
    samples: NonNegativeInt = Field(0, description="sample outputs shown at each validation")
    limit: PositiveInt | None = Field(None, description="how many examples metrics are computed on; none: all")
    best: str = Field(
        "loss",
        description="what keep: best and patience go by: loss, or one of these metrics; of equal values the first",
    )

    @model_validator(mode="after")
    def _measured(self) -> Validate:
        names = list(self.names)
        if self.best not in ("loss", *names):
            known = ", ".join(["loss", *names])
            raise ValueError(f"best: '{self.best}' is not measured at validations; there are: {known}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(config.part.part_name for config in self.metrics)

    @property
    def higher_is_better(self) -> bool:
        """True if larger values of `best` are better."""
        return any(config.part.higher_is_better for config in self.metrics if config.part.part_name == self.best)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # `validate` shadows a deprecated method of Pydantic

    class Validated(Section):
        """A section with `validate:`."""

        validate: Validate = Field(  # type: ignore[assignment]
            Validate(), description="what each validation measures and shows besides the loss"
        )


class Train(Validated):
    """Settings of training."""

    seed: Seed = Field(0, description="seed of all random numbers: weights, order of examples, dropout")
    device: DeviceName = Field("auto", description="auto takes CUDA where there is one; or cpu, cuda, cuda:1")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the computation; weights and their averages stay float32"
    )
    steps: PositiveInt | None = Field(None, description="optimizer steps in all; 10,000 if epochs is not set either")
    epochs: PositiveInt | None = Field(None, description="passes over the training data, instead of steps")
    max_time: Duration | None = Field(
        None, description="stop after the step that passes this time, such as 8 h or 90 min; --resume continues"
    )
    optimizer: Optimizer = Field("adam", description="how gradients change the weights")  # type: ignore[assignment]
    schedule: Schedule = Field(  # type: ignore[assignment]
        "inverse_square_root", description="the learning rate of each step"
    )
    clip_norm: PositiveFloat | None = Field(None, description="largest norm of all gradients")
    not_finite: Literal["stop", "skip"] = Field(
        "stop", description="if loss or gradient is NaN or infinite: stop, or skip the update and count it"
    )
    accumulate: PositiveInt = Field(1, description="batches whose gradients make one step")
    evaluate_every: PositiveInt = Field(500, description="steps between validations")
    checkpoint_every: PositiveInt = Field(500, description="steps between checkpoints")
    keep: Literal["best", "last"] | Mean = Field("best", description="which weights model.safetensors holds")
    patience: PositiveInt | None = Field(None, description="stop after this many validations without a better loss")
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(as_tuple)] = Field(
        (), description="computed on the validation set when training ends, and by evaluate"
    )
    callbacks: Annotated[tuple[CallbackPart, ...], BeforeValidator(as_tuple)] = Field(
        (), description="observers of the training, which may read, log or stop it"
    )
    evaluations: Evaluations = Field(
        default_factory=dict,
        description="more evaluations when training ends, by name: the values by key that each is made with",
    )
    generation_rate: GenerationRate | None = Field(
        None, description="measure, when training ends, how many tokens per second the model generates"
    )
    samples: NonNegativeInt = Field(5, description="sample outputs shown when training ends")
    changed_data: Literal["refuse", "accept"] = Field(
        "refuse", description="what --resume does when the data is not what the run began with"
    )
    init_from: RunPath | InitFrom | None = Field(
        None, description="a run whose weights training starts from, all of them; or the same with what may differ"
    )
    teacher: Teacher | None = Field(
        None, description="a run that the model learns from as well, by soft targets, hidden states or its own texts"
    )
    adapter: AdapterPart | None = Field(
        None, description="few weights that are trained beside the frozen model and merged into it when it is published"
    )
    freeze: Names = Field((), description="parameters that stay as they are: beginnings of names, or patterns with *")
    groups: Annotated[tuple[ParameterGroup, ...], BeforeValidator(as_tuple)] = Field(
        (), description="parameters with a rate or a weight decay of their own"
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="factor on the rate of each layer below the last; embeddings are one layer more"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_steps(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("steps") is None and data.get("epochs") is None:
            return {**data, "steps": 10_000}
        return data

    @property
    def initial(self) -> InitFrom | None:
        """The run to initialize from, in the long form."""
        return InitFrom(run=self.init_from) if isinstance(self.init_from, str) else self.init_from


def _one_or_many(value: Any) -> Any:
    """Convert one part, a list, or none to a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


_LogitsAsWritten = LogitsRule | list[LogitsRule] | None
_StopAsWritten = StopRule | list[StopRule] | None
LogitsRules = Annotated[tuple[LogitsRule, ...], BeforeValidator(_one_or_many, json_schema_input_type=_LogitsAsWritten)]
StopRules = Annotated[tuple[StopRule, ...], BeforeValidator(_one_or_many, json_schema_input_type=_StopAsWritten)]


class Generate(Section):
    """Defaults of generation."""

    max_new_tokens: PositiveInt = Field(256, description="stop after so many tokens")
    length_ratio: NonNegativeFloat | None = Field(
        None, description="for translation: at most ratio * source + 10 tokens"
    )
    strategy: Strategy = Field("greedy", description="how the next token is chosen")  # type: ignore[assignment]
    seed: Seed | None = Field(None, description="makes what is drawn repeatable; none: another each time")
    logits: LogitsRules = Field((), description="rules that change the scores of the next token, in their order")
    stop: StopRules = Field(
        ("end_token",),  # type: ignore[arg-type]
        description="rules that end a text, any of them; a list of one's own leaves end_token out unless it names it",
    )


class Sections(NamedTuple):
    """The sections besides `model:`; None: absent, or with faults."""

    data: Data | None
    objective: ObjectiveFacts.Config | None
    train: Train
    generate: Generate
