"""`tfkit embed`: embeddings of texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import DEVICE, ReadOptions, Whole, reads_run
from tfkit.cli.texts import Text, TextOptions, TextOutput, output_to, takes_texts
from tfkit.core.bounds import ROWS
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from tfkit.generation.vectors import Pooling


@click.command("embed")
@click.argument("run")
@click.argument("file", required=False)
@takes_texts
@click.option("--out", metavar="FILE", help="Same as --output; .npy: an array [texts d_model], otherwise JSON lines.")
@click.option(
    "--pooling", type=click.Choice(["mean", "first", "last", "max", "mean_sqrt", "weighted_mean"]),
    help="Vector of a text: the mean over its tokens, that of its first or last token, ...  [default: the model's, "
    "else mean]",
)  # fmt: skip
@click.option(
    "--normalize/--no-normalize", default=None, help="Divide each vector by its norm.  [default: the model's, else yes]"
)
@click.option("--prompt", metavar="NAME", help="Prompt of a model of sentence-transformers, by name; '': none.")
@click.option("--batch-size", type=Whole(ROWS), help="Texts per batch.", metavar="N")
@DEVICE
@reads_run
def command(
    run: str,
    file: str | None,
    inputs: TextOptions,
    out: str | None,
    pooling: Pooling | None,
    normalize: bool | None,
    prompt: str | None,
    batch_size: int | None,
    device: str,
    reading: ReadOptions,
) -> None:
    """Print the vectors that RUN (a run folder) computes for the lines of FILE (-: standard input), as JSON lists.

    FILE is equivalent to --input FILE.
    """
    inputs = _merged(inputs, file, out)
    inputs.check()
    texts = inputs.all()
    loaded = reading.run(run, device)
    values = [text.values[0] for text in texts]
    if inputs.output is None or not inputs.output.endswith(".npy"):
        # opened first, so that an output that cannot be written is refused before anything is computed
        with output_to(inputs.output) as output:
            _write(output, texts, loaded.embed(values, pooling, normalize, batch_size, prompt), inputs.are_records)
        return
    from tfkit.storage.files import whole

    with whole(Path(inputs.output)) as temporary:
        import numpy as np

        vectors = loaded.embed(values, pooling, normalize, batch_size, prompt)
        with open(temporary, "wb") as stream:
            np.save(stream, vectors.numpy(), allow_pickle=False)


def _merged(inputs: TextOptions, file: str | None, out: str | None) -> TextOptions:
    """Merge FILE into --input and --out into --output. Raise UsageError for duplicates or a missing input."""
    for one, other, names in ((file, inputs.file, "FILE and --input"), (out, inputs.output, "--out and --output")):
        if one is not None and other is not None:
            raise UsageError(f"{names} are equivalent; use one of them")
    source = inputs.file if file is None else file
    if source is None:
        raise UsageError("missing input file: use --input FILE (-: standard input)")
    return replace(inputs, file=source, output=inputs.output if out is None else out)


def _write(output: TextOutput, texts: list[Text], vectors: Tensor, records: bool) -> None:
    """Write one JSON list per text, or one record with its id."""
    for text, row in zip(texts, vectors.tolist(), strict=True):
        if records:
            output.record(text, {"vector": row})
        else:
            output.json(row)
