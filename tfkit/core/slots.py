"""The facts that the parts of a slot declare for recipes, models and generation: typed, each with a default.

The classes that people extend (`Attention`, `Head`, ...) live in rooms of their own and extend those here, so that
whatever needs a fact of a part imports core alone. A fact that depends on options is a method of the Config.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from tfkit.core import component
from tfkit.core.component import Component, Problem
from tfkit.core.errors import UsageError
from tfkit.core.options import PositiveFloat
from tfkit.core.shape import Shape, Side

if TYPE_CHECKING:  # recipes and data are read without torch
    from torch import Tensor, nn

    from tfkit.core.context import Inputs

Direction = Literal["encoder_decoder", "causal", "bidirectional"]
Pool = Literal["first", "mean", "last"]


class SublayerFacts(Component):
    """Facts of attentions, mixers and feed-forward parts."""

    class Config(component.Config):
        part: ClassVar[type[SublayerFacts]]

        shared: bool = Field(False, description="one set of weights for all layers of a pattern entry")

        def axes(self, shape: Shape) -> Mapping[str, int]:
            """Sizes of the axes by which its weights can be split (`head`, `group`, `dim`, `expert`)."""
            return {}

        def state_widths(self, shape: Shape) -> tuple[int, ...]:
            """Widths of the vectors that a recurrence carries from token to token, as another stack may start from.

            Its decode state holds them as `parts`, [1 rows width] each. Empty: it hands over no last state.
            """
            return ()

    # linear layers whose output enters the residual stream, by name; an init may scale them by depth
    residual_outputs: ClassVar[tuple[str, ...]] = ()
    # linear layers whose initial weights a layout's `init_gain` scales, by name (DeepNorm: all but query and key)
    gain_scaled: ClassVar[tuple[str, ...]] = ()
    # linear layers that read the same input, by name; decoding may make one product of them (generation/layers.py)
    fused: ClassVar[tuple[str, ...]] = ()
    # whether, in a layer that sees both ways, one half has read nothing yet at the first token, the other at the last
    two_ways: ClassVar[bool] = False

    def idle_parameters(self) -> int:
        """The number of parameters within it that one token does not pass."""
        return 0


class AttentionFacts(SublayerFacts):
    """Facts of attentions."""

    class Config(SublayerFacts.Config):
        def heads(self) -> int | None:
            """The number of heads: the option `num_heads`, where the part has one."""
            return dict(self).get("num_heads")

        def width(self, shape: Shape) -> int | None:
            """The width of the query and key heads that a position turns; None where nothing is turned."""
            return None

        def score_width(self, shape: Shape) -> int | None:
            """The width over which a score sums, by the options num_heads and head_dim; None where nobody knows."""
            options, heads = dict(self), self.heads()
            return options.get("head_dim") or (shape.d_model // heads if heads else None)

        def may_attend_to_nothing(self) -> bool:
            """Whether the attention weights of a query may sum to less than 1, as with sinks."""
            return False

        def axes(self, shape: Shape) -> Mapping[str, int]:
            heads = self.heads()
            if heads is None:
                return {}
            return {"head": heads, "group": heads, "dim": self.width(shape) or shape.d_model // heads}


class MaskFacts(Component):
    """Facts of mask rules."""

    class Config(component.Config):
        part: ClassVar[type[MaskFacts]]

    opens: ClassVar[bool] = False  # an opening rather than a limit
    hides_future: ClassVar[bool] = False  # a limit that leaves only the past and the present
    triangle: ClassVar[bool] = False  # exactly the causal triangle: kernels have a fast path for it
    solid: ClassVar[bool] = False  # a limit that shows everything within its `reach`
    marks: ClassVar[bool] = False  # opens exactly what `global_attention_mask` marks
    counts_texts: ClassVar[bool] = False  # is given positions counted from the first token of their text
    aligned: int | None = None  # of a limit: nothing is seen across the multiples of this

    def visible(self, query: Tensor, key: Tensor, inputs: Inputs) -> Tensor:
        """True = may look; `query` is [batch|1 query 1], `key` [batch|1 1 key]; returns [batch|1 query key]."""
        raise NotImplementedError(f"{type(self).__name__} has no rule")

    def reach(self) -> tuple[int, int] | None:
        """Of a limit: the most keys visible before and after the query, ALL where there is no end.

        None = nothing is known, and the rule is asked about the whole at once only.
        """
        return None


class PositionFacts(Component):
    """Facts of positions, and their hooks, which do nothing by default.

    Positions are [batch|1 time] integers.
    """

    class Config(component.Config):
        part: ClassVar[type[PositionFacts]]

        def check_head_dim(self, head_dim: int) -> Iterator[Problem]:
            """What is wrong with query and key heads of that width."""
            yield from ()

    # count real tokens only, from 0; padding stands at -1 (RoBERTa), where a call gives no positions itself
    skips_padding: bool = False
    # how many positions it can tell apart; None: any number
    length: int | None = None

    def embed(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings, [batch|1 time d_model]."""
        return None

    def rotation(self, positions: Tensor, dim: int) -> Any | None:
        """A callable that turns queries and keys [batch heads time dim]."""
        return None

    def rotation_within(self, positions: Tensor, lengths: Tensor, dim: int) -> Any | None:
        """`rotation` of a part that `moves`; `lengths` [batch|1 time|1] are those of the texts of the tokens."""
        return self.rotation(positions, dim)

    def bias(self, query_positions: Tensor, key_positions: Tensor, num_heads: int) -> Tensor | None:
        """What is added to the scores, [batch|1 heads query key]."""
        return None

    def temperature(self, positions: Tensor) -> Tensor | None:
        """A factor on the scores of each query, [batch|1 query]."""
        return None

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """The hooks this part overrides, among embed, rotation, bias and temperature."""
        names = ("embed", "rotation", "bias", "temperature")
        return frozenset(name for name in names if getattr(cls, name) is not getattr(PositionFacts, name))

    @classmethod
    def asks(cls, config: component.Config) -> frozenset[str]:
        """The hooks that do something with these options; by default all that the part overrides."""
        return cls.hooks()

    @classmethod
    def holds(cls, config: component.Config) -> int | None:
        """Longest text in tokens that a part with these options can serve; None: as its stack's max_length says."""
        return None

    @property
    def moves(self) -> bool:
        """Whether the encoding of a position changes as the text grows, so that cached keys become stale."""
        return False

    def regime(self, length: Tensor) -> Tensor:
        """A number for each text of `length` [rows] tokens; texts with the same one have the same positions."""
        return length if self.moves else length.new_zeros(length.shape)


