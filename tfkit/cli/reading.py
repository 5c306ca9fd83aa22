"""`tfkit predict` and `embed`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tfkit.cli.completion import RUN
from tfkit.cli.options import DEVICE, ReadOptions, Whole, reads_run
from tfkit.cli.texts import Text, TextOptions, located, output_to, takes_texts
from tfkit.core.bounds import ROWS, JsonObject
from tfkit.core.errors import UsageError
from tfkit.core.output import SPEECH, printable

if TYPE_CHECKING:
    from tfkit.generation.vectors import Pooling

TOGETHER = 256  # texts per batch


@click.command("predict")
@click.argument("run", type=RUN)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@takes_texts
@DEVICE
@reads_run
def predict_command(run: str, inputs: TextOptions, device: str, reading: ReadOptions) -> None:
    """Print the predictions of RUN (a run folder) for texts: labels, tags, numbers, answers, or tokens for a mask.

    Models of vectors read --input: a .npy file of arrays, an image or audio file, or a folder of them.

    Print one line for each TEXT, or for each line of --input or standard input; with --json, a JSON object per line,
    with every probability. A tab separates the two texts of a pair, such as a question and its context; for CSV or
    JSON lines, name both fields with --field.
    """
    from tfkit.training.objective.base import text_fields

    inputs.check(most_fields=2)
    loaded = reading.run(run, device)
    fields, inputs = text_fields(loaded.predictor), inputs.read_by(loaded)
    batches = inputs.arrays(loaded, TOGETHER) if loaded.reads_vectors else inputs.batches(TOGETHER)
    with output_to(inputs.output, tables=True) as output:
        for texts in batches:
            with located(texts):
                predictions = loaded.predict([_fields(text, fields) for text in texts], **inputs.inputs(texts))
            for text, prediction in zip(texts, predictions, strict=True):
                if inputs.are_records:
                    output.record(text, prediction)
                elif SPEECH.data:
                    output.json(prediction)
                else:
                    output.text(printable(shown(prediction)))


def _fields(text: Text, fields: Sequence[str]) -> str | dict[str, str]:
    """Return the single text, or a mapping of field names to two texts."""
    if fields == ["vectors"]:
        return text.values[0]
    values = text.values if len(text.values) > 1 else tuple(text.values[0].split("\t", 1))
    return values[0] if len(values) == 1 else dict(zip([*fields, "second"], values, strict=False))


def shown(prediction: JsonObject) -> str:
    """Format a prediction as one line of text."""
    if "tags" in prediction:
        return " ".join(f"{word}/{tag}" for word, tag in zip(prediction["words"], prediction["tags"], strict=True))
    if "fills" in prediction:
        choices = (
            ", ".join(f"{one['token']} {one['probability']:.3f}" for one in fill) for fill in prediction["fills"]
        )
        return " ".join([*prediction["filled"].split(), *(f"[{choice}]" for choice in choices)])
    if "chosen" in prediction:
        return ", ".join(prediction["chosen"])
    if several := prediction.get("targets", prediction.get("values")):
        return ", ".join(
            f"{target} {shown(one if isinstance(one, dict) else {'value': one})}" for target, one in several.items()
        )
    answer = next((prediction[key] for key in ("label", "answer", "value") if key in prediction), None)
    if answer is None:
        return json.dumps(prediction, ensure_ascii=False)
    words = f"{answer:.6g}" if isinstance(answer, float) else " ".join(str(answer).split())
    return f"{words}\t{prediction['probability']:.4f}" if "probability" in prediction else words


@click.command("embed")
@click.argument("run", type=RUN)
@click.argument("file", required=False)
@takes_texts
@click.option(
    "--pooling", type=click.Choice(["mean", "first", "last", "max", "mean_sqrt", "weighted_mean"]),
    help="Vector of a text: the mean over its tokens, that of its first or last token, ...  [default: the model's, "
    "else mean]",
)  # fmt: skip
@click.option(
    "--normalize/--no-normalize", default=None, help="Divide each vector by its norm.  [default: the model's, else yes]"
)
@click.option("--prompt", metavar="NAME", help="Name of a sentence-transformers prompt; '' for none.")
@click.option("--batch-size", type=Whole(ROWS), help="Texts per batch.", metavar="N")
@DEVICE
@reads_run
def embed_command(
    run: str,
    file: str | None,
    inputs: TextOptions,
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
    from tfkit.training.objective.rows import located as encoding

    if file is not None and inputs.file is not None:
        raise UsageError("FILE and --input are equivalent; use one of them")
    inputs = replace(inputs, file=inputs.file if file is None else file)
    if inputs.file is None:
        raise UsageError("missing input file: use --input FILE (-: standard input)")
    inputs.check(vectors=True)
    loaded = reading.run(run, device)
    if loaded.reads_vectors:
        loaded.embed([])  # raises
    inputs = inputs.read_by(loaded)
    texts = inputs.all()
    values, extra = [text.values[0] for text in texts], inputs.inputs(texts)
    # opened first, so that an output that cannot be written is refused before anything is computed
    with output_to(inputs.output, tables=True) as output:
        with located(texts), encoding(values, loaded.source_tokenizer):
            vectors = loaded.embed(values, pooling, normalize, batch_size, prompt, **extra).numpy()
        for text, row in zip(texts, vectors, strict=True):
            if inputs.are_records:
                output.record(text, {"vector": row.tolist() if output.rows is None else row})
            else:
                output.json(row.tolist())
