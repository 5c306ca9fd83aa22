"""`tfkit`: finds the command, and turns what goes wrong in it into a message and an exit status.

Exit status: 0 all is well; 2 a recipe, a file, a run or the command line is wrong (the message is on standard error);
130 stopped with Ctrl-C. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import importlib
import keyword
import warnings
from typing import Any, TextIO

import click

from tfkit import __version__
from tfkit.core.errors import RecipeError, RecipeWarning, TfkitError, TfkitWarning
from tfkit.core.registry import nearest

# command -> what `tfkit --help` says of it; its module is tfkit.cli.<command> (of a word of Python's, <command>_)
COMMANDS = {
    "check": "Say whether recipes are right, or everything that is wrong in them.",
    "show": "Show an architecture: its parts, their weights and what they cost.",
    "explain": "Say who set a value of a recipe, and what it replaced.",
    "diff": "Say how two recipes or runs differ, in words and numbers.",
    "parts": "List the registered parts, or all there is to know about one.",
    "new": "Write a recipe of your own from another one, or a part with its test.",
    "schema": "Print the JSON Schema of the recipe language, for editors.",
    "train": "Train the model of a recipe into a run's folder.",
    "evaluate": "Measure a run on its data.",
    "generate": "Let a run write.",
    "predict": "Let a run say what it was trained to: labels, tags, answers, fills for a mask.",
    "embed": "Print vectors of texts.",
    "import": "Bring a model of Hugging Face's in as a run.",
    "export": "Write a run as a folder that transformers loads.",
    "verify": "Say whether a run computes what a model of Hugging Face's does.",
    "bench": "Measure what attentions cost, by length of the text.",
}
WRONG, INTERRUPTED = 2, 130


class Commands(click.Group):
    """The commands by name; each is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = f"{name}_" if keyword.iskeyword(name) else name
        command: click.Command = importlib.import_module(f"tfkit.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = nearest(name, list(COMMANDS))
            known = f"Did you mean '{hint}'?" if hint else f"There are: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command '{name}'. {known}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", TfkitWarning)
                warnings.showwarning = _warn
                return super().invoke(ctx)
        except TfkitError as error:
            complain(error)
            ctx.exit(WRONG)
        except KeyboardInterrupt as error:
            click.echo(f"tfkit: {error}" if str(error) else "tfkit: interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of tfkit's as it prints errors; others as Python does."""
    if issubclass(category, RecipeWarning):  # says its own place
        text = f"{message}\n"
    elif issubclass(category, TfkitWarning):
        text = f"tfkit: {message}\n"
    else:
        text = warnings.formatwarning(message, category, filename, lineno)
    click.echo(text, err=True, nl=False)


def complain(error: TfkitError) -> None:
    """Print an error of the user's on standard error; the faults of a recipe say their own places."""
    click.echo(str(error) if isinstance(error, RecipeError) else f"tfkit: {error}", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="tfkit %(version)s")
def main() -> None:
    """Transformers from recipes: describe an architecture in a file, then check, train and use it."""
