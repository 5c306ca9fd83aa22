"""`tfkit generate`: text from a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tfkit.cli.answers import AnswerPrinter, Form
from tfkit.cli.options import DEVICE, ReadOptions, sets_run
from tfkit.cli.shorthands import takes_generation_options
from tfkit.cli.terminal import is_terminal, standard_input
from tfkit.cli.texts import batches, lines
from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from tfkit.generation.shorthands import Shorthands
    from tfkit.run import Run

TOGETHER = 32  # lines of standard input that are read before they are answered
CUT_OFF = 1  # the exit status where a text is not what its rules promise


@click.command("generate")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--stream", is_flag=True, help="Print each output while it is written.")
@click.option("--jsonl", is_flag=True, help="Print every candidate as one JSON object per line, with its probability.")
@takes_generation_options
@DEVICE
@sets_run
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    texts: tuple[str, ...],
    stream: bool,
    jsonl: bool,
    shorthands: Shorthands,
    device: str,
    reading: ReadOptions,
) -> None:
    """Generate text with RUN (a run's folder): a continuation, the target of an encoder-decoder, or fills for masks.

    Prints one output for each TEXT. Without TEXT, reads standard input line by line and prints one line for each; line
    breaks within an output then become spaces. On a terminal it asks for texts instead, and streams its answers: Ctrl-C
    ends an answer, Ctrl-D leaves.

    Ends with 1 where a text is cut off, so that it is none of those that `generate.logits` allows (regex, choices).
    """
    form = _form(stream, jsonl, shorthands)
    loaded = reading.run(run, device, shorthands.quantize)
    asked = _asked(loaded, shorthands, reading.sets)
    answers = AnswerPrinter(loaded, asked, form, lines=not texts and not on_terminal())
    if texts:
        answers.give(texts)
    elif not answers.lines:
        from tfkit.cli.conversation import converse

        converse(answers.alone)
        return
    else:
        _answer_lines(answers, shorthands.batch_size or TOGETHER)
    if answers.cut:
        ctx.exit(CUT_OFF)


def on_terminal() -> bool:
    """Whether somebody types, and reads what is printed."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def _form(stream: bool, jsonl: bool, shorthands: Shorthands) -> Form:
    """How outputs are printed; raises UsageError for options that exclude each other."""
    others = ["--jsonl"] * jsonl + shorthands.given("n_best", "batch_size")
    if stream and others:
        raise UsageError(f"--stream prints one text while it is written; leave {' and '.join(others)} out")
    if stream or jsonl:
        return "stream" if stream else "jsonl"
    return "best" if shorthands.n_best is None else "all"


def _asked(run: Run, shorthands: Shorthands, sets: tuple[str, ...]) -> dict[str, Any]:
    """What the run is asked for; raises UsageError, RecipeError for what it cannot do, before anything is read."""
    given = shorthands.given()
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


def _answer_lines(answers: AnswerPrinter, together: int) -> None:
    """Answer standard input, so many lines at a time; one by one where somebody types or reads along."""
    one_by_one = is_terminal(sys.stdin) or answers.form == "stream"
    before = 0
    for prompts in batches(lines(standard_input()), 1 if one_by_one else together):
        answers.give(prompts, before)
        before += len(prompts)