class ResidualFacts(Component):
    """Facts of residual layouts."""

    class Config(component.Config):
        part: ClassVar[type[ResidualFacts]]

        branch_scale: PositiveFloat = Field(1.0, description="factor on what each sublayer adds (Granite)")

    # whether a stack whose last layer has this layout ends in a norm
    final_norm: ClassVar[bool] = False

    @classmethod
    def norm_names(cls, sublayers: Sequence[str]) -> dict[str, str | None]:
        """The layer's norms by name, each with the sublayer whose `<sublayer>_norm` option may replace it (or None)."""
        return {f"{name}_norm": name for name in sublayers}

    @classmethod
    def init_gain(cls, config: component.Config, shape: Shape) -> float:
        """A factor on the initial weights of values, outputs and feed-forward, as the paper prescribes; 1 for none."""
        return 1.0


class EmbeddingFacts(Component):
    """Facts of embeddings."""

    class Config(component.Config):
        part: ClassVar[type[EmbeddingFacts]]

        def width(self, shape: Shape) -> int:
            """The width in which positions are added."""
            return shape.d_model

        def table_width(self, shape: Shape) -> int:
            """The width of the token table."""
            return self.width(shape)

        def reads(self, shape: Shape) -> int | None:
            """The width of the input vectors; None if the input is ids, which a token table embeds."""
            return None

        def length_of(self, sizes: Sequence[int], shape: Shape) -> int:
            """Positions that an input of vectors of these sizes takes; raises ValueError for one that does not fit."""
            width = self.reads(shape)
            if len(sizes) != 2 or sizes[1] != width:
                raise ValueError(f"the model reads vectors [time {width}], got shape {list(sizes)}")
            return sizes[0]

        def num_segments(self) -> int:
            """The rows of its token type table; 0: it has none."""
            return 0

        def vectors_file(self) -> str | None:
            """The file of pretrained vectors that the token table is filled from."""
            return None

        def is_shared(self) -> bool:
            """Whether the encoder and the decoder have one token table."""
            return False

    reads_pictures: ClassVar[bool] = False  # [height width channels], all of one size
    tokens: nn.Embedding  # [vocab_size table_width], what a head may be tied to


