"""Pictures as SVG, drawn from bottom to top, with residual connections next to the parts that they bypass.

Blocks are measured before drawing: their extent to the left, to the right and upwards from the incoming line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tfkit.core.blueprint import Blueprint
from tfkit.reports.letters import BETWEEN, is_measured, lines, width
from tfkit.reports.picture import Box, Column, Fork, LayerGroup, Picture, Series, picture, store_arrows

WIDTH, PAD, GAP = 224.0, 9.0, 18.0  # box width, padding, gap between boxes
TITLE, WORDS, NAME = 12.5, 11.0, 18.0  # font sizes
TITLE_LINE, WORDS_LINE, INNER_LINE = 18.0, 15.0, 21.0
PASS, SIDE, LANE = 26.0, 16.0, 14.0  # widths of residual connections, group margins, lines outside groups
ROUND, SUM = 7.0, 8.0  # radii of corners and sums
MARGIN = 24.0
APART = 64.0  # distance between two stacks
Hover = Callable[[Box], str]  # function from a box to its tooltip


@cache
def style() -> str:
    """Return the style sheet for all pictures, in light and dark mode."""
    return Path(__file__).with_name("picture.css").read_text(encoding="utf-8")


def svg_of(blueprint: Blueprint) -> str:
    """Draw one model."""
    return svg([picture(blueprint)])


def svg(
    pictures: Sequence[Picture], below: Sequence[str] = (), styled: bool = True, hovers: Sequence[Hover] = ()
) -> str:
    """Draw pictures side by side, with lines of text below; `hovers` return tooltips for the boxes of each picture."""
    sheets = [Sheet(one, hover) for one, hover in zip_longest(pictures, hovers)]
    tall = max(sheet.tall for sheet in sheets)
    x = MARGIN
    for sheet in sheets:
        sheet.draw(x, tall)
        x += sheet.wide + 2 * MARGIN
    wide = x - MARGIN
    drawn = [element for sheet in sheets for element in sheet.elements()]
    y = tall + MARGIN
    for line in lines(below, wide - 2 * MARGIN, WORDS, apart=True):
        drawn.append(written(line, MARGIN, y, WORDS))
        y += WORDS_LINE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="tf" viewBox="0 0 {wide:.0f} {y + MARGIN / 2:.0f}" '
    name = escape(" and ".join(one.name for one in pictures))
    head += f'width="{wide:.0f}" height="{y + MARGIN / 2:.0f}" role="img"><title>{name}</title>'
    page = f'<rect class="page" width="{wide:.0f}" height="{y + MARGIN / 2:.0f}"/>'
    return head + (f"<style>{style()}</style>" if styled else "") + page + "".join(drawn) + "</svg>\n"


def written(
    text: str, x: float, y: float, size: float, kind: str = "", middle: bool = False, new: Collection[str] = ()
) -> str:
    """Render a line of text with `new` words marked; a line with glyphs of unknown width gets a fixed length."""
    wide = width(text, size, size > WORDS)
    length = "" if is_measured(text) else f' textLength="{wide:.0f}" lengthAdjust="spacingAndGlyphs"'
    anchor = ' text-anchor="middle"' if middle else ""
    named = f' class="{kind}"' if kind else ""
    shown = BETWEEN.join(
        f'<tspan class="new">{escape(word, quote=False)}</tspan>' if word in new else escape(word, quote=False)
        for word in text.split(BETWEEN)
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{named}{length}>{shown}</text>'


class Extent(NamedTuple):
    """Size of a block to either side of its incoming line (so that a stack can be mirrored), and upwards from it."""

    half: float
    up: float


@dataclass
class Sheet:
    """A picture laid out as SVG elements."""

    picture: Picture
    hover: Hover | None = None
    wide: float = 0.0
    tall: float = 0.0
    _bypass: int = -1  # side on which residual connections are drawn: -1 left, 1 right
    _groups: list[str] = field(default_factory=list)
    _wires: list[str] = field(default_factory=list)
    _boxes: list[str] = field(default_factory=list)
    _at: dict[str, tuple[float, float]] = field(default_factory=dict)  # center of each box
    _out: tuple[float, float] = (0.0, 0.0)  # right end of the previous stack
    _readers: list[tuple[Box, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        columns = self._columns = [self._sides(column) for column in self.picture.columns]
        self._body = sum(left + right for left, right in columns) + APART * (len(columns) - 1)
        self.wide = max(self._body, 2 * WIDTH)
        self._heading = lines([self.picture.headline], self.wide, WORDS)
        self._name = lines([self.picture.name], self.wide, NAME, bold=True)
        self._caption = lines([self.picture.caption], self.wide, WORDS) if self.picture.caption else []
        rows = max(1, int((self.wide + GAP) // (WIDTH + GAP)))
        notes = self.picture.notes
        self._notes = [notes[first : first + rows] for first in range(0, len(notes), rows)]
        up = max(measure(_column(column)).up for column in self.picture.columns)
        top = MARGIN + 24 * len(self._name) + WORDS_LINE * len(self._heading) + GAP
        self._deep = max(map(_below, self.picture.columns))
        self._low = sum(max(measure((box,)).up for box in row) + GAP for row in self._notes)
        self._low += WORDS_LINE * len(self._caption)
        self.tall = top + up + self._deep + GAP + self._low

    def elements(self) -> Iterator[str]:
        """Yield the elements from background to foreground."""
        yield from (*self._groups, *self._wires, *self._boxes)

    def draw(self, x: float, bottom: float) -> None:
        """Draw the picture with its left edge at `x`; pictures side by side have the same bottom edge."""
        y = MARGIN + 14
        for line in self._name:
            self._boxes.append(written(line, x, y, NAME, "h"))
            y += 24
        for line in self._heading:
            self._boxes.append(written(line, x, y - 4, WORDS))
            y += WORDS_LINE
        y = bottom - self._low
        for row in self._notes:
            for place, box in enumerate(row):
                self._box(box, x + WIDTH / 2 + place * (WIDTH + GAP), y + measure((box,)).up)
            y += max(measure((box,)).up for box in row) + GAP
        for line in self._caption:
            self._boxes.append(written(line, x, y + 4, WORDS))
            y += WORDS_LINE
        left = x + (self.wide - self._body) / 2
        floor = bottom - self._low - GAP - self._deep
        for column, (to_left, to_right) in zip(self.picture.columns, self._columns, strict=True):
            self._stack(column, left + to_left, floor)
            left += to_left + to_right + APART

    # stacks

    def _inner(self, column: Column) -> int:
        """Return the side on which ties and memory are drawn: towards the other stack, else left."""
        return 1 if column is self.picture.columns[0] and len(self.picture.columns) > 1 else -1

    def _sides(self, column: Column) -> tuple[float, float]:
        """Return the extent of a stack to the left and to the right of its line."""
        inner = outer = measure(_column(column)).half
        if column.position is not None:
            outer = max(outer + LANE + PAD, WIDTH / 2 + GAP + WIDTH)
        inner += 2 * LANE if column.tied or column.memory else 0
        if column.memory is not None:
            inner = max(inner, WIDTH / 2 + GAP + WIDTH)
        return (outer, inner) if self._inner(column) == 1 else (inner, outer)

    def _stack(self, column: Column, x: float, y: float) -> None:
        inner = self._inner(column)
        alone = len(self.picture.columns) == 1 and column.memory is None
        self._bypass = inner if alone else -inner
        self._readers = []
        edge = measure(_column(column)).half
        top = self._series(_column(column)[: -1 if column.heads else None], x, y)
        out = top
        if column.heads:
            self._series((_column(column)[-1],), x, top - GAP)
            self._wire(f"M{x:.1f} {top:.1f}V{top - GAP:.1f}", arrow=(x, top - GAP, "up"))
        self._position(column, x, -inner, edge)
        self._ties(column, x + inner * (edge + LANE))
        side = -self._bypass
        for writer, name, reader in store_arrows(column):
            (start, low), (end, high) = self._at[writer.key], self._at[reader.key]
            start, low, end, high = start + side * WIDTH / 2, low - WORDS, end + side * WIDTH / 2, high + WORDS
            way = f"M{start:.1f} {low:.1f}H{x + side * (edge + LANE / 2):.1f}V{high:.1f}H{end:.1f}"
            self._wire(way, "enters", (end, high, "left" if side > 0 else "right"), name)
        readers = [(box, there, at) for box, there, at in self._readers if "memory" in box.reads]
        if column.memory is not None:
            middle = x + inner * (WIDTH + GAP)
            floor = y
            self._box(column.memory, middle, floor)
            self._enter(readers, middle, floor - measure((column.memory,)).up, x + inner * (edge + 2 * LANE), inner)
        elif column is not self.picture.columns[0]:
            lane = x - edge - 2 * LANE - PAD
            self._enter(readers or [(column.start, x, y - measure((column.start,)).up / 2)], *self._out, lane, inner)
        self._out = (x, out)

    def _position(self, column: Column, x: float, side: int, edge: float) -> None:
        """Draw the position next to the embedding, with lines to the parts that use it."""
        if column.position is None:
            return
        _, y = self._at[(column.embedding or column.start).key]
        size = measure((column.position,))
        middle = x + side * (WIDTH + GAP)
        beside = measure((column.embedding or column.start,)).up
        # its top must not be above that of the embedding
        self._box(column.position, middle, y + max(size.up / 2, size.up - beside / 2))
        if column.embedding is not None and "position" in column.embedding.reads:
            end = x + side * WIDTH / 2
            way = f"M{middle - side * WIDTH / 2:.1f} {y:.1f}H{end:.1f}"
            self._wire(way, "enters", (end, y, "left" if side > 0 else "right"))
        readers = [(box, there, at) for box, there, at in self._readers if "position" in box.reads]
        lane = x + side * max(edge + LANE, WIDTH / 2 + GAP + LANE)
        self._enter(readers, lane, self._at[column.position.key][1] - size.up / 2, lane, side)

    def _enter(self, readers: Sequence[tuple[Box, float, float]], x: float, y: float, lane: float, side: int) -> None:
        """Draw a line from (x, y) up the lane, and from there into the side of each reader."""
        if not readers:
            return
        start = f"M{x:.1f} {y:.1f}" + (f"V{y - GAP / 2:.1f}H{lane:.1f}" if x != lane else "")
        for _, middle, at in readers:
            end = middle + side * WIDTH / 2
            self._wire(f"{start}V{at:.1f}H{end:.1f}", "enters", (end, at, "left" if side > 0 else "right"))

    def _ties(self, column: Column, lane: float) -> None:
        """Draw dashed lines from the token table to the heads that use it and to the other stack's embedding."""
        if column.embedding is None:
            return
        x, y = self._at[column.embedding.key]
        side = 1 if lane > x else -1
        for key in column.tied:
            there, at = self._at[key]
            self._wire(f"M{x + side * WIDTH / 2:.1f} {y:.1f}H{lane:.1f}V{at:.1f}H{there + side * WIDTH / 2:.1f}", "tie")
        first = self.picture.columns[0].embedding
        if self.picture.shared and first is not None and first is not column.embedding:
            other, level = self._at[first.key]
            half = (other + x) / 2
            self._wire(f"M{other + WIDTH / 2:.1f} {level + 6:.1f}H{half:.1f}V{y + 6:.1f}H{x - WIDTH / 2:.1f}", "tie")

    # blocks

    def _series(self, series: Series, x: float, y: float) -> float:
        """Draw a path upwards from (x, y) and return its top."""
        for place, block in enumerate(series):
            if place:
                arrow = (x, y - GAP, "up") if isinstance(block, Box) else None
                self._wire(f"M{x:.1f} {y:.1f}V{y - GAP:.1f}", arrow=arrow)
                y -= GAP
            if isinstance(block, Box):
                y = self._box(block, x, y)
            else:
                y = self._group(block, x, y) if isinstance(block, LayerGroup) else self._fork(block, x, y)
        return y

    def _group(self, group: LayerGroup, x: float, y: float) -> float:
        size = measure((group,))
        top = y - size.up
        self._groups.append(
            f'<rect class="group" x="{x - size.half:.1f}" y="{top:.1f}" width="{2 * size.half:.1f}" '
            f'height="{size.up:.1f}" rx="10"/>'
        )
        arrow = (x, y - SIDE, "up") if group.body and isinstance(group.body[0], Box) else None
        self._wire(f"M{x:.1f} {y:.1f}V{y - SIDE:.1f}", arrow=arrow)
        end = self._series(group.body, x, y - SIDE)
        self._wire(f"M{x:.1f} {end:.1f}V{top:.1f}")
        self._box(group.band, x, end - GAP, size.half)
        return top

    def _fork(self, fork: Fork, x: float, y: float) -> float:
        """Draw parallel paths, and the circle that joins them if there is one."""
        top = y - measure((fork,)).up
        circle = top + SUM if fork.joined else top
        for path, at in _across(fork, x, self._bypass):
            low, high = y - LANE, y - LANE - measure(path).up
            bend = ROUND if at > x else -ROUND
            way = "" if at == x else f"v-3H{at - bend:.1f}q{bend:.1f} 0 {bend:.1f} -{ROUND}"
            arrow = (at, low, "up") if path and isinstance(path[0], Box) else None
            self._wire(f"M{x:.1f} {y:.1f}{way}V{low:.1f}", arrow=arrow)
            self._series(path, at, low)
            if fork.joined and at == x:
                self._wire(f"M{x:.1f} {high:.1f}V{circle + SUM:.1f}", arrow=(x, circle + SUM, "up"))
            elif fork.joined:
                edge = x + (SUM if at > x else -SUM)
                end = f"V{circle + ROUND:.1f}q0 -{ROUND} {-bend:.1f} -{ROUND}H{edge:.1f}"
                self._wire(f"M{at:.1f} {high:.1f}{end}", arrow=(edge, circle, "left" if at > x else "right"))
        if fork.joined == "+":
            mark = f"M{x - 4:.1f} {circle:.1f}h8M{x:.1f} {circle - 4:.1f}v8"
            self._boxes.append(f'<circle cx="{x:.1f}" cy="{circle:.1f}" r="{SUM:g}"/><path d="{mark}"/>')
        elif fork.joined:
            self._box(Box("", "scale", fork.joined), x, circle + _height(Box("", "scale", fork.joined)) / 2)
        return top

    def _box(self, box: Box, x: float, y: float, half: float | None = None) -> float:
        """Draw a box with its bottom at y; a group's band is as wide as the group."""
        half = _half(box) if half is None else half
        up = _height(box, 2 * half)
        mark = self.picture.marks.get(box.key, frozenset())
        kind = "same" if mark is None else "changed" if self.picture.marks else ""
        key = f' data-key="{escape(box.key)}"' if box.key else ""
        parts = [f'<g class="{kind}"{key}>' if kind else f"<g{key}>"]
        if self.hover is not None and box.path and (text := self.hover(box)):
            parts.append(f"<title>{escape(text, quote=False)}</title>")
        parts.append(
            f'<rect class="{box.tone}" x="{x - half:.1f}" y="{y - up:.1f}" width="{2 * half:.1f}" '
            f'height="{up:.1f}" rx="{ROUND - 2:g}"/>'
        )
        parts += self._inside(box, x, y - up, 2 * half, mark or frozenset())
        self._boxes.append("".join([*parts, "</g>"]))
        self._at[box.key] = (x, y - up / 2)
        if box.reads:
            self._readers.append((box, x, y - up / 2))
        return y - up

    def _inside(self, box: Box, x: float, y: float, wide: float, new: frozenset[str]) -> Iterator[str]:
        """Yield the text of a box from its top `y` downwards, then its inner boxes, from bottom to top."""
        titles, words = _text(box, wide)
        size = WORDS if box.tone == "scale" else TITLE
        y += PAD / 2
        for line in titles:
            fresh: tuple[str, ...] = (line,) if box.title in new else ()
            yield written(line, x, y + TITLE_LINE - 5, size, "t" if size > WORDS else "", True, fresh)
            y += TITLE_LINE
        for line in words:
            pieces = [piece for piece in line.split(BETWEEN) if piece not in box.words]  # pieces of wrapped words
            fresh = (*new, *(piece for piece in pieces if any(piece in word for word in new)))
            yield written(line, x, y + WORDS_LINE - 4, WORDS, "", True, fresh)
            y += WORDS_LINE
        for text in box.inner[::-1]:
            for line in lines([text], wide - 5 * PAD, WORDS):
                yield (
                    f'<rect class="inner" x="{x - wide / 2 + 2 * PAD:.1f}" y="{y + 3:.1f}" '
                    f'width="{wide - 4 * PAD:.1f}" height="{INNER_LINE - 4:g}" rx="4"/>'
                )
                yield written(line, x, y + 15, WORDS, "", True, (line,) if text in new else ())
                y += INNER_LINE

    def _wire(
        self, path: str, kind: str = "", arrow: tuple[float, float, str] | None = None, title: str | None = None
    ) -> None:
        named = f' class="{kind}"' if kind else ""
        end = f"><title>{escape(title)}</title></path>" if title else "/>"
        self._wires.append(f'<path{named} d="{path}"{end}')
        if arrow is not None:
            x, y, way = arrow
            points = {"up": "l-3.5 7h7z", "left": "l7 -3.5v7z", "right": "l-7 -3.5v7z"}[way]
            self._wires.append(f'<path class="arrow" d="M{x:.1f} {y:.1f}{points}"/>')


