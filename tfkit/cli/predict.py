"""`tfkit predict`: predictions of a run for texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from tfkit.cli.options import DEVICE, ReadOptions, reads_run
from tfkit.cli.texts import Text, TextOptions, located, output_to, takes_texts
from tfkit.core.output import printable
from tfkit.core.trees import JsonObject

TOGETHER = 256  # texts per batch


@click.command("predict")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with every probability.")
@takes_texts
@DEVICE
@reads_run
def command(run: str, inputs: TextOptions, as_json: bool, device: str, reading: ReadOptions) -> None:
    """Print the predictions of RUN (a run folder) for texts: labels, tags, numbers, answers, or tokens for a mask.

    Models of vectors read --input: a .npy file of arrays, an image or audio file, or a folder of them.

    Print one line for each TEXT, or for each line of --input or standard input. A tab separates the two texts of a
    pair, such as a question and its context; for JSON lines, name both fields with --field.
    """
    from tfkit.training.objective.base import text_fields

    inputs.check(most_fields=2)
    loaded = reading.run(run, device)
    fields = text_fields(loaded.predictor)
    batches = inputs.arrays(loaded, TOGETHER) if loaded.reads_vectors else inputs.batches(TOGETHER)
    with output_to(inputs.output) as output:
        for texts in batches:
            with located(texts):
                predictions = loaded.predict([_fields(text, fields) for text in texts])
            for text, prediction in zip(texts, predictions, strict=True):
                if inputs.are_records:
                    output.record(text, prediction)
                elif as_json:
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
    answer = next((prediction[key] for key in ("label", "answer", "value") if key in prediction), None)
    if answer is None:
        return json.dumps(prediction, ensure_ascii=False)
    words = f"{answer:.6g}" if isinstance(answer, float) else " ".join(str(answer).split())
    return f"{words}\t{prediction['probability']:.4f}" if "probability" in prediction else words