class HeadFacts(Component):
    """Facts of heads."""

    class Config(component.Config):
        part: ClassVar[type[HeadFacts]]

        reads: Side | None = Field(None, description="the stack it reads; none: the last one")

        def is_tied(self) -> bool:
            """Whether its output weights are the token table of its stack."""
            return False

        def table_norm(self) -> component.Config | None:
            """The norm before the output projection, which has the width of the token table where that is tied."""
            return None

        def end_token(self) -> int | None:
            """The id of the token up to which it reads each text."""
            return None

        def pooling(self) -> Pool | None:
            """How it makes one vector of a text; None where it has an output for each token."""
            return None

        def classes(self) -> int | Literal["labels"] | None:
            """The number of its classes; None where it has none."""
            return None

        def has_independent_classes(self) -> bool:
            """Whether a text may be of several of its classes."""
            return False


class InitFacts(Component):
    """Facts of initializations."""

    def std(self, shape: Sequence[int], is_table: bool) -> float:
        """The standard deviation of a weight [out in], or of a table [rows width]; muP asks. Raises UsageError."""
        raise UsageError(self.without_std())

    @classmethod
    def has_std(cls) -> bool:
        """True if it says the standard deviation of its weights."""
        return cls.std is not InitFacts.std

    @classmethod
    def without_std(cls) -> str:
        """The fault of an init without a standard deviation."""
        return f"init '{cls.part_name}' does not say its standard deviation, which muP needs: a method std"


class ModelFacts(Component):
    """Facts of topologies."""

    class Config(component.Config):
        part: ClassVar[type[ModelFacts]]

    # the stacks of this topology, each with whether it hides the future unless a recipe says otherwise
    sides: ClassVar[Mapping[Side, bool]] = {}
    # whether a decoder beside an encoder reads it by cross-attention and in no other way
    joined_by_cross_attention: ClassVar[bool] = True


class RowsFacts:
    """Facts of what an objective makes of texts."""

    fields: ClassVar[tuple[str, ...]] = ()  # what it reads of a corpus
    tokenized: ClassVar[tuple[str, ...] | None] = None  # the fields that become tokens, where not all of them do
    required: ClassVar[tuple[str, ...]] = ()  # the special tokens it cannot do without
    labelled: ClassVar[bool] = False  # whether it learns the labels of the training corpus
    vectors_for: ClassVar[str | None] = (
        None  # the field that a corpus may give as `vectors`, for a stack that reads those
    )

    @classmethod
    def read_fields(cls, given: Collection[str]) -> tuple[str, ...]:
        """The fields read of a corpus that gives `given`: `vectors` in the place of `vectors_for`."""
        vectors = cls.vectors_for if "vectors" in given else None
        return tuple("vectors" if field == vectors else field for field in cls.fields)

    @classmethod
    def text_fields(cls, given: Collection[str]) -> tuple[str, ...]:
        """The fields of such a corpus that become tokens."""
        fields = cls.read_fields(given) if cls.tokenized is None else cls.tokenized
        return tuple(field for field in fields if field in given and field != "vectors")


