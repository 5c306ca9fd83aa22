"""`tfkit generate`: text generation with a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tfkit.cli.answers import AnswerPrinter, Form
from tfkit.cli.options import DEVICE, ReadOptions, sets_run
from tfkit.cli.shorthands import takes_generation_options
from tfkit.cli.terminal import is_terminal
from tfkit.cli.texts import TextOptions, output_to, takes_texts
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from tfkit.generation.shorthands import Shorthands
    from tfkit.run import Run

TOGETHER = 32  # lines per batch
CUT_OFF = 1  # exit status if a text violates its constraints because it is truncated


@click.command("generate")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--stream", is_flag=True, help="Print each output while it is written.")
@click.option("--jsonl", is_flag=True, help="Print every candidate as one JSON object per line, with its probability.")
@takes_texts
@takes_generation_options
@DEVICE
@sets_run
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    given: TextOptions,
    stream: bool,
    jsonl: bool,
    shorthands: Shorthands,
    device: str,
    reading: ReadOptions,
) -> None:
    """Generate text with RUN (a run's folder): a continuation, the target of an encoder-decoder, or fills for masks.

    Prints one output for each TEXT, or for each line of --input, or of standard input; line breaks within the output
    for a line then become spaces. On a terminal it asks for texts instead, and streams its answers: Ctrl-C ends an
    answer, Ctrl-D leaves.

    Ends with 1 where a text is cut off, so that it is none of those that `generate.logits` allows (regex, choices).
    """
    given.check()
    form = _form(stream, jsonl, shorthands, given)
    loaded = reading.run(run, device, shorthands.quantize)
    asked = _asked(loaded, shorthands, reading.sets)
    if given.are_typed and on_terminal() and not loaded.reads_vectors:
        from tfkit.cli.conversation import converse

        converse(AnswerPrinter(loaded, asked, form).alone)
        return
    one_by_one = form == "stream" and not given.texts
    count = 1 if one_by_one else shorthands.batch_size or TOGETHER
    together = given.arrays(loaded, count) if loaded.reads_vectors else given.batches(count)
    with output_to(given.output) as output:
        lines = not given.texts and form != "jsonl" and not given.are_records
        answers = AnswerPrinter(loaded, asked, form, lines, given.are_records, output)
        for prompts in together:
            answers.give(prompts)
    if answers.cut:
        ctx.exit(CUT_OFF)


def on_terminal() -> bool:
    """True if standard input and output are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def _form(stream: bool, jsonl: bool, shorthands: Shorthands, given: TextOptions) -> Form:
    """Return the output form; raise UsageError for conflicting options."""
    others = ["--jsonl"] * jsonl + shorthands.set_options("n_best", "batch_size")
    others += ["--field"] * given.are_records + ["--output"] * (given.output is not None)
    if stream and others:
        raise UsageError(f"--stream prints one text while it is written; leave {' and '.join(others)} out")
    if stream or jsonl:
        return "stream" if stream else "jsonl"
    return "best" if shorthands.n_best is None else "all"


def _asked(run: Run, shorthands: Shorthands, sets: tuple[str, ...]) -> dict[str, Any]:
    """Return the generation options; raise UsageError or RecipeError for unsupported ones before any input is read."""
    given = shorthands.set_options()
    if not run.writes:
        if given:
            raise UsageError(f"{', '.join(given)}: {run.folder} holds an encoder; that is for models that write")
        return {}
    asked: dict[str, Any] = {
        **shorthands.options(run.recipe.generate, sets),
        "max_new_tokens": shorthands.max_new_tokens,
    }
    run.writer(**asked).check()
    return asked
