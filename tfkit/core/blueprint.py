"""The Blueprint: a fully resolved, frozen architecture in which equal layers share one description.

All code that inspects an architecture (show, counts, build, conversion to other formats) reads the Blueprint, never
the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from tfkit.core.bounds import LAYERS
from tfkit.core.component import Config, Shape, Side, spell, whole_numbers, with_nested
from tfkit.core.keys import (
    FlagValue,
    Key,
    NormValue,
    OwnValue,
    PartsValue,
    PartValue,
    RateValue,
    SectionValue,
    SizeValue,
    key,
    keys,
)
from tfkit.core.layout import ResidualFacts
from tfkit.core.output import block
from tfkit.core.slots import EmbeddingFacts, HeadFacts, MaskFacts, ModelFacts, PositionFacts, SublayerFacts
from tfkit.core.store import ExtraInput, Stores, StoreUse, extra_inputs, of_config

SHOWN_KINDS = 2  # maximum number of layer kinds shown in a repr


def _name(config: Config) -> str:
    return config.part.part_name


@dataclass(frozen=True)
class SublayerPlan:
    """One sublayer: its name in the layer (`attention`, `feedforward_2`), its part, and its norm, if any."""

    name: str
    config: SublayerFacts.Config
    norm: Config | None
    memory: bool = False  # cross-attention


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One layer, or several equal layers. `position` is None if it uses the stack's position encoding."""

    residual: ResidualFacts.Config = key(
        PartValue("residual", default="post_norm"),
        "how sublayers and norms are connected to the residual stream; none: `plain`, without residual connections",
    )
    norm: Config | None = key(
        PartValue("norm"), "norm of the layer's sublayers, also used wherever an option is `norm: true`"
    )
    dropout: float = key(RateValue(), "dropout of each sublayer's output")
    position: tuple[PositionFacts.Config, ...] | None = keys(
        Key(
            "position",
            PartsValue("position"),
            "position encoding of the layer, merged over the stack's; none: no position encoding",
        ),
        default=None,
    )
    mask: tuple[MaskFacts.Config, ...] = key(
        PartsValue("mask"), "mask rules of the layer, added to the stack's; none: no rules, not even the stack's"
    )
    shared: bool = keys(
        Key("shared", FlagValue(), "share one set of weights among all layers of a pattern entry"), default=False
    )
    sublayers: tuple[SublayerPlan, ...] = keys(
        Key(
            "sublayers", OwnValue(), "order of the sublayers; by default attention, mixer, cross_attention, feedforward"
        ),
        Key("attention", PartValue("attention"), "self-attention; none: no such sublayer"),
        Key("mixer", PartValue("mixer"), "token mixing without attention; none: no such sublayer"),
        Key(
            "cross_attention",
            PartValue("attention", over="attention"),
            "cross-attention to the memory, merged over attention; none: no such sublayer",
        ),
        Key("feedforward", PartValue("feedforward"), "position-wise sublayer; none: no such sublayer"),
        Key("attention_norm", NormValue(), "norm of attention only, merged over norm; none: no norm"),
        Key("mixer_norm", NormValue(), "norm of the mixer only, merged over norm; none: no norm"),
        Key("cross_attention_norm", NormValue(), "norm of cross-attention only, merged over norm; none: no norm"),
        Key("feedforward_norm", NormValue(), "norm of the feed-forward sublayer only, merged over norm; none: no norm"),
    )
    causal: bool
    num_heads: int | None = None  # heads of the self-attentions, if equal

    def parts(self) -> Iterator[Config]:
        """Yield all parts of the layer except those nested in options."""
        yield self.residual
        for sublayer in self.sublayers:
            yield sublayer.config
            if sublayer.norm is not None:
                yield sublayer.norm
        yield from (*self.mask, *(self.position or ()))

    def norms(self) -> Iterator[tuple[str, str | None, Config | None]]:
        """Yield the norms of the residual layout with their sublayers, whose own norm overrides the layer's."""
        own = {one.name: one.norm for one in self.sublayers}
        for name, sublayer in self.residual.part.norm_names(list(own)).items():
            yield name, sublayer, self.norm if sublayer is None else own[sublayer]

    def line(self) -> str:
        """Summarize the parts of the layer in one line."""
        rest = [("norm", self.norm), *((one.name, one.config) for one in self.sublayers)]
        named = [f"{name}: {_name(part)}" for name, part in rest if part is not None]
        masks = [f"mask: {' + '.join(map(_name, self.mask))}"] if self.mask else []
        return ", ".join([_name(self.residual), *named, *masks])

    def shares(self) -> bool:
        """True if any weights of this layer are shared with other layers."""
        return self.shared or any(sublayer.config.shared for sublayer in self.sublayers)


