"""Pydantic schemas of all sections except `model:`; the registry resolves the parts in them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

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
    part_option,
)
from tfkit.core.slots import CorpusFacts, MetricFacts, ObjectiveFacts, TokenizerFacts
from tfkit.recipe.settings.split import Partition
from tfkit.recipe.settings.split import Section as Section

EXAMPLES = {"data": "batch.size", "objective": "block", "generate": "max_new_tokens"}
SECTIONS = tuple(EXAMPLES)
MADE = ("data.tokenizer", "objective.type")  # cannot change after training
TAKEN = ("train", "valid", "test", "longer", "generation")  # names that evaluation.json already uses
NAME = re.compile(r"[a-z][a-z0-9_]*")


def value_problem(key: str) -> str:
    """Return the reason why an evaluation of a trained model cannot override `key`, or ""."""
    section, dot, _ = key.partition(".")
    if section in SECTIONS and not dot:
        return f"is a whole section; write its keys with a dot, as in {section}.{EXAMPLES[section]}"
    if section not in SECTIONS:
        return f"for a trained model, only keys of {', '.join(SECTIONS)} can be changed"
    fixed = next((name for name in MADE if key == name or key.startswith(f"{name}.")), None)
    return "" if fixed is None else f"the {fixed} of a trained model cannot change"


def _checked(evaluations: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    for name, values in evaluations.items():
        if not NAME.fullmatch(name) or name in TAKEN:
            taken = ", ".join(TAKEN)
            raise ValueError(f"'{name}' is not a valid name: use lowercase letters, digits and _; {taken} are reserved")
        if not values:
            raise ValueError(f"{name}: set at least one value by key, as in objective.block: 512")
        for key in values:
            if problem := value_problem(key):
                raise ValueError(f"{name}: {key}: {problem}")
    return evaluations


def _or_none(value: object) -> object:
    return {} if value is None else value


Evaluations = Annotated[dict[str, dict[str, Any]], BeforeValidator(_or_none), AfterValidator(_checked)]
Tokenizer = Annotated[TokenizerFacts.Config, Slot("tokenizer")]
Corpus = Annotated[CorpusFacts.Config, Slot("corpus")]
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


class Batch(Section):
    """Batching of examples: set either `tokens` (rows times the longest row, padding included) or `size` (rows)."""

    tokens: PositiveInt | None = Field(None, description="tokens per batch, padding included; 4096 if size is not set")
    size: RowCount | None = Field(None, description="rows per batch, as an alternative to tokens")
    by_length: bool = Field(True, description="group examples of similar length, in random order")
    pack: bool = Field(False, description="pack several short examples into one row, each as its own segment")
    length: PositiveInt | None = Field(
        None, description="maximum length of an example in tokens; with pack, the length of a row"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: object) -> object:
        if isinstance(data, Mapping) and data.get("tokens") is None and data.get("size") is None:
            return {**data, "tokens": 4096}
        return data

    @model_validator(mode="after")
    def _one_budget(self) -> Batch:
        if self.tokens is not None and self.size is not None:
            raise ValueError(f"tokens: {self.tokens} and size: {self.size} are both set; remove one of them")
        if self.tokens is not None and self.length is not None and self.length > self.tokens:
            raise ValueError(f"an example of length: {self.length} does not fit in a batch of tokens: {self.tokens}")
        return self


class SideTokenizers(Section):
    """A tokenizer with its own vocabulary for each side of a pair."""

    source: Tokenizer = Field(description="tokenizer of the encoder's input")
    target: Tokenizer = Field(description="tokenizer of the decoder's output")


def _tokenizer_form(value: object) -> str:
    """Return "sides" for a mapping with a `source` or `target` key and no `type`, else "one"."""
    named = isinstance(value, Mapping) and "type" not in value and bool(SideTokenizers.model_fields.keys() & value)
    return "sides" if named or isinstance(value, SideTokenizers) else "one"


class Data(Section):
    """Corpora, tokenization and batching."""

    folder: FolderPath | None = Field(
        None, description="base folder of corpus paths in the recipe (not of paths in --set); none: the recipe's folder"
    )
    tokenizer: Annotated[
        Annotated[Tokenizer | None, Tag("one")] | Annotated[SideTokenizers, Tag("sides")],
        Discriminator(_tokenizer_form),
    ] = Field(
        None, description="the tokenizer, or {source: ..., target: ...} for one per side; none for corpora of vectors"
    )
    train: Corpus = Field(description="training examples, or with `split` all examples")
    split: Partition | None = Field(None, description="division of `train` into train, valid and test")
    valid: Corpus | None = Field(None, description="validation examples, used to select the best weights")
    test: Corpus | None = Field(None, description="test examples, used by evaluate")
    longer: Corpus | None = Field(None, description="additional test examples, such as longer ones")
    batch: Batch = Field(Batch(tokens=4096), description="batching of the examples")
    shards: bool | None = Field(
        None,
        description="read tokens from shards on disk instead of memory; none: only if the corpus files have 64 MiB or "
        "more in total",
    )

    @property
    def source_tokenizer(self) -> TokenizerFacts.Config | None:
        """Tokenizer of the encoder's input."""
        return self.tokenizer.source if isinstance(self.tokenizer, SideTokenizers) else self.tokenizer

    @property
    def target_tokenizer(self) -> TokenizerFacts.Config | None:
        """Tokenizer of the decoder's output, or the only tokenizer."""
        return self.tokenizer.target if isinstance(self.tokenizer, SideTokenizers) else self.tokenizer

    def tokenizers(self) -> dict[str, TokenizerFacts.Config]:
        """Return the tokenizers by path."""
        if isinstance(self.tokenizer, SideTokenizers):
            return {f"{TOKENIZER}.source": self.tokenizer.source, f"{TOKENIZER}.target": self.tokenizer.target}
        return {} if self.tokenizer is None else {TOKENIZER: self.tokenizer}

    def fields(self) -> frozenset[str]:
        return frozenset(self.train.build().fields)

    def measured(self) -> list[str]:
        """Return the splits measured at the end of training: test (valid if there is none) and longer."""
        splits = dict(self.splits())
        return [split for split in ("test" if "test" in splits else "valid", "longer") if split in splits]

    def splits(self) -> list[tuple[str, CorpusFacts.Config]]:
        """Return the corpora by split: those configured, or those that `split` cuts from `train`."""
        corpora = {"train": self.train, "valid": self.valid, "test": self.test}
        if (split := self.split) is not None and split.cut:
            corpora = {name: self.train.part_of(split, name) for name in ("train", *split.cut)}
        return [(name, config) for name, config in {**corpora, "longer": self.longer}.items() if config is not None]

    def has(self, split: str) -> bool:
        return split in dict(self.splits())


