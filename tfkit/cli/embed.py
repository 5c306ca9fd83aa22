"""`tfkit embed`: vectors of texts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tfkit.cli.options import DEVICE, Reading, Whole, reads_run
from tfkit.cli.terminal import echo, standard_input
from tfkit.cli.texts import file_lines, lines
from tfkit.core.errors import DataError


@click.command("embed")
@click.argument("run")
@click.argument("file")
@click.option("--out", metavar="FILE", help="Write there: .npy is one array [texts d_model], others JSON lines.")
@click.option(
    "--pooling", type=click.Choice(["mean", "first", "last"]), default="mean", show_default=True,
    help="What stands for a text: the mean of its tokens, its first or its last.",
)  # fmt: skip
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Divide a vector by its length.")
@click.option("--batch-size", type=Whole(), help="At most N texts at a time.", metavar="N")
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
    reading: Reading,
) -> None:
    """Print the vector of each line of FILE (- is standard input) by RUN (a run's folder), a JSON list a line."""
    texts = list(lines(standard_input()) if file == "-" else file_lines(file))
    if not texts:
        raise DataError(f"{'standard input' if file == '-' else file}: there is no text in it")
    vectors = reading.run(run, device).embed(texts, pooling, normalize, batch_size)  # type: ignore[arg-type]
    if out is not None and out.endswith(".npy"):
        import numpy as np

        from tfkit.core.files import whole

        with whole(Path(out)) as beside, open(beside, "wb") as stream:
            np.save(stream, vectors.numpy(), allow_pickle=False)
        return
    rows = "".join(f"{json.dumps(row)}\n" for row in vectors.tolist())
    if out is None:
        echo(rows, end="")
        return
    from tfkit.core.files import write_text

    write_text(Path(out), rows)