@dataclass(frozen=True, kw_only=True)
class StackPlan:
    """One stack. `order[i]` is the index in `layers` of layer i.

    `entries[i]` is the index of layer i's pattern entry, or -1 if the layer shares nothing. Layers of one entry share
    everything declared `shared`.
    """

    side: Side
    d_model: int = key(SizeValue(needed=True), "width of the residual stream")
    order: tuple[int, ...] = keys(Key("num_layers", SizeValue(LAYERS.most), "number of layers"))
    vocab_size: int | None = key(
        SizeValue(words=("tokenizer",)), "vocabulary size: a number, or `tokenizer` for the size of the tokenizer"
    )
    max_length: int | None = key(SizeValue(), "maximum sequence length in tokens; none: unlimited")
    embedding: EmbeddingFacts.Config | None = key(
        PartValue("embedding"), "map from token ids to vectors; none: each call passes vectors"
    )
    position: tuple[PositionFacts.Config, ...] = key(
        PartsValue("position"), "position encoding: one part or a list of parts; none: no position encoding"
    )
    mask: tuple[MaskFacts.Config, ...] = keys(
        Key(
            "mask",
            PartsValue("mask"),
            "mask rules of all layers, in addition to the mask that the model's type implies; none: no additional "
            "rules",
        ),
        default=(),
    )
    memory_width: int | None = keys(
        Key(
            "memory",
            SectionValue(),
            "for a single stack: width (d_model) of the states that cross-attention attends to; in `decoder:` "
            "last_state: no cross-attention, recurrences start from the encoder's last states; none: no memory",
        ),
        default=None,
    )
    last_state: bool = False  # the stacks are connected only by the last states of their recurrences
    layers: tuple[LayerPlan, ...] = keys(
        Key("layer", SectionValue(), "parts and options of every layer"),
        Key(
            "layers",
            SectionValue(),
            "kinds of layers by name; wherever the pattern names a kind, it is merged over layer",
        ),
        Key(
            "pattern",
            OwnValue(),
            "order of the kinds of layers: `a*n` repeats a, `a+b` merges b over a, an inner list is repeated up to "
            "num_layers",
        ),
    )
    entries: tuple[int, ...]
    final_norm: Config | None = key(
        NormValue(), "norm after the last layer; default: as required by the residual layout of the last layer"
    )
    final_dropout: float = key(RateValue(), "dropout after the final norm")
    other_depth: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.order)

    def shape(self, layer: int = 0, plan: LayerPlan | None = None, shared: bool = False) -> Shape:
        """Return the Shape for the parts of a layer, or for a `shared` sublayer of it."""
        at = self.last_alike(layer) if shared or (plan and plan.shared) else layer
        return Shape(
            d_model=self.d_model,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            side=self.side,
            causal=plan.causal if plan else self.causal,
            layer=layer,
            depth=self.num_layers,
            other_depth=self.other_depth,
            num_heads=plan.num_heads if plan else self.num_heads,
            stored=self.stored(at) if plan else frozenset(),
            sublayers=tuple(sublayer.name for sublayer in plan.sublayers) if plan else (),
            streams=self.streams(at) if plan else None,
        )

    def store_uses(self) -> Iterator[StoreUse]:
        """Yield parts in the order of computation, with their names in `context.store`; positions and masks have none.

        Parts without names are yielded only for the first of equal layers.
        """
        shape, kinds = self.shape(), [list(self._stored_by(layer)) for layer in self.layers]
        first, last = ("embedding", self.embedding), ("final_norm", self.final_norm)
        ends = [[(name, config, of_config(config, shape))] for name, config in (first, last)]
        read = frozenset().union(*(stores.reads for _, _, stores in chain(*kinds, *ends)))
        every, count = [*kinds, *ends], len(kinds)
        for layer, kind in enumerate((count, *self.order, count + 1), -1):
            if parts := every[kind]:
                at = -1 if kind >= count else kind
                yield from [StoreUse(layer, at, key, config, stores) for key, config, stores in parts if config]
                every[kind] = [part for part in parts if part[2].reads or part[2].writes or part[2].offers & read]

    def _stored_by(self, layer: LayerPlan) -> Iterator[tuple[str, Config | None, Stores]]:
        """Yield the parts of a layer; the layout computes around its sublayers, so it is both first and last."""
        shape = self.shape()
        layout = of_config(layer.residual, shape)
        yield "residual", layer.residual, Stores(layout.writes - layout.reads)
        for sublayer in layer.sublayers:
            before = [(name, norm) for name, of, norm in layer.norms() if of in (None, sublayer.name)]
            yield from ((name, norm, of_config(norm, shape)) for name, norm in before)
            yield sublayer.name, sublayer.config, of_config(sublayer.config, self.source_shape(shape, sublayer))
        yield "residual", layer.residual, layout

    def stored(self, layer: int) -> frozenset[str]:
        """Return the names in `context.store` before a layer."""
        before = set(self.order[:layer])
        parts = chain.from_iterable(self._stored_by(self.layers[kind]) for kind in before)
        every = [of_config(self.embedding, self.shape()), *(stores for _, _, stores in parts)]
        return frozenset(chain.from_iterable(stores.written for stores in every))

    def streams(self, layer: int) -> int | None:
        """Return the number of streams before a layer, or after the last one; None if the layouts have no streams."""
        first = self.layers[self.order[0]].residual.num_streams() if self.order else None
        if first is None:
            return None
        added = [plan.residual.added([one.name for one in plan.sublayers]) for plan in self.layers]
        return first + sum(count * self.order[:layer].count(kind) for kind, count in enumerate(added) if count)

    def last_alike(self, layer: int) -> int:
        """Return the index of the last layer that shares weights with `layer`."""
        if layer >= len(self.entries) or self.entries[layer] < 0:
            return layer
        return len(self.entries) - 1 - self.entries[::-1].index(self.entries[layer])

    def parts(self) -> Iterator[Config]:
        """Yield the parts of the stack's position and of each distinct layer."""
        yield from self.position
        for layer in self.layers:
            yield from layer.parts()

    @property
    def needs(self) -> frozenset[str]:
        """Call inputs that the parts read, besides ids and padding."""
        return frozenset(name for config in self.parts() for name in config.part.needs)

    def without(self, capability: str) -> list[str]:
        """Return the parts, nested ones included, that declare capabilities but lack `capability`: slot 'name'."""
        configs = filter(None, (*self.parts(), self.embedding, self.final_norm))
        every = chain.from_iterable(map(with_nested, configs))
        lacking = {one.part for one in every if one.part.capabilities and capability not in one.part.able(one)}
        return sorted(f"{part.part_slot} '{part.part_name}'" for part in lacking)

    @property
    def reads_vectors(self) -> bool:
        return self.embedding is None or self.embedding.reads(self.shape()) is not None

    @property
    def table_width(self) -> int | None:
        """Width of the token table, or None."""
        embedding = self.embedding
        return None if embedding is None or self.reads_vectors else embedding.table_width(self.shape())

    def lines(self) -> list[str]:
        """Summarize the stack and its first two kinds of layers, one line each."""
        kinds = [(self.order.count(kind), layer) for kind, layer in enumerate(self.layers)]
        sizes = {"d_model": self.d_model, "vocab_size": self.vocab_size, "max_length": self.max_length}
        words = [f"{self.num_layers:,} layers", *(f"{name} {size:,}" for name, size in sizes.items() if size)]
        words += [f"position: {' + '.join(map(_name, self.position))}"] if self.position else []
        words += ["memory: last_state"] if self.last_state and self.side == "decoder" else []
        words += [f"{len(kinds):,} kinds of layers"] if len(kinds) > SHOWN_KINDS else []
        found = [f"  {count:,} x {layer.line()}" for count, layer in kinds[:SHOWN_KINDS]]
        return [f"{self.side}: {', '.join(words)}", *found]

    @property
    def caches(self) -> bool:
        """True if cached decoding is possible: the stack is causal and every part can cache."""
        return self.causal and not self.without("cache")

    @property
    def causal(self) -> bool:
        """True if no layer attends to the future."""
        return bool(self.layers) and all(plan.causal for plan in self.layers)

    @property
    def num_heads(self) -> int | None:
        """Number of heads in the self-attentions that use the stack's position; None if they differ."""
        counts = {plan.num_heads for plan in self.layers if plan.position is None}
        return counts.pop() if len(counts) == 1 else None

    def source_shape(self, shape: Shape, sublayer: SublayerPlan) -> Shape:
        """Return the Shape for one sublayer, with the memory width for cross-attention."""
        return replace(shape, memory_width=self.memory_width) if sublayer.memory else shape


Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Parametrization:
    """muP: scaling of learning rates and initial weights relative to a `base` size.

    `base` is the model at its base widths, with this model's depth and layer order. `depths` has the base depth of each
    side, if depth is scaled; `written` has the base sizes as written in the recipe.
    """

    base: Blueprint = field(compare=False)
    depths: tuple[tuple[str, int], ...] = ()
    depth_exponent: float = 1.0
    written: tuple[tuple[str, int], ...] = field(default=(), compare=False)  # recipes may write equal bases differently
    sizes: tuple[tuple[str, int, tuple[Sizes, ...]], ...] = field(init=False)  # base: side, width, layers

    def __post_init__(self) -> None:
        sizes = []
        for plan in self.base.stacks():
            layers = [layer_sizes(layer) for layer in plan.layers]
            sizes.append((plan.side, plan.d_model, tuple(layers[kind] for kind in plan.order)))
        object.__setattr__(self, "sizes", tuple(sizes))

    def as_data(self) -> dict[str, object]:
        return {"type": "mup", "base": dict(self.written), "depth_exponent": self.depth_exponent}

    def width_ratio(self, blueprint: Blueprint, side: str) -> float:
        """Return the width of a stack relative to the base."""
        return _stack(blueprint, side).d_model / _stack(self.base, side).d_model

    def depth_ratio(self, blueprint: Blueprint, side: str) -> float:
        """Return the depth of a stack relative to the base; 1 if depth is not scaled."""
        layers = _stack(blueprint, side).num_layers
        return layers / dict(self.depths).get(side, layers)