class AnswersFacts:
    """Facts of what a model that was trained for an objective answers."""

    reference: ClassVar[str | None] = None  # the field that holds the right answer
    predicts: ClassVar[bool] = True  # whether `predict` answers; where not, the model generates a text
    # what a run is judged by unless the recipe says it; None: perplexity, where the loss is a likelihood
    metrics: ClassVar[tuple[str, ...] | None] = None
    # texts of fields for the contract tests, where sentences would not do
    sample_texts: ClassVar[Mapping[str, Sequence[str]]] = {}


class ObjectiveFacts(Component):
    """Facts of objectives."""

    class Config(component.Config):
        part: ClassVar[type[ObjectiveFacts]]

        def trained_head(self) -> str | None:
            """The name of the head among `heads:` that it trains; None: the model's own head."""
            return None

    rows_type: ClassVar[type[RowsFacts]] = RowsFacts  # what becomes of texts
    answers_type: ClassVar[type[AnswersFacts] | None] = None  # what a trained model answers, where it answers anything
    reads: ClassVar[Direction | None] = None  # the direction of attention it needs
    also: ClassVar[frozenset[Direction]] = frozenset()  # other directions of attention that it can train
    heads: ClassVar[tuple[str, ...]] = ("language_model", "masked_lm")  # the heads whose loss it can take
    beside: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # heads of `heads:` that it trains too, with their types
    gives: ClassVar[frozenset[str]] = frozenset()  # the inputs it calls a model with, besides ids and positions


def default_metrics(objective: type[ObjectiveFacts]) -> tuple[str, ...]:
    """What a run is judged by: the metrics of its answers, else perplexity, where the loss is a likelihood."""
    named = None if objective.answers_type is None else objective.answers_type.metrics
    if named is None:
        return ("perplexity",) if "likelihood" in objective.capabilities else ()
    return named


class TokenizerFacts(Component):
    """Facts of tokenizers."""

    class Config(component.Config):
        part: ClassVar[type[TokenizerFacts]]

        @property
        def vocabulary_bound(self) -> int | None:
            """The largest vocabulary these settings allow, None when only the text (or a file) can say."""
            return None

        def has(self, role: str) -> bool | None:
            """Whether there will be a special token of that role (`sentinel_0`, ...), None when only a file can say."""
            return None

        def id_of(self, role: str) -> int | None:
            """The id that the special token of that role will have, None where there is none or only a file can say."""
            return None

        def told(self) -> str:
            """What messages call the tokenizer."""
            return f"'{self.part.part_name}'"

    learns: ClassVar[bool] = True  # False: `fit` does not read the texts, so that none need be gathered


class CorpusFacts(Component):
    """Facts of corpora."""

    fields: tuple[str, ...] = ()  # what an example has; set on the object where its options say them


class ScheduleFacts(Component):
    """Facts of schedules."""

    class Config(component.Config):
        part: ClassVar[type[ScheduleFacts]]

        def warmup_steps(self) -> int:
            """The steps in which the learning rate rises from 0."""
            return 0


class MetricFacts(Component):
    """Facts of metrics."""

    class Config(component.Config):
        part: ClassVar[type[MetricFacts]]

        def scores(self) -> tuple[str, ...]:
            """What the scores are called that it gives."""
            return (self.part.part_name,)

    reads: ClassVar[Literal["loss", "text"] | None] = None  # which of the two it is computed from
    # what its texts are, where it reads texts; continuations are each a source and what is written after it, in one
    compares: ClassVar[Literal["words", "continuations", "tags", "numbers"]] = "words"
    package: ClassVar[str | None] = None  # the library it needs, of the extra train
    higher_is_better: ClassVar[bool] = True
    per_character: ClassVar[bool] = False  # whether its loss is counted by characters, not by targets
    # references and wrong outputs for the contract tests, where sentences would not do
    samples: tuple[tuple[str, ...], tuple[str, ...]] | None = None


# slot -> the class whose facts its parts have; the parts of the other slots are read by nobody but their own room
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
    """The options of a part, typed by its slot; the registry lets no part in that does not extend its slot's class."""
    if config is None or isinstance(config, kind):
        return config
    raise TypeError(f"{type(config).__qualname__} does not extend {kind.__qualname__}")