class Mean(Section):
    """Setting of `keep` that saves the mean of the last checkpoints."""

    mean: PositiveInt = Field(description="number of most recent checkpoints to average")


class InitFrom(Section):
    """Initialization from the weights of a run, whose tensors must all match except for those named here."""

    run: RunPath = Field(description="the run folder")
    new: Names = Field((), description="tensors of this model that the run may lack: names, with * as wildcard")
    unused: Names = Field((), description="tensors of the run that this model may lack: names, with * as wildcard")
    layers: Layers = Field(
        {}, description="layer of the run that initializes each layer, {0: 0, 1: 2}; none: the one of the same index"
    )


class Teacher(Section):
    """A trained model to distill from, in addition to the objective (Hinton et al. 2015, arXiv 1503.02531)."""

    run: RunPath = Field(description="run folder of the teacher, which has the same vocabulary and is not trained")
    temperature: PositiveFloat = Field(2.0, description="T: soft targets are softmax(logits / T), loss scaled by T^2")
    weight: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="weight of the soft-target loss; the objective's loss has weight 1 - weight"
    )
    cosine: NonNegativeFloat = Field(
        0.0, description="weight of 1 - cosine similarity of the last hidden states (DistilBERT, arXiv 1910.01108)"
    )
    hidden: Layers = Field(
        {}, description="layers trained to match the teacher's hidden states, {student: teacher} (TinyBERT: 1909.10351)"
    )
    hidden_weight: PositiveFloat = Field(1.0, description="weight of the mean squared error of states, per layer")
    attention: Layers = Field({}, description="layers trained to match the teacher's attention, {student: teacher}")
    attention_weight: PositiveFloat = Field(1.0, description="weight of the mean squared error of attention, per layer")
    projection: bool = Field(
        False, description="learn a projection from the student's to the teacher's width, dropped after training"
    )
    sequences: Strategy | None = Field(
        None, description="strategy of the teacher for generating new targets, such as beam (Kim and Rush: 1606.07947)"
    )

    @property
    def is_read(self) -> bool:
        """True if the teacher runs on each training batch."""
        return bool(self.weight or self.cosine or self.hidden or self.attention)


