"""The table of published models in recipes/README.md; `python -m tests.interop.proofs` writes it.

It states the size of each shipped model, what is new in it, and the independent implementation it is compared with.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tfkit.interop.huggingface.family import Family, families
from tfkit.recipe.compose import shipped_recipes
from tfkit.reports.formats import markdown_row

from ..documents import rewrite
from .counts import COUNTS
from .rows import ROWS

HEADS = ("recipe", "size", "new in it", "proof", "picture")
UNITS = ((10**9, "B"), (10**6, "M"))


class Proof(NamedTuple):
    """What the numbers of a model are held to: what it is, the file that tells more, and how it was tried."""

    against: str
    file: str  # from the root of the repository
    tried: str = ""  # such as "3 models"
    about: str = ""  # what the model is, where no recipe's header says it


ROOT = Path(__file__).parents[2]
README = ROOT / "recipes" / "README.md"
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


def text() -> str:
    """The table."""
    models = {name: path for name, path in shipped_recipes().items() if path.parent.name == "models"}
    summary = f"<summary>the {len(models)} models, the size of each, what is new in it and its proof</summary>"
    return f"<details>\n{summary}\n\n{families_table(models, proofs())}\n\n</details>"


if __name__ == "__main__":
    rewrite(README, "families", text())
