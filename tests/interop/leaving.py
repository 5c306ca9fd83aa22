"""What becomes of each shipped model as ONNX; `python -m tests.interop.leaving` writes the rows that lack.

With names it measures those again. All are an hour of one core.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.errors import UsageError
from tfkit.interop.onnx.exporting import as_float32, check_leaves
from tfkit.interop.onnx.graphs import graphs_of, trace
from tfkit.interop.onnx.verifying import GraphSession, largest_difference
from tfkit.models.build import build_model
from tfkit.recipe.compose import shipped_recipes
from tfkit.recipe.load import Recipe

from ..documents import between, rewrite
from .parity import randomise
from .test_shipped import shrunk

README = Path(__file__).parents[2] / "tfkit" / "interop" / "README.md"
HEADER = "| model | files | largest difference |\n|---|---|---|"
NAMES = sorted(name for name, path in shipped_recipes().items() if path.parent.name == "models")
BOUND = 1e-4


@dataclass(frozen=True)
class Leaving:
    """The files of a model and the largest difference of their outputs, or why it stays."""

    files: tuple[str, ...] = ()
    difference: float = 0.0
    refused: str = ""

    def row(self, name: str) -> str:
        """The line of the table."""
        found = self.refused or ", ".join(self.files)
        return f"| `{name}` | {found} | {'' if self.refused else f'{self.difference:.0e}'.replace('e-0', 'e-')} |"


def tiny(name: str) -> Recipe:
    """Load a small version of a shipped model, with one layer of each kind and few experts."""
    return shrunk(name, 1)


def leave(name: str) -> Leaving:
    """Export a small version of a shipped model with random weights, and run it at other sizes."""
    blueprint = tiny(name).blueprint()
    model = build_model(blueprint, seed=0).eval()
    randomise(model, 0.3 * (32 / blueprint.last.d_model) ** 0.5)
    worst, graphs = 0.0, graphs_of(as_float32(model))
    try:
        check_leaves(blueprint)
        with tempfile.TemporaryDirectory() as folder:
            for graph in graphs:
                file = Path(folder) / graph.file
                trace(graph, file)
                worst = max(worst, largest_difference(graph, GraphSession(file), blueprint.last.max_length))
    except UsageError as error:
        return Leaving(refused=str(error))
    return Leaving(tuple(graph.file for graph in graphs), worst)


def listed() -> dict[str, str]:
    """The rows of the table by model."""
    table = between(README.read_text("utf-8"), "onnx models")[1]
    return {line.split("`")[1]: line for line in table.splitlines() if "`" in line}


def main(names: list[str]) -> None:
    """Measure models one by one, and write each row at once; one that fails is printed, and the others go on."""
    for name in names:
        try:
            found = leave(name).row(name)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        rows = listed() | {name: found}
        rewrite(README, "onnx models", "\n".join([HEADER, *(rows[one] for one in NAMES if one in rows)]))


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in NAMES if name not in listed()])
