"""What each shipped model is held to; `python -m tests.interop.proofs` writes the table of it in recipes/README.md."""

from __future__ import annotations

import inspect
from pathlib import Path

from tests.interop.table import Proof, families_table
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.known import families
from tfkit.recipe.shipped import shipped_recipes

from ..documents import rewrite
from .counts import COUNTS
from .rows import ROWS

ROOT = Path(__file__).parents[2]
README = ROOT / "recipes" / "README.md"
TOLERANCE = 1e-5  # what the document says of all that say no other
FORMULAS = "the paper's formulas in float64"
# models that transformers has not, or that have no weights there: the test that has another reference for each
REFERENCES = {
    "transformer-base": Proof(FORMULAS, "tests/interop/test_original.py"),
    "transformer-big": Proof(FORMULAS, "tests/interop/test_original.py"),
    "palm-8b": Proof(FORMULAS, "tests/interop/test_palm.py"),
    "performer": Proof(f"{FORMULAS}, its attention alone", "tests/components/test_linear_attention.py"),
    "lstm-encoder": Proof("the formulas in float64, its mixer alone", "tests/components/test_mixer.py"),
    "latent-diffusion-block": Proof("diffusers' block, same weights", "tests/components/test_features.py"),
}


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