def mismatch(own: Mapping[str, Sequence[int]], base: Mapping[str, Sequence[int]]) -> str | None:
    """Compare the weight shapes of model and base. Return a message if they differ in more than size, else None."""
    for name in sorted(own.keys() ^ base.keys()):
        where = "in the model" if name in own else "in the base"
        return f"the weight '{name}' exists only {where}; choose base sizes that yield the same weights"
    for name, shape in own.items():
        if len(shape) != len(base[name]):
            sizes = f"{list(base[name])} in the base and {list(shape)} in the model"
            return f"'{name}' is {sizes}; choose base sizes that yield the same number of axes"
    return None


def layer_sizes(layer: LayerPlan) -> Sizes:
    """Return the integer options of a layer's sublayers and norms by path."""
    norms = {f"{one.name}_norm": one.norm for one in layer.sublayers}
    parts = {"norm": layer.norm, **norms, **{one.name: one.config for one in layer.sublayers}}
    return tuple(whole_numbers(spell(parts)))


def _stack(blueprint: Blueprint, side: str) -> StackPlan:
    return next(plan for plan in blueprint.stacks() if plan.side == side)


@dataclass(frozen=True)
class Blueprint:
    """A whole model: topology, stacks, heads and initialization."""

    type: ModelFacts.Config = key(
        PartValue("model", needed=True), "encoder, decoder, encoder_decoder, or a registered topology"
    )
    encoder: StackPlan | None = key(SectionValue(), "stack keys of the encoder, merged over those in model")
    decoder: StackPlan | None = key(SectionValue(), "stack keys of the decoder, merged over those in model")
    head: HeadFacts.Config | None = key(PartValue("head"), "output of the model; none: hidden states only")
    heads: tuple[tuple[str, HeadFacts.Config], ...] = key(
        SectionValue(), "additional heads by name, each with a separate output"
    )
    init: Config = key(
        PartValue("init", needed=True, default="xavier"),
        "initialization of the weights; default: xavier, as in the original",
    )
    parametrization: Parametrization | None = keys(
        Key(
            "parametrization",
            SectionValue(),
            "scaling of learning rates and initial weights with the model's size: "
            "{type: mup, base: {d_model: 64}}; none: no scaling",
        ),
        default=None,
    )
    special_ids: tuple[tuple[str, int], ...] = keys(
        Key("special_ids", SectionValue(), "ids of the tokens pad, start and end, if no tokenizer defines them"),
        default=(),
    )
    shared_embedding: bool = False
    name: str = field(default="model", compare=False)

    def stacks(self) -> Iterator[StackPlan]:
        """Yield the stacks in the order of computation."""
        yield from filter(None, (self.encoder, self.decoder))

    @property
    def extra_inputs(self) -> dict[str, ExtraInput]:
        """Inputs of a call besides ids that parts declare, by name."""
        return extra_inputs(chain.from_iterable(plan.store_uses() for plan in self.stacks()))

    @property
    def last(self) -> StackPlan:
        """Stack that heads read by default."""
        stack = self.decoder or self.encoder
        if stack is None:
            raise ValueError("a blueprint requires at least one stack")
        return stack

    def __repr__(self) -> str:
        return block(f"Blueprint {self.name!r}", self.lines())

    def lines(self) -> list[str]:
        """Summarize the architecture in at most seven lines."""
        heads = ([] if self.head is None else [("head", self.head)]) + list(self.heads)
        named = [name if name == _name(head) else f"{name}: {_name(head)}" for name, head in heads]
        rest = [", ".join([f"{_name(self.type)}", *named, f"init: {_name(self.init)}"])]
        return rest + [line for plan in self.stacks() for line in plan.lines()]

    def read_by(self, head: HeadFacts.Config) -> StackPlan:
        side = head.reads
        stack = self.last if side is None else self.encoder if side == "encoder" else self.decoder
        if stack is None:
            raise ValueError(f"a head reads the {side}, which this model does not have")
        return stack