def _column(column: Column) -> Series:
    """Return a stack as one path; multiple heads fork side by side at its end."""
    heads: Series = (Fork(tuple((head,) for head in column.heads), ""),) if len(column.heads) > 1 else column.heads
    return (column.start, *([column.embedding] if column.embedding else []), *column.layers, *heads)


def _below(column: Column) -> float:
    """Return how far the box of the position extends below the stack."""
    if column.position is None:
        return 0.0
    start = (column.start, column.embedding) if column.embedding else (column.start,)
    return max(measure((column.position,)).up - measure(start).up, 0.0)


def _across(fork: Fork, x: float, bypass: int) -> Iterator[tuple[Series, float]]:
    """Yield the paths of a fork with their x coordinates: parts are centered, residual connections are on one side."""
    narrow = [path for path in fork.paths if _is_scale(path)]
    broad = [path for path in fork.paths if path not in narrow]
    sizes = [measure(path) for path in broad]
    left = edge = x - _spread(sizes) / 2
    for path, size in zip(broad, sizes, strict=True):
        yield path, left + size.half
        left += 2 * size.half + GAP
    at = edge if bypass < 0 else left - GAP if broad else left
    for path in narrow:
        half = _lane(path)
        at += bypass * half
        yield path, at
        at += bypass * half


