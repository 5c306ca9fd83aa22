"""Declarations that recipes, models and generation read from the parts of each slot, all with defaults.

The public base classes (`Attention`, `Head`, ...) are in other packages and extend these classes, so that reading a
declaration requires only core. Declarations that depend on options are methods of the Config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from tfkit.core import component
from tfkit.core.component import Component, Problem, Shape, Side
from tfkit.core.errors import UsageError
from tfkit.core.inputs import Inputs
from tfkit.core.layout import ResidualFacts
from tfkit.core.store import StoreFacts

if TYPE_CHECKING:  # recipes and data are read without torch
    from torch import Tensor, nn

Direction = Literal["encoder_decoder", "causal", "bidirectional"]
Pool = Literal["first", "mean", "last"]


class SublayerFacts(StoreFacts):
    """Declarations of attentions, mixers and feed-forward parts."""

    class Config(StoreFacts.Config):
        part: ClassVar[type[SublayerFacts]]

        shared: bool = Field(False, description="share one set of weights among all layers of a pattern entry")

        def axes(self, shape: Shape) -> Mapping[str, int]:
            """Return the sizes of the axes along which the weights can be split (`head`, `group`, `dim`, `expert`)."""
            return {}

        def state_widths(self, shape: Shape) -> tuple[int, ...]:
            """Return the widths of the recurrent state vectors that can initialize another stack.

            The decode state holds them as `parts`, [1 rows width] each. Empty if the last state cannot be passed on.
            """
            return ()

    # linear layers that write to the residual stream, by name; an init may scale them by depth
    residual_outputs: ClassVar[tuple[str, ...]] = ()
    # linear layers scaled by a layout's `init_gain`, by name (DeepNorm: all but query and key)
    gain_scaled: ClassVar[tuple[str, ...]] = ()
    # linear layers with a common input, by name; `apply_fused(x)` applies them, in decoding as one product
    fused: ClassVar[tuple[str, ...]] = ()
    # True if a bidirectional layer runs one half forwards and one backwards, each starting with an empty state
    two_ways: ClassVar[bool] = False

    def idle_parameters(self) -> int:
        """Return the number of parameters not used for a given token."""
        return 0


class AttentionFacts(SublayerFacts):
    """Declarations of attentions."""

    class Config(SublayerFacts.Config):
        def heads(self) -> int | None:
            """Return the number of heads: the option `num_heads`, if the part has one."""
            return dict(self).get("num_heads")

        def width(self, shape: Shape) -> int | None:
            """Return the width of rotated query and key heads; None without rotation."""
            return None

        def score_width(self, shape: Shape) -> int | None:
            """Return the dimension of the query-key dot product from num_heads and head_dim; None if unknown."""
            options, heads = dict(self), self.heads()
            return options.get("head_dim") or (shape.d_model // heads if heads else None)

        def may_attend_to_nothing(self) -> bool:
            """True if the attention weights of a query may sum to less than 1, as with sinks."""
            return False

        def axes(self, shape: Shape) -> Mapping[str, int]:
            heads = self.heads()
            if heads is None:
                return {}
            return {"head": heads, "group": heads, "dim": self.width(shape) or shape.d_model // heads}


class MaskFacts(Component):
    """Declarations of mask rules."""

    class Config(component.Config):
        part: ClassVar[type[MaskFacts]]

    opens: ClassVar[bool] = False  # True for an opening, False for a limit
    hides_future: ClassVar[bool] = False  # a limit that hides all later positions
    triangle: ClassVar[bool] = False  # exactly the causal triangle: kernels have a fast path for it
    solid: ClassVar[bool] = False  # a limit that shows everything within its `reach`
    marks: ClassVar[bool] = False  # opens exactly the tokens in `global_attention_mask`
    counts_texts: ClassVar[bool] = False  # positions are counted from the first token of each text
    aligned: int | None = None  # for a limit: visibility does not cross multiples of this number

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        """Return [batch|1 query key], True = visible; `query` is [batch|1 query 1], `key` [batch|1 1 key]."""
        raise NotImplementedError(f"{type(self).__name__} has no rule")

    def reach(self) -> tuple[int, int] | None:
        """Return the maximum number of keys that a limit shows before and after the query; ALL = unbounded.

        None = unknown: the rule can only be evaluated densely.
        """
        return None


class PositionFacts(Component):
    """Declarations of positions, and their hooks, which are no-ops by default.

    Positions are [batch|1 time] integers.
    """

    class Config(component.Config):
        part: ClassVar[type[PositionFacts]]

        def check_head_dim(self, head_dim: int) -> Iterator[Problem]:
            """Yield problems with this width of query and key heads."""
            yield from ()

    # position ids start at 0 and skip padding, which gets -1 (RoBERTa), unless the call passes them
    skips_padding: bool = False
    # number of distinct positions; None: unlimited
    length: int | None = None

    def embed(self, positions: Tensor) -> Tensor | None:
        """Return the position embeddings, [batch|1 time d_model]."""
        return None

    def rotation(self, positions: Tensor, dim: int) -> Any | None:
        """Return a callable that rotates queries and keys [batch heads time dim]."""
        return None

    def rotation_within(self, positions: Tensor, lengths: Tensor, dim: int) -> object | None:
        """Return the rotation if the part `moves`; `lengths` [batch|1 time|1] has the text length of each token."""
        return self.rotation(positions, dim)

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor | None:
        """Return the bias of the scores, [batch|1 heads query key]."""
        return None

    def temperature(self, positions: Tensor) -> Tensor | None:
        """Return the factor of each query's scores, [batch|1 query]."""
        return None

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """Return the overridden hooks among embed, rotation, bias and temperature."""
        names = ("embed", "rotation", "bias", "temperature")
        return frozenset(name for name in names if getattr(cls, name) is not getattr(PositionFacts, name))

    @classmethod
    def asks(cls, config: component.Config) -> frozenset[str]:
        """Return the hooks active under these options; by default all overridden ones."""
        return cls.hooks()

    @classmethod
    def holds(cls, config: component.Config) -> int | None:
        """Return the maximum length supported under these options; None: the stack's max_length."""
        return None

    @property
    def moves(self) -> bool:
        """True if encodings change with the length of the text, which makes cached keys stale."""
        return False

    def regime(self, length: Tensor) -> Tensor:
        """Return a key for each text length [rows]; lengths with equal keys have equal encodings."""
        return length if self.moves else length.new_zeros(length.shape)


