"""HTML pages of pictures: a single model, two models side by side, or a gallery to search, filter and compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from tfkit.core.blueprint import Blueprint
from tfkit.core.output import printable
from tfkit.recipe.text.node import inline
from tfkit.recipe.views.table import RecipeTable
from tfkit.reports.explain import answers
from tfkit.reports.page import Page, PageSection
from tfkit.reports.picture import Box, Picture, picture
from tfkit.reports.svg import style, svg

# slots by which the gallery can be filtered
FILTERS = ("norm", "position", "attention", "mixer", "feedforward", "residual")
TITLE = "Architectures"


def page(pictures: Sequence[Picture], below: Sequence[str], tables: Sequence[RecipeTable]) -> str:
    """Render one picture, or two side by side."""
    title = " and ".join(one.name for one in pictures)
    return Page(title, (), [drawing(pictures, below, tables)]).html()


def drawing(pictures: Sequence[Picture], below: Sequence[str], tables: Sequence[RecipeTable]) -> PageSection:
    """Return the section of one picture, or of two side by side; tooltips state where values come from."""
    drawn = svg(pictures, below, styled=False, hovers=[partial(origins, one) for one in tables])
    return PageSection("Architecture", pictures=[lambda: f'<figure class="drawing">{drawn}</figure>'])


def origins(table: RecipeTable, box: Box) -> str:
    """List the values of a part with their origins, one per line."""
    lines = []
    for answer in [answer for key in box.path.split() for answer in answers(table, key)]:
        for entry in answer.entries:
            where = f" ({entry.where})" if entry.where else ""
            lines.append(f"{answer.path}{where}: {inline(entry.plain())} - {entry.origin.short()}")
    return printable("\n".join(lines))


def gallery(models: Iterable[tuple[str, Blueprint]]) -> str:
    """Render the gallery of models with their descriptions."""
    cards: list[str] = []
    ideas: dict[str, set[str]] = {slot: set() for slot in FILTERS}
    for about, blueprint in models:
        every = [part.part for plan in blueprint.stacks() for part in plan.parts()]
        own = [part for part in every if part.part_slot in FILTERS]
        for part in own:
            ideas[part.part_slot].add(part.part_name)
        words = " ".join(sorted({f"{part.part_slot}:{part.part_name}" for part in own}))
        name = escape(printable(blueprint.name))
        cards.append(
            f'<article id="{name}" data-ideas="{escape(words)}"><h2>{name}</h2>'
            f"<p>{escape(printable(about))}</p>{svg([picture(blueprint)], styled=False).rstrip()}"
            f"<p><code>tfkit show {name} --code</code></p>"
            '<button type="button">large</button> <button type="button">compare</button></article>\n'
        )
    form = (
        '<form><label>search <input id="word" type="search"></label>'
        f"{''.join(_select(slot, sorted(names)) for slot, names in ideas.items() if names)}"
        "<output></output><span>choose two to compare them</span></form>"
    )
    dialog = '<dialog><form method="dialog"><button>close</button></form><div></div></dialog>'
    body = f"<h1>{TITLE}</h1>{form}<main>\n{''.join(cards)}</main>{dialog}"
    text = Path(__file__).with_name("gallery.html").read_text(encoding="utf-8")
    for name, value in (("title", TITLE), ("style", style()), ("body", body)):
        text = text.replace(f"<!-- {name} -->", value, 1)
    return text


def _select(slot: str, names: Sequence[str]) -> str:
    options = "".join(f'<option value="{escape(f"{slot}:{name}")}">{escape(name)}</option>' for name in names)
    return f'<label>{slot} <select><option value="">any</option>{options}</select></label>'