def _is_scale(path: Series) -> bool:
    """True for a residual connection: a path without parts."""
    return all(isinstance(block, Box) and block.tone == "scale" for block in path)


def _spread(sizes: Sequence[Extent]) -> float:
    return sum(2 * size.half for size in sizes) + GAP * max(len(sizes) - 1, 0)


def _lane(path: Series) -> float:
    """Return half of the width of a residual connection."""
    return max(measure(path).half + SIDE / 3, PASS / 2)


def measure(series: Series) -> Extent:
    """Measure a path."""
    sizes = [_measured(block) for block in series]
    up = GAP * max(len(series) - 1, 0) + sum(size.up for size in sizes)
    return Extent(max((size.half for size in sizes), default=0.0), up)


def _measured(block: Box | Fork | LayerGroup) -> Extent:
    if isinstance(block, Box):
        return Extent(_half(block), _height(block))
    if isinstance(block, LayerGroup):
        body = measure(block.body)
        half = max(body.half, _half(block.band)) + SIDE
        return Extent(half, SIDE + body.up + GAP + _height(block.band, 2 * half))
    broad = [measure(path) for path in block.paths if not _is_scale(path)]
    narrow = sum(2 * _lane(path) for path in block.paths if _is_scale(path))
    up = LANE + max(measure(path).up for path in block.paths)
    return Extent(_spread(broad) / 2 + narrow, up + GAP + 2 * SUM if block.joined else up)


def _half(box: Box) -> float:
    return (width(box.title, WORDS, bold=True) + PAD) / 2 if box.tone == "scale" else WIDTH / 2


def _height(box: Box, wide: float = WIDTH) -> float:
    titles, words = _text(box, wide)
    inner = sum(len(lines([text], wide - 5 * PAD, WORDS)) for text in box.inner)
    return TITLE_LINE * len(titles) + WORDS_LINE * len(words) + INNER_LINE * inner + PAD


def _text(box: Box, wide: float) -> tuple[list[str], list[str]]:
    if box.tone == "scale":
        return [box.title], []
    return lines([box.title], wide - 2 * PAD, TITLE, bold=True), lines(box.words, wide - 2 * PAD, WORDS)
