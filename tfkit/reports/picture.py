"""The picture of an architecture as data: typed boxes and the paths between them.

It is built from the Blueprint. Stretches of equal layers share a frame; a repeated pattern has one frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tfkit.core.blueprint import Blueprint, LayerPlan, StackPlan
from tfkit.core.bounds import JsonObject
from tfkit.core.component import Config
from tfkit.core.output import printable
from tfkit.core.slots import PositionFacts
from tfkit.core.store import Stores, linked
from tfkit.recipe.views.row import Runs, joined, label, places
from tfkit.reports.counts import Cost, Counts
from tfkit.reports.show import agreed, as_data, layer_configs, outer_configs, part_words, stack_figures, summary
from tfkit.reports.table import FIGURES, caption, figure, headline, weight_groups
from tfkit.reports.wiring import PART, Junction, Path, wiring

LONGEST_PATTERN = 64  # maximum number of layers in a repeated pattern
MOST_FRAMES = 12  # maximum number of frames per stack; if there are more, layers are framed by kind
MOST_KINDS = 40
SIZES = ("d_model", "vocab_size", "max_length")  # recipe keys shown in the input's box
OF_LAYER = ("residual", "dropout", "mask", "position", "shared")  # recipe keys shown in a layer group's band
NO_STORES = Stores()


@dataclass(frozen=True)
class Box:
    """A part, a figure or a function, with a title and words. `key` identifies the box when pictures are compared.

    `path` holds the recipe keys of the box, `inner` the boxes inside that the part declares, `reads` its inputs in
    addition to the stream: the stack's position or the memory; `stores` has its names in `context.store`.
    """

    key: str
    tone: str
    title: str
    words: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    path: str = ""
    reads: frozenset[str] = frozenset()
    stores: Stores = NO_STORES

    @property
    def text(self) -> tuple[str, ...]:
        """All text of the box."""
        return (self.title, *self.words, *self.inner)


@dataclass(frozen=True)
class Fork:
    """Parallel paths that join in the operation `joined`; an empty path is a residual connection."""

    paths: tuple[Series, ...]
    joined: str


@dataclass(frozen=True)
class LayerGroup:
    """A group of layers, or a repeated pattern of layers; its band shows their number and common properties."""

    band: Box
    body: Series


Series = tuple["Box | Fork | LayerGroup", ...]


@dataclass(frozen=True)
class Column:
    """A stack from input to heads; `tied` names the heads that share its token table."""

    side: str
    start: Box
    embedding: Box | None
    position: Box | None
    layers: Series
    heads: tuple[Box, ...] = ()
    tied: tuple[str, ...] = ()
    memory: Box | None = None


@dataclass(frozen=True)
class Picture:
    """A whole model. `shared`: both stacks use one token table; `marks`: changes of each box, if compared."""

    name: str
    headline: str
    columns: tuple[Column, ...]
    notes: tuple[Box, ...]
    caption: str = ""
    shared: bool = False
    marks: dict[str, frozenset[str] | None] = field(default_factory=dict, compare=False)

    def boxes(self) -> Iterator[Box]:
        """Yield all boxes of each stack from bottom to top."""
        for column in self.columns:
            first = (column.start, column.memory, column.embedding, column.position)
            yield from (box for box in first if box is not None)
            yield from boxes_of(column.layers)
            yield from column.heads
        yield from self.notes


def store_arrows(column: Column) -> Iterator[tuple[Box, str, Box]]:
    """Yield what a box writes to `context.store` for a box above: writer, names and reader."""
    latest: dict[str, Box] = {}
    for box in (*filter(None, [column.embedding]), *boxes_of(column.layers)):
        names = sorted(latest.keys() & box.stores.reads)
        for writer in {latest[name].key: latest[name] for name in names}.values():
            yield writer, ", ".join(name for name in names if latest[name] is writer), box
        latest |= {name: box for name in box.stores.writes if name not in box.stores.reads or name not in latest}


def boxes_of(series: Series) -> Iterator[Box]:
    """Yield the boxes of a path in order."""
    for block in series:
        if isinstance(block, Box):
            yield block
            continue
        if isinstance(block, LayerGroup):
            yield block.band
        for path in (block.body,) if isinstance(block, LayerGroup) else block.paths:
            yield from boxes_of(path)


def picture(blueprint: Blueprint, counts: Counts | None = None, note: str | None = None) -> Picture:
    """Build the picture of `blueprint`; with `counts`, boxes show shapes and costs."""
    return _Painter(blueprint if counts is None else counts.blueprint, counts).picture(note)


def compared(before: Picture, after: Picture) -> tuple[Picture, Picture]:
    """Mark the differences between two pictures: None for boxes in both that are equal, else the words that differ.

    Notes are not compared, because each names its own recipe.
    """
    for one, other in ((before, after), (after, before)):
        other_text = {box.key: box.text for box in other.boxes()}
        for box in one.boxes():
            same = box.key == "note" or other_text.get(box.key) == box.text
            one.marks[box.key] = None if same else frozenset(box.text) - frozenset(other_text.get(box.key, ()))
    return before, after


class _Painter:
    """Builds the boxes of a model."""

    def __init__(self, blueprint: Blueprint, counts: Counts | None) -> None:
        self.blueprint, self.counts = blueprint, counts
        self.paired = len(list(blueprint.stacks())) > 1
        rows = () if counts is None else counts.rows
        self.parts = {(row.stack, row.name, row.kind, part.name): part for row in rows for part in row.parts}
        self.rows = {(row.stack, row.name, row.kind): row for row in rows}
        self.linked = {plan.side: linked(plan.store_uses()) for plan in blueprint.stacks()}

    def picture(self, note: str | None) -> Picture:
        blueprint, chosen = self.blueprint, self.blueprint.parametrization
        noted = {"init": part_words(blueprint.init)}
        if chosen is not None:
            noted["parametrization"] = [f"{name} {value}" for name, value in chosen.as_data().items()]
        if blueprint.special_ids:
            noted["special_ids"] = [f"{name} {value:,}" for name, value in blueprint.special_ids]
        notes = [self._box(name, "note", name, words, f"model.{name}") for name, words in noted.items()]
        notes += [self._box("note", "note", "note", [note])] if note else []
        columns = tuple(self._column(plan) for plan in blueprint.stacks())
        stacks = {plan.side: stack_figures(plan) for plan in blueprint.stacks()}
        data: JsonObject = {"name": blueprint.name, "type": blueprint.type.part.part_name, "stacks": stacks}
        legend = ""
        if self.counts is not None:
            data = as_data(blueprint, self.counts, note)
            legend = caption(data)
            notes.append(self._box("total", "note", "total", _cost_words(self.counts.total)))
        line = headline(data).removeprefix(f"{blueprint.name}: ")
        return Picture(printable(blueprint.name), line, columns, tuple(notes), legend, blueprint.shared_embedding)

    # stacks

    def _column(self, plan: StackPlan) -> Column:
        role = plan.side if self.paired else "stack"
        configs = outer_configs(self.blueprint, plan)
        words = [f"{name} {value:,}" for name, value in stack_figures(plan).items() if value and name != "num_layers"]
        if (once := self.rows.get((plan.side, "once", None))) is not None:
            words += ["computed once for all layers:", *_cost_words(once.cost)]
        path = " ".join(f"model.{plan.side}.{name}" for name in SIZES)
        start = self._box(f"{role}/input", "input", plan.side, words, path)

        def outer(name: str, tone: str) -> Box | None:
            config = configs.get(name)
            return self._part(f"{role}/{name}", tone, name, config, plan) if config else None

        position = outer("position", "position")
        embedding = outer("embedding", "embedding")
        if position is not None and embedding is not None and "embed" in asked(plan.position):
            embedding = replace(embedding, reads=frozenset(["position"]))
        final = outer("final_norm", "norm")
        layers = self._layers(plan, role) + (() if final is None else (final,))
        own = () if self.blueprint.head is None else (("head", self.blueprint.head),)
        every = (*own, *((f"heads.{name}", head) for name, head in self.blueprint.heads))
        read = [(name, head) for name, head in every if self.blueprint.read_by(head) is plan]
        heads = [self._part(printable(name), "head", name, head, None) for name, head in read]
        tied = tuple(printable(name) for name, head in read if head.is_tied())
        alone = plan.memory_width if not self.paired else None
        memory = self._box(f"{role}/memory", "input", "memory", [f"d_model {alone:,}"]) if alone else None
        return Column(plan.side, start, embedding, position, layers, tuple(heads), tied, memory)

    def _layers(self, plan: StackPlan, role: str) -> Series:
        """Group the layers of a stack by stretches and repeated patterns, or by kind if there are too many groups."""
        frames: list[LayerGroup] = []

        def frame(kind: int, runs: Runs, times: int) -> LayerGroup:
            group = self._frame(plan, kind, runs, times, f"{role}/{len(frames)}")
            frames.append(group)
            return group

        stretches = islice(_folds(plan.order), MOST_FRAMES + 1)
        folds = [(*one, list(_folds(plan.order[one[0] : one[0] + one[1]]))) for one in stretches]
        if sum(len(inner) for *_, inner in folds) > MOST_FRAMES:
            kinds = list(places(plan.order).items())
            shown = tuple(frame(kind, runs, plan.order.count(kind)) for kind, runs in kinds[:MOST_KINDS])
            left = len(kinds) - len(shown)
            more = self._box(f"{role}/more", "note", f"{left:,} more kinds of layers", [])
            return (*shown, more) if left else shown
        series: list[Box | Fork | LayerGroup] = []
        for first, period, times, inner in folds:
            if period == 1:
                series.append(frame(plan.order[first], [(first, first + times - 1)], times))
                continue
            body = []
            for start, _, count in inner:  # runs of equal layers within the pattern, and their lengths
                at = [first + start + turn * period for turn in range(times)]
                body.append(frame(plan.order[at[0]], joined((one, one + count - 1) for one in at), count))
            band = self._box(
                f"{role}/pattern {first}", "band", f"{times:,} ×", [label([(first, first + period * times - 1)])]
            )
            series.append(LayerGroup(band, tuple(body)))
        return tuple(series)

    # layers

    def _frame(self, plan: StackPlan, kind: int, runs: Runs, times: int, key: str) -> LayerGroup:
        layer = plan.layers[kind]
        words = [label(runs), *part_words(layer.residual)]
        words += [] if (streams := plan.streams(runs[0][0])) is None else [f"streams: {streams:,}"]
        words += [f"dropout {layer.dropout:g}"] * bool(layer.dropout)
        words += [f"mask: {', '.join(map(summary, layer.mask))}"] * bool(layer.mask)
        words += [] if layer.position is None else [f"position: {', '.join(map(summary, layer.position)) or 'none'}"]
        words += ["shared: one set of weights"] * layer.shared
        words += _store_words(self.linked[plan.side].get((kind, "residual"), NO_STORES))
        if (row := self.rows.get((plan.side, "layer", kind))) is not None and (costs := _cost_words(row.cost)):
            words += [f"together: {costs[0]}", *costs[1:]]
        configs = layer_configs(layer)
        norms = {name: config for name, config in configs.items() if name in _norm_names(layer)}
        reading = {one.name: self._reads(plan, layer, one.memory, one.config) for one in layer.sublayers}
        path = f"model.{plan.side}.layers.{runs[0][0]}"

        def box(name: str) -> Box:
            config, of_norm = configs[name], _norm_names(layer).get(name, "")
            of_recipe = name if of_norm == "" else "norm" if of_norm is None else f"{of_norm}_norm"
            part = self._part(f"{key}/{name}", config.part.part_slot, name, config, plan, kind, f"{path}.{of_recipe}")
            return replace(part, reads=frozenset(reading.get(name, ())))

        wired = wiring(layer, plan.shape(runs[0][0], layer), norms)
        if wired is None:
            named = [*reading, *(name for name, norm in norms.items() if norm is not None)]
            words.append("the layout's forward cannot be traced; only its parts are listed")
        body = tuple(map(box, named)) if wired is None else _series(wired, box, f"{key}/")
        for name in ("residual", "position"):
            if (extra := self.parts.get((plan.side, "layer", kind, name))) is not None:
                words += [f"{name}: {word}" for word in _cost_words(extra.cost, extra.weights)]
        paths = " ".join(f"{path}.{name}" for name in OF_LAYER)
        return LayerGroup(self._box(key, "band", f"{times:,} ×", words, paths), body)

    def _reads(self, plan: StackPlan, layer: LayerPlan, memory: bool, config: Config) -> list[str]:
        """List the inputs of a sublayer in addition to the stream."""
        if memory:
            return ["memory"]
        hooks = asked(plan.position) - {"embed"}
        return ["position"] * (layer.position is None and bool(hooks & config.part.able(config)))

    # boxes

    def _part(
        self, key: str, tone: str, name: str, config: Config | tuple[Config, ...], plan: StackPlan | None,
        kind: int | None = None, path: str = "",
    ) -> Box:  # fmt: skip
        """Build the box of a part, or of several parts."""
        many = config if isinstance(config, tuple) else (config,)
        facts = {} if plan is None or kind is None else agreed(many[0], plan, plan.layers[kind])
        words = [word for each in many for word in part_words(each, facts)]
        title, *inner = many[0].part.picture or (name,)
        words[0] = words[0] if title == name else f"{name}: {words[0]}"
        side = "" if plan is None else plan.side
        counted = self.parts.get((side, name if kind is None else "layer", kind, name))
        uses = {} if plan is None else self.linked[plan.side]
        stores = uses.get((-1 if kind is None else kind, name), NO_STORES)
        words += _store_words(stores)
        words += [] if counted is None else _cost_words(counted.cost, counted.weights)
        where = path or (f"model.{side}.{name}" if side else f"model.{name}")
        return Box(key, tone, printable(title), _shown(words), _shown(inner), where, stores=stores)

    def _box(self, key: str, tone: str, title: str, words: Sequence[str], path: str = "") -> Box:
        return Box(key, tone, printable(title), _shown(words), path=path)


def asked(position: Sequence[PositionFacts.Config]) -> frozenset[str]:
    """Return the names of the hooks that the positions of a stack use: embed, rotation, bias, temperature."""
    return frozenset[str]().union(*(config.part.asks(config) for config in position))


def _shown(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(" ".join(printable(word).split()) for word in words)


def _store_words(stores: Stores) -> list[str]:
    return [f"{verb} {', '.join(sorted(names))}" for verb in ("reads", "writes") if (names := getattr(stores, verb))]


def _norm_names(layer: LayerPlan) -> dict[str, str | None]:
    return layer.residual.part.norm_names([one.name for one in layer.sublayers])


def _cost_words(cost: Cost, weights: dict[str, tuple[int, ...]] | None = None) -> list[str]:
    """List the shapes of weights, then all nonzero costs."""
    shapes = weight_groups({name: list(size) for name, size in (weights or {}).items()})
    values = {name: value for name, value in vars(cost).items() if value}
    return [*shapes, *(f"{FIGURES[name]} {figure(name, value)}" for name, value in values.items())]


def _series(path: Path, box: Callable[[str], Box], key: str) -> Series:
    blocks: list[Box | Fork | LayerGroup] = []
    for step in path:
        if isinstance(step, Junction):
            blocks.append(Fork(tuple(_series(one, box, key) for one in step.paths), step.joined))
        else:
            blocks.append(box(step.name) if step.kind == PART else Box(f"{key}{step.name}", "scale", step.name))
    return tuple(blocks)


def _folds(order: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Fold the order of kinds greedily into repeated patterns. Yield (first layer, length, repetitions)."""
    first = 0
    while first < len(order):
        best, times = 1, 1
        for period in range(1, min(LONGEST_PATTERN, (len(order) - first) // 2) + 1):
            count = 1
            stretch = order[first : first + period]
            while order[first + count * period : first + (count + 1) * period] == stretch:
                count += 1
            if count > 1 and count * period > best * times:
                best, times = period, count
        yield first, best, times
        first += best * times