ParameterKind = Literal[
    "embedding", "position", "attention", "mixer", "feedforward", "norm", "residual", "mask", "activation", "head",
    "bias", "matrix", "vector",
]  # fmt: skip


class ParameterGroup(Section):
    """Parameters with their own learning rate or weight decay, selected by `names` and `kind`."""

    names: Names = Field((), description="parameter names, with * as wildcard; all by default")
    kind: ParameterKind | None = Field(
        None, description="slot of the part that contains the parameter; or bias, vector, or matrix (in hidden layers)"
    )
    rate: PositiveFloat = Field(1.0, description="learning rate factor; factors of several groups are multiplied")
    weight_decay: NonNegativeFloat | None = Field(
        None, description="overrides that of the optimizer; if several groups set it, the last one wins"
    )

    @model_validator(mode="after")
    def _selects(self) -> ParameterGroup:
        if not self.names and self.kind is None:
            raise ValueError("selects no parameters; set names, kind, or both")
        return self


class Parallelism(Section):
    """Data-parallel training with several processes started by torchrun."""

    shard: bool = Field(
        False, description="shard weights, gradients and optimizer state over the processes, layer by layer (FSDP2)"
    )

    @model_validator(mode="before")
    @classmethod
    def _replicates(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if data.get("tensor"):
            raise ValueError("tensor: tensor parallelism is not supported; to save memory, use shard: true")
        if data.get("pieces") not in (None, "none"):  # none: written by earlier versions
            raise ValueError("pieces: was removed; leave it out: losses of several processes differ by rounding alone")
        return {key: value for key, value in data.items() if key != "pieces"}


class GenerationRate(Section):
    """Benchmark of greedy generation from random prompts."""

    batch: RowCount = Field(8, description="sequences per batch")
    prompt: PositiveInt = Field(32, description="tokens per prompt or source")
    new: PositiveInt = Field(64, description="new tokens per prompt")


class Validate(Section):
    """Measurements at each validation, in addition to the loss."""

    metrics: Annotated[tuple[Metric, ...], BeforeValidator(as_tuple)] = Field(
        (), description="metrics computed at each validation"
    )
    samples: NonNegativeInt = Field(0, description="number of sample outputs shown at each validation")
    limit: PositiveInt | None = Field(None, description="number of examples for the metrics; none: all")
    best: str = Field(
        "loss",
        description="measure that keep: best and patience compare: loss, or one of these metrics; the earliest of "
        "equal values wins",
    )

    @model_validator(mode="after")
    def _measured(self) -> Validate:
        names = list(self.names)
        if self.best not in ("loss", *names):
            available = ", ".join(["loss", *names])
            raise ValueError(f"best: '{self.best}' is not measured at validation; available: {available}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(config.part.part_name for config in self.metrics)

    @property
    def higher_is_better(self) -> bool:
        """True if larger values of `best` are better."""
        return any(config.part.higher_is_better for config in self.metrics if config.part.part_name == self.best)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # `validate` shadows a deprecated method of Pydantic

    class Validated(Section):
        """Base of the section that has `validate:`."""

        validate: Validate = Field(  # type: ignore[assignment]
            Validate(), description="metrics and samples at each validation, in addition to the loss"
        )


class Train(Validated):
    """Training settings."""

    seed: Seed = Field(0, description="seed for initial weights, order of examples and dropout")
    device: DeviceName = Field("auto", description="auto (CUDA if available), cpu, cuda, cuda:1")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of the computation; weights and their averages remain float32"
    )
    steps: PositiveInt | None = Field(None, description="number of optimizer steps; 10,000 if epochs is not set")
    epochs: PositiveInt | None = Field(None, description="passes over the training data, as an alternative to steps")
    max_time: Duration | None = Field(
        None, description="stop after the step that exceeds this time, such as 8 h or 90 min; --resume continues"
    )
    optimizer: Optimizer = part_option("adam", "the optimizer")
    schedule: Schedule = part_option("inverse_square_root", "the learning rate schedule")
    clip_norm: PositiveFloat | None = Field(None, description="maximum global norm of the gradients")
    parallel: Parallelism = Field(
        Parallelism(), description="distribution of each batch over the processes that torchrun starts"
    )
    not_finite: Literal["stop", "skip"] = Field(
        "stop", description="behaviour if the loss or gradient is NaN or infinite: stop, or skip and count the update"
    )
    accumulate: PositiveInt = Field(1, description="batches whose gradients are accumulated per optimizer step")
    recompute: Literal["all"] | NonNegativeInt = Field(
        0,
        description="number of layers, from the first of each stack, whose activations are recomputed in the backward "
        "pass instead of stored; or all",
    )
    compile: bool = Field(False, description="compile training with torch.compile; the first steps are slow")
    evaluate_every: PositiveInt = Field(500, description="steps between validations")
    checkpoint_every: PositiveInt = Field(500, description="steps between checkpoints")
    keep: Literal["best", "last"] | Mean = Field("best", description="weights saved in model.safetensors")
    patience: PositiveInt | None = Field(None, description="stop after this many validations without improvement")
    metrics: Annotated[tuple[Metric, ...], BeforeValidator(as_tuple)] = Field(
        (), description="metrics computed after training and by evaluate"
    )
    callbacks: Annotated[tuple[CallbackPart, ...], BeforeValidator(as_tuple)] = Field(
        (), description="callbacks that observe training and may log, change or stop it"
    )
    evaluations: Evaluations = Field(
        default_factory=dict,
        description="additional evaluations after training, by name, each with its overrides by key",
    )
    generation_rate: GenerationRate | None = Field(
        None, description="benchmark of generation after training, in tokens per second"
    )
    samples: NonNegativeInt = Field(5, description="number of sample outputs shown after training")
    changed_data: Literal["refuse", "accept"] = Field(
        "refuse", description="behaviour of --resume if the data has changed"
    )
    init_from: RunPath | InitFrom | None = Field(
        None, description="run to take initial weights from, or a mapping that also names tensors that may differ"
    )
    teacher: Teacher | None = Field(
        None, description="run to distill from, with soft targets, hidden states, attention or generated targets"
    )
    adapter: AdapterPart | None = Field(
        None, description="small trained addition to a frozen model, merged into the published weights"
    )
    freeze: Names = Field((), description="parameters to freeze: name prefixes, or patterns with *")
    groups: Annotated[tuple[ParameterGroup, ...], BeforeValidator(as_tuple)] = Field(
        (), description="parameters with their own learning rate or weight decay"
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="learning rate factor per layer of distance from the output; embeddings count as one layer"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_steps(cls, data: object) -> object:
        if isinstance(data, Mapping) and data.get("steps") is None and data.get("epochs") is None:
            return {**data, "steps": 10_000}
        return data

    def grouped_by(self, split: str) -> tuple[str, ...]:
        """Return the fields `by` of the metrics, which the examples of all splits but train must have."""
        metrics = (*self.metrics, *self.validate.metrics) if split != "train" else ()
        return tuple(dict.fromkeys(one.by for one in metrics if one.by is not None))

    @property
    def initial(self) -> InitFrom | None:
        return InitFrom(run=self.init_from) if isinstance(self.init_from, str) else self.init_from


def one_or_many(value: object) -> object:
    """Convert a recipe's list, or a single value, to a tuple."""
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (value,)


_LogitsAsWritten = LogitsRule | list[LogitsRule] | None
_StopAsWritten = StopRule | list[StopRule] | None
LogitsRules = Annotated[tuple[LogitsRule, ...], BeforeValidator(one_or_many, json_schema_input_type=_LogitsAsWritten)]
StopRules = Annotated[tuple[StopRule, ...], BeforeValidator(one_or_many, json_schema_input_type=_StopAsWritten)]


class Generate(Section):
    """Generation defaults."""

    max_new_tokens: PositiveInt = Field(256, description="maximum number of new tokens")
    max_length: PositiveInt | None = Field(None, description="additional limit of a decoder's prompt and new tokens")
    length_ratio: NonNegativeFloat | None = Field(
        None, description="additional limit for translation, relative to the source: ratio * source length + 10 tokens"
    )
    strategy: Strategy = part_option("greedy", "the decoding strategy")
    seed: Seed | None = Field(None, description="sampling seed; none: a new seed for each call")
    logits: LogitsRules = Field((), description="rules that modify the scores of the next token, applied in order")
    stop: StopRules = part_option(("end_token",), "rules that end a text; a list replaces them, end_token included")
    cache: Literal["growing", "static"] = Field("growing", description="static: full-size buffers (greedy, sample)")
    compile: bool = Field(False, description="compile the step of a static cache; on CUDA, as a CUDA graph")
    invariant: bool = Field(False, description="decode each prompt by itself: equal bits in any batch; slower")


class Sections(NamedTuple):
    """All sections except `model:`; None if absent or invalid."""

    data: Data | None
    objective: ObjectiveFacts.Config | None
    train: Train
    generate: Generate
