"""`tfkit embed`: embeddings of texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tfkit.cli.options import DEVICE, ReadOptions, Whole, reads_run
from tfkit.cli.texts import Text, TextOptions, TextOutput, output_to, takes_texts
from tfkit.core.bounds import ROWS
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@click.command("embed")
@click.argument("run")
@click.argument("file", required=False)
@takes_texts
@click.option("--out", metavar="FILE", help="The same as --output: an array [texts d_model] as .npy, else JSON lines.")
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
    file: str | None,
    given: TextOptions,
    out: str | None,
    pooling: Literal["mean", "first", "last"],
    normalize: bool,
    batch_size: int | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Print the vector of each line of FILE (-: standard input) by RUN (a run's folder), one JSON list per line.

    FILE is the same as --input FILE.
    """
    given = _joined(given, file, out)
    given.check()
    texts = given.all()
    loaded = reading.run(run, device)
    values = [text.values[0] for text in texts]
    if given.output is None or not given.output.endswith(".npy"):
        with output_to(given.output) as output:  # open the output first: nothing is computed that cannot be written
            _write(output, texts, loaded.embed(values, pooling, normalize, batch_size), given.are_records)
        return
    from tfkit.storage.files import whole

    with whole(Path(given.output)) as beside:
        import numpy as np

        vectors = loaded.embed(values, pooling, normalize, batch_size)
        with open(beside, "wb") as stream:
            np.save(stream, vectors.numpy(), allow_pickle=False)


def _joined(given: TextOptions, file: str | None, out: str | None) -> TextOptions:
    """Merge FILE into --input and --out into --output; raise UsageError for duplicates or a missing input."""
    for one, other, names in ((file, given.file, "FILE and --input"), (out, given.output, "--out and --output")):
        if one is not None and other is not None:
            raise UsageError(f"{names} are the same; give one of them")
    source = given.file if file is None else file
    if source is None:
        raise UsageError("give the file with the texts: --input FILE (-: standard input)")
    return replace(given, file=source, output=given.output if out is None else out)


def _write(output: TextOutput, texts: list[Text], vectors: Tensor, records: bool) -> None:
    """Write one JSON list per text, or one record with its id."""
    for text, row in zip(texts, vectors.tolist(), strict=True):
        if records:
            output.record(text, {"vector": row})
        else:
            output.json(row)