class EmbeddingFacts(StoreFacts):
    """Declarations of embeddings."""

    class Config(StoreFacts.Config):
        part: ClassVar[type[EmbeddingFacts]]

        def width(self, shape: Shape) -> int:
            """Return the width at which positions are added."""
            return shape.d_model

        def table_width(self, shape: Shape) -> int:
            """Return the width of the token table."""
            return self.width(shape)

        def reads(self, shape: Shape) -> int | None:
            """Return the width of input vectors; None if ids are read."""
            return None

        def length_of(self, sizes: Sequence[int], shape: Shape) -> int:
            """Return the number of positions in an input of this shape. Raise ValueError if the shape does not fit."""
            width = self.reads(shape)
            if len(sizes) != 2 or sizes[1] != width:
                raise ValueError(f"the model reads vectors [time {width}], got shape {list(sizes)}")
            return sizes[0]

        def num_segments(self) -> int:
            """Return the number of token types; 0: no table."""
            return 0

        def vectors_file(self) -> str | None:
            """Return the file of pretrained vectors for the token table."""
            return None

        def is_shared(self) -> bool:
            """True if encoder and decoder share one token table."""
            return False

    reads_pictures: ClassVar[bool] = False  # [height width channels], all images of one size
    tokens: nn.Embedding  # [vocab_size table_width], to which a head may be tied


