"""`tfkit generate`: text generation with a run."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tfkit.cli.answers import AnswerPrinter, Form
from tfkit.cli.main import NO
from tfkit.cli.options import DEVICE, ReadOptions, sets_run
from tfkit.cli.shorthands import takes_generation_options
from tfkit.cli.terminal import is_terminal
from tfkit.cli.texts import TextOptions, output_to, takes_texts
from tfkit.core.errors import UsageError
from tfkit.generation.shorthands import WriteOptions

if TYPE_CHECKING:
    from tfkit.generation.shorthands import Shorthands
    from tfkit.run import Run

TOGETHER = 32  # texts per batch


@click.command("generate")
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--stream", is_flag=True, help="Print each output as it is generated.")
@click.option(
    "--jsonl", is_flag=True, help="Print each candidate as a JSON object on its own line, with its log-probability."
)
@click.option("--chat", is_flag=True, help="Treat texts as messages, formatted with the run's chat template.")
@takes_texts
@takes_generation_options
@DEVICE
@sets_run
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    inputs: TextOptions,
    stream: bool,
    jsonl: bool,
    chat: bool,
    shorthands: Shorthands,
    device: str,
    reading: ReadOptions,
) -> None:
    """Generate text with RUN (a run folder): a continuation, the target of an encoder-decoder, or tokens for its masks.

    Print one output for each TEXT, or for each line of --input or standard input; in the output for a line, line breaks
    become spaces. With --chat, or if the run was trained with objective: chat, a text is a user message, or a JSON list
    of messages, and the output is the reply. On a terminal without TEXT, prompt for texts and stream the answers; a
    chat remembers earlier messages. Ctrl-C ends an answer, Ctrl-D quits.

    Exit status 1: a text was cut off before it satisfied `generate.logits` (regex, choices).
    """
    inputs.check()
    form = _form(stream, jsonl, shorthands, inputs)
    loaded = reading.run(run, device, shorthands.quantize)
    options = _options(loaded, shorthands, reading.sets)
    if chat:
        loaded.read_chat([{"role": "user", "content": "-"}])  # raises without a template
        loaded.chats = True
    inputs = replace(inputs, chat=loaded.reads_messages)
    if inputs.are_typed and on_terminal() and not loaded.reads_vectors:
        from tfkit.cli.chat import replying
        from tfkit.cli.conversation import converse

        converse(replying(loaded, options) if loaded.reads_messages else AnswerPrinter(loaded, options, form).alone)
        return
    one_by_one = form == "stream" and not inputs.texts
    count = 1 if one_by_one else shorthands.batch_size or TOGETHER
    batches = inputs.arrays(loaded, count) if loaded.reads_vectors else inputs.batches(count)
    with output_to(inputs.output) as output:
        lines = not inputs.texts and form != "jsonl" and not inputs.are_records
        answers = AnswerPrinter(loaded, options, form, lines, inputs.are_records, output)
        for prompts in batches:
            answers.print(prompts)
    if answers.cut:
        ctx.exit(NO)


def on_terminal() -> bool:
    """True if standard input and output are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def _form(stream: bool, jsonl: bool, shorthands: Shorthands, inputs: TextOptions) -> Form:
    """Return the output form. Raise UsageError for conflicting options."""
    others = ["--jsonl"] * jsonl + shorthands.set_options("n_best", "batch_size")
    others += ["--field"] * inputs.are_records + ["--output"] * (inputs.output is not None)
    if stream and others:
        raise UsageError(f"--stream prints one text while it is generated; remove {' and '.join(others)}")
    if stream or jsonl:
        return "stream" if stream else "jsonl"
    return "best" if shorthands.n_best is None else "all"


def _options(run: Run, shorthands: Shorthands, sets: tuple[str, ...]) -> WriteOptions:
    """Return the generation options. Raise UsageError or RecipeError for unsupported ones before reading any input."""
    used = shorthands.set_options()
    if not run.writes:
        if used:
            raise UsageError(f"{', '.join(used)}: not supported by the encoder in {run.folder}")
        return {}
    options: WriteOptions = {
        **shorthands.options(run.recipe.generate, sets),
        "max_new_tokens": shorthands.max_new_tokens,
    }
    run.writer(**options).check()
    return options
