"""The table of published models in recipes/reference: families.md, and families.html to sort and filter.

It states the size of each shipped model, what is new in it, and the independent implementation it is compared with.
`python -m tests.reference` writes both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import NamedTuple

from tfkit.interop.huggingface.family import Family, families
from tfkit.recipe.compose import shipped_recipes
from tfkit.reports.formats import markdown_row

from .counts import COUNTS
from .rows import ROWS

HEADS = ("recipe", "size", "new in it", "proof", "picture")
TITLE = "The families"
UNITS = ((10**9, "B"), (10**6, "M"))


class Proof(NamedTuple):
    """What the numbers of a model are held to: what it is, the file that tells more, and how it was tried."""

    against: str
    file: str  # from the root of the repository
    tried: str = ""  # such as "3 models"
    about: str = ""  # what the model is, where no recipe's header says it


ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5  # what the document says of all that say no other
FORMULAS = "the paper's formulas in float64"
# models that transformers has not, or that have no weights there: the test that has another reference for each
REFERENCES = {
    "transformer-base": Proof(FORMULAS, "tests/interop/test_papers.py"),
    "transformer-big": Proof(FORMULAS, "tests/interop/test_papers.py"),
    "palm-8b": Proof(FORMULAS, "tests/interop/test_papers.py"),
    "performer": Proof(f"{FORMULAS}, its attention alone", "tests/components/test_linear_attention.py"),
    "lstm-encoder": Proof("the formulas in float64, its mixer alone", "tests/components/test_mixer.py"),
    "latent-diffusion-block": Proof("diffusers' block, same weights", "tests/components/test_features.py"),
}


class Heading(NamedTuple):
    """What the comments at the beginning of a recipe say: how many parameters it has, and what is new in it."""

    parameters: int
    new: str


def heading(text: str) -> Heading:
    """Read the comments at the beginning of a recipe; raises ValueError where they do not say both."""
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    new = next((line for line in lines if line.startswith("New in it")), None)
    expect = next((line for line in lines if line.startswith("Expect: ")), "")
    parameters = re.search(r"([\d,]+) parameters", expect)
    if new is None or parameters is None:
        raise ValueError("the header says 'New in it: ...' and 'Expect: ... 1,000 parameters'")
    new = re.sub(r"^New in it(?: \((.*?)\))?: ", lambda since: f"{since[1]}: " if since[1] else "", new)
    return Heading(int(parameters[1].replace(",", "")), new)


def size(parameters: int) -> str:
    """A number of parameters in three digits, such as 6.74B."""
    unit, letter = next((unit for unit in UNITS if parameters >= 0.9995 * unit[0]), UNITS[-1])
    share = parameters / unit
    return f"{share:.{max(0, 3 - len(str(int(share))))}f}{letter}"


class Cell(NamedTuple):
    """A cell of the table: a text, code or a link with more text after it; `rank` is what it is sorted by."""

    text: str
    link: str = ""
    after: str = ""
    rank: str = ""


def families_table(recipes: Mapping[str, Path], proofs: Mapping[str, Proof]) -> list[tuple[Cell, ...]]:
    """The rows: one for each of `recipes`, then one for each of `proofs` that no recipe is about."""
    rows = [_recipe(name, recipes[name], proofs[name]) for name in sorted(recipes)]
    return rows + [
        (Cell(f"`{name}`"), Cell(""), Cell(proofs[name].about), _proof(proofs[name]), Cell(""))
        for name in sorted(set(proofs) - set(recipes))
    ]


def _recipe(name: str, path: Path, proof: Proof) -> tuple[Cell, ...]:
    """A recipe's row; what is new is the first sentence of that."""
    page = heading(path.read_text(encoding="utf-8"))
    new = re.split(r"\. (?=[A-Z\"])", page.new)[0].removesuffix(".")
    picture = Cell("drawn", f"../models/gallery.html#{name}")
    count = Cell(size(page.parameters), rank=str(page.parameters))
    return Cell(name, f"../models/{path.name}"), count, Cell(new), _proof(proof), picture


def _proof(proof: Proof) -> Cell:
    return Cell(proof.against, f"../../{proof.file}", f", {proof.tried}" if proof.tried else "")


def markdown(rows: Iterable[tuple[Cell, ...]]) -> str:
    """The table in Markdown."""
    texts = [[f"[{cell.text}]({cell.link}){cell.after}" if cell.link else cell.text for cell in row] for row in rows]
    lines = (HEADS, ("---",) * len(HEADS), *texts)
    return "\n".join(markdown_row(cell.replace("|", "\\|") for cell in cells) for cells in lines)


def html(rows: Iterable[tuple[Cell, ...]]) -> str:
    """The table as a page."""
    heads = "".join(f'<th><button type="button">{head}</button></th>' for head in HEADS)
    lines = "\n".join(f"<tr>{''.join(map(_html, row))}</tr>" for row in rows)
    form = '<form><input type="search" aria-label="filter" placeholder="filter"><output></output></form>'
    table = f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table>"
    page = Path(__file__).with_name("families.html").read_text(encoding="utf-8")
    body = f"<h1>{TITLE}</h1>\n{form}\n{table}"
    return page.replace("<!-- title -->", TITLE).replace("<!-- body -->", body)


def _html(cell: Cell) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(cell.text))
    text = f'<a href="{escape(cell.link)}">{text}</a>{escape(cell.after)}' if cell.link else text
    return f'<td data-sort="{cell.rank}">{text}</td>' if cell.rank else f"<td>{text}</td>"


def proofs() -> dict[str, Proof]:
    """What each shipped model is held to, by its name; and each family that no recipe is one of, by its own."""
    shown = {name: family_proof(size.family) for name, size in COUNTS.items() if size.family}
    alone = {row.family for row in ROWS} - {size.family for size in COUNTS.values()}
    return REFERENCES | shown | {name: family_proof(name) for name in alone}


def family_proof(name: str) -> Proof:
    """A family: the type of model that its files say, its map, and the tiny models that it was tried with."""
    family: type[Family] = families()[name]
    file = Path(inspect.getfile(family)).resolve().relative_to(ROOT)
    about = (inspect.getdoc(family) or "").split("\n")[0].removesuffix(".")
    rows = [row for row in ROWS if row.family == name]
    tried = f"{len(rows)} model{'s' * (len(rows) != 1)}"
    worst = max(row.tolerance for row in rows)
    if worst > TOLERANCE:
        tried += f" at {worst:.0e}".replace("e-0", "e-")
    return Proof(f"`{family.model_types[0]}`", file.as_posix(), tried, about)


def rows() -> list[tuple[Cell, ...]]:
    """The rows of the shipped models and of the families without one."""
    models = {name: path for name, path in shipped_recipes().items() if path.parent.name == "models"}
    return families_table(models, proofs())