class HeadFacts(Component):
    """Declarations of heads."""

    class Config(component.Config):
        part: ClassVar[type[HeadFacts]]

        reads: Side | None = Field(None, description="stack to read; none: the last one")

        def is_tied(self) -> bool:
            """True if the output weights are the token table of the stack."""
            return False

        def table_norm(self) -> component.Config | None:
            """Return the norm before the output projection; its width is that of the token table if tied."""
            return None

        def end_token(self) -> int | None:
            """Return the id of the token that ends the text, or None."""
            return None

        def pooling(self) -> Pool | None:
            """Return the pooling over the text; None if there is an output per token."""
            return None

        def classes(self) -> int | Literal["labels"] | None:
            """Return the number of classes; None if it has none."""
            return None

        def has_independent_classes(self) -> bool:
            """True for multi-label classification."""
            return False


class InitFacts(Component):
    """Declarations of initializations."""

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        """Return the standard deviation of a weight [out in] or table [rows width]; raise UsageError if undefined."""
        raise UsageError(self.without_std())

    @classmethod
    def without_std(cls) -> str:
        """Return the error message of an init that does not implement `std`; "" if it does."""
        text = f"init '{cls.part_name}' does not implement std, the standard deviation that muP requires"
        return "" if cls.std is not InitFacts.std else text


class ModelFacts(Component):
    """Declarations of topologies."""

    class Config(component.Config):
        part: ClassVar[type[ModelFacts]]

    sides: ClassVar[Mapping[Side, bool]] = {}  # stacks of the topology -> True if causal by default
    joined_by_cross_attention: ClassVar[bool] = True  # True if a decoder reads its encoder only through cross-attention


class RowsFacts:
    """Declarations of the rows that an objective builds from texts."""

    fields: ClassVar[tuple[str, ...]] = ()  # corpus fields that it reads
    tokenized: ClassVar[tuple[str, ...] | None] = None  # fields to tokenize, if not all
    required: ClassVar[tuple[str, ...]] = ()  # required special tokens
    labelled: ClassVar[bool] = False  # True if it collects the labels of the training corpus
    tagged: ClassVar[bool] = True  # False if its source or text must not begin with a tag
    vectors_for: ClassVar[str | None] = None  # field that may be replaced by `vectors`, for stacks that read vectors

    @classmethod
    def read_fields(cls, available: Collection[str]) -> tuple[str, ...]:
        """Return the fields to read from a corpus with the `available` fields; `vectors` replaces `vectors_for`."""
        vectors = cls.vectors_for if "vectors" in available else None
        return tuple("vectors" if field == vectors else field for field in cls.fields)

    @classmethod
    def text_fields(cls, available: Collection[str]) -> tuple[str, ...]:
        """Return the fields to tokenize from a corpus with the `available` fields."""
        fields = cls.read_fields(available) if cls.tokenized is None else cls.tokenized
        return tuple(field for field in fields if field in available and field != "vectors")


class AnswersFacts:
    """Declarations of the predictions of a model trained for an objective."""

    reference: ClassVar[str | None] = None  # corpus field with the reference
    predicts: ClassVar[bool] = True  # True if `predict` is supported; otherwise the model generates text
    # default metrics; None: perplexity if the loss is a likelihood
    metrics: ClassVar[tuple[str, ...] | None] = None
    # sample texts by field for the contract checks, if sentences are unsuitable
    sample_texts: ClassVar[Mapping[str, Sequence[str]]] = {}


class ObjectiveFacts(Component):
    """Declarations of objectives."""

    class Config(component.Config):
        part: ClassVar[type[ObjectiveFacts]]

        def trained_head(self) -> str | None:
            """Return the name of the trained head in `heads:`; None: the model's own head."""
            return None

    rows_type: ClassVar[type[RowsFacts]] = RowsFacts  # conversion of texts
    answers_type: ClassVar[type[AnswersFacts] | None] = None  # predictions of a trained model, if supported
    reads: ClassVar[Direction | None] = None  # required direction of attention
    also: ClassVar[frozenset[Direction]] = frozenset()  # other supported directions
    heads: ClassVar[tuple[str, ...]] = ("language_model", "masked_lm")  # supported heads
    beside: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # further trained heads of `heads:`, with their types
    gives: ClassVar[frozenset[str]] = frozenset()  # call inputs that it passes, besides ids and positions


