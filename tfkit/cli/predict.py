"""`tfkit predict`: what a run predicts for texts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfkit.cli.options import DEVICE, ReadOptions, reads_run
from tfkit.cli.terminal import echo, echo_json, is_terminal, standard_input
from tfkit.cli.texts import batches, lines

TOGETHER = 256  # lines of standard input that are read before they are answered


@click.command("predict")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, with every probability.")
@DEVICE
@reads_run
def command(run: str, texts: tuple[str, ...], as_json: bool, device: str, reading: ReadOptions) -> None:
    """Print what RUN (a run's folder) predicts for texts: labels, tags, numbers, answers, or fills for a mask.

    Prints one line for each TEXT; without TEXT, for each line of standard input. A tab stands between two texts that
    are read together: a question and its context.
    """
    from tfkit.training.objective.answers import text_fields

    loaded = reading.run(run, device)
    fields = text_fields(loaded.predictor)
    given = [list(texts)] if texts else batches(lines(standard_input()), 1 if is_terminal(sys.stdin) else TOGETHER)
    for together in given:
        for prediction in loaded.predict([_fields(text, fields) for text in together]):
            echo_json(prediction, indent=None) if as_json else echo(shown(prediction))


def _fields(text: str, fields: Sequence[str]) -> str | dict[str, str]:
    """A text, or the several of one line by their names."""
    parts = text.split("\t", 1)
    if len(parts) == 1:
        return text
    return dict(zip([*fields, "second"], parts, strict=False))


def shown(prediction: Mapping[str, Any]) -> str:
    """A prediction on one line, for people."""
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
