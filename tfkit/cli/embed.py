"""`tfkit embed`: vectors of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import DEVICE, ReadOptions, Whole, reads_run
from tfkit.cli.terminal import echo, standard_input
from tfkit.cli.texts import file_lines, lines
from tfkit.core.bounds import ROWS
from tfkit.core.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


@click.command("embed")
@click.argument("run")
@click.argument("file")
@click.option("--out", metavar="FILE", help="Write to FILE: an array [texts d_model] as .npy, else JSON lines.")
@click.option(
    "--pooling", type=click.Choice(["mean", "first", "last"]), default="mean", show_default=True,
    help="Which vector represents a text: the mean of its tokens, its first or its last.",
)  # fmt: skip
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Divide a vector by its length.")
@click.option("--batch-size", type=Whole(ROWS), help="At most N texts at a time.", metavar="N")
@DEVICE
@reads_run
def command(
    run: str,
    file: str,
    out: str | None,
    pooling: str,
    normalize: bool,
    batch_size: int | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Print the vector of each line of FILE (-: standard input) by RUN (a run's folder), one JSON list per line."""
    texts = list(lines(standard_input()) if file == "-" else file_lines(file))
    if not texts:
        raise DataError(f"{'standard input' if file == '-' else file}: there is no text in it")
    loaded = reading.run(run, device)
    if out is None:
        echo(_lines(loaded.embed(texts, pooling, normalize, batch_size)), end="")  # type: ignore[arg-type]
        return
    from tfkit.core.files import whole

    with whole(Path(out)) as beside:  # first, since nothing is worth computing that cannot be written
        vectors = loaded.embed(texts, pooling, normalize, batch_size)  # type: ignore[arg-type]
        if out.endswith(".npy"):
            import numpy as np

            with open(beside, "wb") as stream:
                np.save(stream, vectors.numpy(), allow_pickle=False)
        else:
            beside.write_text(_lines(vectors), encoding="utf-8", newline="\n")


def _lines(vectors: Tensor) -> str:
    """A JSON list a line."""
    return "".join(f"{json.dumps(row)}\n" for row in vectors.tolist())