def default_metrics(objective: type[ObjectiveFacts]) -> tuple[str, ...]:
    """Return an objective's default metrics: those of its answers, or perplexity if the loss is a likelihood."""
    named = None if objective.answers_type is None else objective.answers_type.metrics
    unnamed = ("perplexity",) if "likelihood" in objective.capabilities else ()
    return unnamed if named is None else named


class TokenizerFacts(Component):
    """Declarations of tokenizers."""

    class Config(component.Config):
        part: ClassVar[type[TokenizerFacts]]

        @property
        def vocabulary_bound(self) -> int | None:
            """Maximum vocabulary size, the option `vocab_size`; None if it depends on text or a file."""
            return dict(self).get("vocab_size")

        def has(self, role: str) -> bool | None:
            """True if a special token for the role (`sentinel_0`, ...) will exist; None if it depends on a file."""
            return None

        def id_of(self, role: str) -> int | None:
            """Return the future id of the special token for the role; None if missing or dependent on a file."""
            return None

        def described(self) -> str:
            """Return the tokenizer's name as shown in messages."""
            return f"'{self.part.part_name}'"

    learns: ClassVar[bool] = True  # False: `fit` ignores the texts, so they need not be collected
    samples: ClassVar[tuple[str, ...]] = ()  # texts to try it with; empty for ordinary sentences


class CorpusFacts(Component):
    """Declarations of corpora."""

    class Config(component.Config):
        part: ClassVar[type[CorpusFacts]]

        def files_read(self) -> tuple[str, ...]:
            """Return the input files; empty for generated examples."""
            return ()

        def part_of(self, split: Any, name: str) -> CorpusFacts.Config:
            """Return the corpus of split `name` that `data.split` cuts from this one."""
            raise NotImplementedError(f"{type(self).__qualname__} cannot be divided")

    running: ClassVar[bool] = False  # True for running text, whose order matters
    fields: tuple[str, ...] = ()  # fields of an example; set on the instance if they depend on options


class ScheduleFacts(Component):
    """Declarations of schedules."""

    class Config(component.Config):
        part: ClassVar[type[ScheduleFacts]]

        def warmup_steps(self) -> int:
            """Return the number of warmup steps."""
            return 0


class MetricFacts(Component):
    """Declarations of metrics."""

    class Config(component.Config):
        part: ClassVar[type[MetricFacts]]

        by: str | None = Field(None, description="field whose values are also scored separately: adds bleu.en-de, ...")

        def scores(self) -> tuple[str, ...]:
            """Return the names of its scores, the own one first; NAME.* are those of `by`."""
            return (self.part.part_name, *([f"{self.part.part_name}.*"] if self.by else []))

    reads: ClassVar[Literal["loss", "text"] | None] = None  # input of the metric
    # kind of output to compare; continuations include their source
    compares: ClassVar[Literal["words", "continuations", "tags", "numbers", "probabilities"]] = "words"
    package: ClassVar[str | None] = None  # required package, from the extra `train`
    higher_is_better: ClassVar[bool] = True  # False if a lower score is better, as for a loss
    per_character: ClassVar[bool] = False  # True if the loss is averaged over characters instead of targets
    # references and wrong outputs for the contract checks, if sentences are unsuitable
    samples: tuple[tuple[str, ...], tuple[str, ...]] | None = None


# slot -> base class with its declarations; those of other slots are read only within their package
FACTS: dict[str, type[Component]] = {
    "attention": AttentionFacts,
    "mixer": SublayerFacts,
    "feedforward": SublayerFacts,
    "mask": MaskFacts,
    "position": PositionFacts,
    "residual": ResidualFacts,
    "embedding": EmbeddingFacts,
    "head": HeadFacts,
    "model": ModelFacts,
    "objective": ObjectiveFacts,
    "tokenizer": TokenizerFacts,
    "corpus": CorpusFacts,
    "schedule": ScheduleFacts,
    "metric": MetricFacts,
}

Kind = TypeVar("Kind", bound=component.Config)


def of_kind(config: component.Config | None, kind: type[Kind]) -> Kind | None:
    """Narrow the options of a part to its slot's type; registration guarantees the base class."""
    if config is None or isinstance(config, kind):
        return config
    raise TypeError(f"{type(config).__qualname__} does not extend {kind.__qualname__}")
