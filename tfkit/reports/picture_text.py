"""Pictures as text for the terminal, and as Mermaid."""

from __future__ import annotations

import textwrap
from collections.abc import Generator, Iterator, Sequence

from tfkit.reports.picture import Box, Column, Fork, LayerGroup, Picture, Series, store_arrows

# characters with a special meaning in Mermaid or Markdown; # starts an entity
ACTING = '"`#;{}[]<>()|*_&\\'


def text(picture: Picture, width: int = 80) -> str:
    """Render a picture as lines of text, from input to heads; `!` marks differences."""
    output = textwrap.wrap(f"{picture.name}: {picture.headline}", width)
    for column in picture.columns:
        first = [box for box in (column.start, column.memory, column.position, column.embedding) if box is not None]
        output += ["", *_lines(picture, (*first, *column.layers, *column.heads), "", width)]
        output += [f"  {key} uses the token table of {column.side}" for key in column.tied]
    output += ["", *_lines(picture, picture.notes, "", width)]
    output += ["  both stacks share one token table"] * picture.shared
    return "\n".join([*output, *textwrap.wrap(picture.caption, width)]) + "\n"


def _lines(picture: Picture, series: Series, before: str, width: int) -> Iterator[str]:
    for block in series:
        if isinstance(block, Fork):
            yield from _fork(picture, block, before, width)
            continue
        yield from _box(picture, block if isinstance(block, Box) else block.band, before, width)
        if isinstance(block, LayerGroup):
            yield from _lines(picture, block.body, f"{before}  │ ", width)


def _fork(picture: Picture, fork: Fork, before: str, width: int) -> Iterator[str]:
    """Render parallel paths one below the other; a residual connection is a line of its own."""
    straight = [path for path in fork.paths if not path]
    yield f"{before}  ├─╮" if straight else f"{before}  ┬"
    edge = f"{before}  │ " if straight else f"{before}  "
    for number, path in enumerate(path for path in fork.paths if path):
        if number:
            yield f"{edge}├┄"
        yield from _lines(picture, path, edge, width)
    if fork.joined:
        yield f"{before}  ╰─({fork.joined})" if straight else f"{before}  ({fork.joined})"


def _box(picture: Picture, box: Box, before: str, width: int) -> Iterator[str]:
    mark = picture.marks.get(box.key, frozenset())
    sign = "! " if picture.marks and mark is not None else "  "
    inner = [f"[{' → '.join(box.inner)}]"] if box.inner else []
    words = f"{box.title}{': ' * bool(box.words)}{', '.join((*box.words, *inner))}"
    room = max(width - len(before) - 2, 24)
    for number, line in enumerate(textwrap.wrap(words, room, subsequent_indent="    ") or [""]):
        yield before + ("  " if number else sign) + line


def mermaid(pictures: Sequence[Picture]) -> str:
    """Render pictures as a Mermaid flowchart, from bottom to top."""
    return "\n".join(["flowchart BT", *(f"  {line}" for line in _Chart().lines(pictures))]) + "\n"


class _Chart:
    """Builds a flowchart: nodes in subgraphs, then the edges."""

    def __init__(self) -> None:
        self.count = 0
        self.marked: list[str] = []

    def lines(self, pictures: Sequence[Picture]) -> Iterator[str]:
        for picture in pictures:
            self.picture, self.edges = picture, list[str]()
            self.ids: dict[str, str] = {}
            yield f'subgraph {self._id()}["{_safe((picture.name, picture.headline))}"]'
            out = ""
            for column in picture.columns:
                out = yield from self._column(column, out)
            for note in picture.notes:
                yield self._node(note)
            first, last = picture.columns[0].embedding, picture.columns[-1].embedding
            if picture.shared and first and last:
                self.edges.append(f"{self.ids[first.key]} -.-|one table| {self.ids[last.key]}")
            yield from (*self.edges, "end")
        if self.marked:
            yield "classDef changed stroke:#c2410c,stroke-width:3px"
            yield f"class {','.join(self.marked)} changed"

    def _column(self, column: Column, out: str) -> Generator[str, None, str]:
        """Render a stack that follows the node `out`. Return its last node."""
        self.reads: list[tuple[str, str]] = []
        boxes = (column.start, *([column.embedding] if column.embedding else []), *column.layers)
        last = yield from self._series(boxes, "")
        for head in column.heads:
            yield self._node(head)
            self.edges.append(f"{last} --> {self.ids[head.key]}")
        if column.embedding is not None:
            self.edges += [f"{self.ids[column.embedding.key]} -.-|tied| {self.ids[key]}" for key in column.tied]
        sources = {"memory": out}
        for name, box in (("position", column.position), ("memory", column.memory)):
            if box is not None:
                yield self._node(box)
                sources[name] = self.ids[box.key]
        self.edges += [f"{sources[name]} -.-> {node}" for node, name in self.reads if sources.get(name)]
        for writer, name, reader in store_arrows(column):
            self.edges.append(f"{self.ids[writer.key]} -.->|{_safe((name,))}| {self.ids[reader.key]}")
        return last

    def _series(self, series: Series, last: str) -> Generator[str, None, str]:
        """Render a path that follows the node `last`. Return its last node."""
        for block in series:
            if isinstance(block, LayerGroup):
                yield f'subgraph {self._id(block.band)}["{_safe(block.band.text)}"]'
                last = yield from self._series(block.body, last)
                yield "end"
                continue
            if isinstance(block, Box):
                yield self._node(block)
                ends = [last] if last else []
                last = f"n{self.count}"
            else:
                ends = []
                for path in block.paths:
                    ends.append((yield from self._series(path, last)))
                last = self._id()
                yield f'{last}(("{_safe((block.joined,))}"))'
            self.edges += [f"{end} --> {last}" for end in ends]
        return last

    def _node(self, box: Box) -> str:
        node = self._id(box)
        self.reads += [(node, name) for name in sorted(box.reads)]
        return f'{node}["{_safe(box.text)}"]'

    def _id(self, box: Box | None = None) -> str:
        self.count += 1
        node = f"n{self.count}"
        if box is not None:
            self.ids[box.key] = node
            if self.picture.marks and self.picture.marks.get(box.key) is not None:
                self.marked.append(node)
        return node


def _safe(words: Sequence[str]) -> str:
    lines = ["".join(f"#{ord(letter)};" if letter in ACTING else letter for letter in word) for word in words]
    return "<br>".join(lines)
