"""The tables of keys in recipes/README.md and of declarations in tfkit/components/README.md, written from the code.

`python -m tests.reference` writes both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from tfkit.core.bounds import BOUNDS
from tfkit.core.registry import REGISTRY
from tfkit.recipe.keys import GROUPS
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.node import inline
from tfkit.reports.declarations import HEADS, tables
from tfkit.reports.parts import options_of
from tfkit.studies.settings import Study

from .documents import ROOT, rewrite

DOCUMENT = ROOT / "recipes" / "README.md"
PARTS = ROOT / "tfkit" / "components" / "README.md"
GRAMMAR = {
    "top": "The sections of a recipe",
    "model": "`model:`, beside the keys of a stack",
    "stack": "The keys of a stack: in `model:`, or in its `encoder:` and `decoder:`",
    "layer": "`layer:`, and each kind in `layers:`",
}
SECTIONS: dict[str, type[BaseModel]] = {"data": Data, "train": Train, "generate": Generate, "study": Study}


def text() -> str:
    """All tables."""
    tables = [
        _table(title, ("key", "meaning"), ((key.name, key.sentence) for key in GROUPS[group].values()))
        for group, title in GRAMMAR.items()
    ]
    tables += [
        _table(f"`{name}:`", ("key", "value", "default", "meaning"), _options(kind)) for name, kind in SECTIONS.items()
    ]
    objectives = ", ".join(f"`{name}`" for name in REGISTRY.names("objective"))
    bounds = _table("The largest values", ("most", "of"), ((f"{bound.most:,}", bound.counts) for bound in BOUNDS))
    return "\n\n".join(
        [*tables, bounds, f"`objective:` is one of {objectives}; `tfkit parts objective NAME` lists its options."]
    )


def declared() -> str:
    """What classes may declare."""
    found = tables()
    titles = {"declarations": "Declarations", "capabilities": "Capabilities", "options": "Options"}
    titles |= {"hooks": "Hooks of `multi_head`"}
    code = {name: range(1, 3) if name == "declarations" else range(1) for name in found}
    return "\n\n".join(
        _table(titles[name], HEADS[name], (_coded(row, code[name]) for row in rows), 0) for name, rows in found.items()
    )


def _coded(row: Sequence[str], places: Sequence[int]) -> list[str]:
    return [f"`{cell}`" if place in places and cell else cell for place, cell in enumerate(row)]


def _sentences(group: str) -> Iterator[tuple[str, str]]:
    yield from ((key.name, key.sentence) for key in GROUPS[group].values())


def _options(section: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for option in options_of(section):
        default = "required" if option["required"] else f"`{inline(option['default'])}`"
        yield option["name"], option["type"], default, option["meaning"]


def _table(title: str, heads: Sequence[str], cells: object, coded: int = 1) -> str:
    lines = [_row(heads), "|".join(["", *["---"] * len(heads), ""])]
    lines += [_row(_coded(row, range(coded))) for row in cells]  # type: ignore[attr-defined]
    return f"### {title}\n\n" + "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    rewrite(DOCUMENT, "reference", text())
    rewrite(PARTS, "declarations", declared())
