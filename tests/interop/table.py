"""The table of the published models in recipes/README.md: what is new in each, and what its numbers are held to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tfkit.reports.formats import markdown_row

HEADS = ("recipe", "size", "new in it", "proof", "picture")
UNITS = ((10**9, "B"), (10**6, "M"))


class Proof(NamedTuple):
    """What the numbers of a model are held to: what it is, the file that tells more, and how it was tried."""

    against: str
    file: str  # from the root of the repository
    tried: str = ""  # such as "3 models"
    about: str = ""  # what the model is, where no recipe's header says it


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


def families_table(recipes: Mapping[str, Path], proofs: Mapping[str, Proof]) -> str:
    """The table in Markdown: a row for each of `recipes`, then one for each of `proofs` that no recipe is about."""
    rows = [_recipe(name, recipes[name], proofs[name]) for name in sorted(recipes)]
    rows += [
        (f"`{name}`", "", proofs[name].about, _link(proofs[name]), "") for name in sorted(set(proofs) - set(recipes))
    ]
    return "\n".join(_lines(rows))


def _recipe(name: str, path: Path, proof: Proof) -> tuple[str, ...]:
    """A recipe's row; what is new is the first sentence of that."""
    page = heading(path.read_text(encoding="utf-8"))
    new = re.split(r"\. (?=[A-Z\"])", page.new)[0].removesuffix(".")
    picture = f"[drawn](models/gallery.html#{name})"
    return f"[{name}](models/{path.name})", size(page.parameters), new, _link(proof), picture


def _link(proof: Proof) -> str:
    return f"[{proof.against}](../{proof.file}){f', {proof.tried}' if proof.tried else ''}"


def _lines(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for cells in (HEADS, ("---",) * len(HEADS), *rows):
        yield markdown_row(cell.replace("|", "\\|") for cell in cells)
