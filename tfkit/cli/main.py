"""`tfkit`: dispatches commands and turns errors into messages and exit statuses.

Exit status: 0 done; 1 the answer is no (models differ, a promise or a part is broken, runs failed or were altered,
`generate` truncated a text), or the output was lost; 2 a recipe, file, run, custom part or the command line must be
corrected (message on standard error); 130 interrupted by Ctrl-C or a signal. `train` and `study` keep their
results on disk: if standard output is lost, they continue, log into their folder, and exit with the status of the work.
Heavy modules are imported on demand.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from tfkit import __version__
from tfkit.cli.terminal import WarningHandler, echo, open_streams, settle, warn, warn_wrapped
from tfkit.core.errors import Fault, FaultData, Place, RecipeError, RecipeWarning, TfkitError, TfkitWarning, UsageError
from tfkit.core.machine import is_out_of_memory
from tfkit.core.output import SPEECH, OutputLost, Speech, json_line, lost
from tfkit.core.rooms import pages
from tfkit.core.synonyms import key_for, nearest, split_target

EXIT = """\b
Exit status: 0 done; 1 the answer is no (different, broken, altered, failed,
cut off), or the output was lost; 2 something to correct; 130 interrupted.

"""
# command -> examples without `tfkit`
EXAMPLES: dict[str, tuple[str, str]] = {
    "": ("new mine", "train mine.yaml --out runs/mine"),
    "recipes": ("recipes", "recipes bert"),
    "check": ("check mine.yaml", "check bert-base --set model.num_layers=4"),
    "show": ("show bert-base --length 128", "show gpt2 --code --out gpt2.py"),
    "explain": ("explain bert-base model.layer.attention", "explain mine.yaml train.steps"),
    "diff": ("diff bert-base roberta-base", "diff gpt2 --set model.layer.norm=rms_norm"),
    "draw": ("draw bert-base", "draw bert-base gpt2 --out difference.svg"),
    "train": ("train translate-numbers", "train mine.yaml --out runs/mine --set train.steps=500 --resume"),
    "plan": ("plan gpt2 --devices 8 --memory 24GB", "plan mine.yaml --memory 500MB --json"),
    "evaluate": ("evaluate runs/mine", "evaluate runs/mine --split valid --limit 100"),
    "runs": ("runs --sort valid.loss", 'runs --where "norm=rms_norm" --csv'),
    "generate": ('generate runs/mine "twenty-one"', 'generate runs/mine "twenty-one" --num-beams 4 --n-best 2'),
    "predict": ('predict runs/mine "a good film"', "predict runs/mine --input x.csv --field text"),
    "embed": ("embed runs/mine texts.txt --out vectors.npy", "embed runs/mine - --pooling mean"),
    "look": ('look runs/mine "twenty-one" --out page.html', 'look runs/mine "it was too tired" --token it'),
    "import": ("import openai-community/gpt2", "import ./their-model --out runs/theirs --dtype bfloat16"),
    "export": ("export runs/mine exported", "export runs/mine graphs --to onnx --quantize int8"),
    "quantize": ("quantize runs/mine runs/small --to int8", "quantize runs/mine runs/small --limit 100 --json"),
    "study": ("study norm-placement --dry-run", "study mine.yaml --out studies/mine --jobs 2"),
    "compare": ("compare runs/a runs/b --measure valid.loss", "compare studies/mine --out page"),
    "report": ("report runs/mine", "report studies/mine --out page.html"),
    "verify": (
        "verify runs/theirs --against ./their-model",
        "verify runs/theirs --against openai-community/gpt2 --json",
    ),
    "prove": ("prove runs/mine", "prove runs/mine --json"),
    "parts": ("parts norm rms_norm", "parts --verify my_norm.py"),
    "new": ("new mine --from translate-numbers --set train.steps=500", "new my_norm --part norm"),
    "completion": ("completion bash", "completion fish"),
    "schema": ("schema --out recipe.schema.json", "schema --import my_norm.py"),
}


def with_examples(command: click.Command, name: str) -> click.Command:
    """Append the exit statuses and examples to the help of a command."""
    if name in EXAMPLES:
        lines = [f"  tfkit {line}" for line in EXAMPLES[name]]
        command.epilog = EXIT + "\n".join(("\b", "Examples:", *lines))  # \b: click keeps the line breaks
    return command


REMOVED = {
    "bench": "run `python -m tests.benchmarks` in a clone of the repository",
    "ladder": "`study.sizes` in a recipe compares its variants at several sizes (tfkit study)",
}
GROUPS = ("Recipes", "Training", "Using", "Comparing", "Extending")
COMMANDS = {name: row for page in pages("commands") for name, row in page.COMMANDS.items()}
NO, WRONG, INTERRUPTED = 1, 2, 130
TRACEBACK = "TFKIT_TRACEBACK"  # environment variable: show the full traceback of exceptions in custom parts


class Commands(click.Group):
    """Click group that imports each command on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, COMMANDS))
        for title in GROUPS:
            if lines := [(name.ljust(wide), line) for name, (_, group, line) in COMMANDS.items() if group == title]:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in REMOVED:
            raise UsageError(f"`tfkit {name}` was removed; {REMOVED[name]}")
        if name not in COMMANDS and not name.startswith("-"):
            hint = nearest(name, list(COMMANDS))
            known = f"Did you mean '{hint}'?" if hint else f"Available: {', '.join(COMMANDS)}."
            ctx.fail(f"No such command '{name}'. {known}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line and exit with its status."""
        run = functools.partial(super().main, args, *more, standalone_mode=False, **extra)
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return run()
        open_streams()
        with _speaking(words):
            try:
                status = _status(run, words)
            except OutputLost as error:
                if not error.quiet:
                    warn(f"tfkit: {error}")
                status = NO
        for stream in (sys.stdout, sys.stderr):
            settle(stream)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with warnings.catch_warnings(), _logged():
                warnings.simplefilter("default", TfkitWarning)  # each warning once
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except Exception as error:
            if not complain(error):
                raise
            ctx.exit(error.status if isinstance(error, TfkitError) else WRONG)
        except KeyboardInterrupt as error:
            refuse(f"tfkit: {error}" if str(error) else "tfkit: interrupted")
            ctx.exit(INTERRUPTED)


def _command(name: str) -> click.Command:
    page = importlib.import_module(f"tfkit.cli.{COMMANDS[name][0]}")
    command: click.Command = getattr(page, f"{name}_command")
    command.params += [option for option in SPOKEN if option not in command.params]
    return with_examples(command, name)


def _set(ctx: click.Context, param: click.Parameter, value: object) -> None:
    setattr(SPEECH, str(param.name), value in (True, "json"))


SPOKEN = (
    click.Option(["--json", "data"], is_flag=True, expose_value=False, help="Print the answer or the faults as JSON."),
    click.Option(
        ["--quiet"], is_flag=True, is_eager=True, expose_value=False, callback=_set,
        help="Print no progress, only the answer, warnings and faults.",
    ),
    click.Option(
        ["--progress", "json"], type=click.Choice(("text", "json")), default="text", is_eager=True, expose_value=False,
        callback=_set, help="Form of progress and warnings on standard error; json: one object per line.",
    ),
)  # fmt: skip


@contextlib.contextmanager
def _speaking(args: Sequence[str]) -> Iterator[None]:
    """Answer in JSON, faults included, if --json is among the arguments; progress goes to standard error."""
    before = dict(vars(SPEECH))
    options = args[: args.index("--")] if "--" in args else args
    vars(SPEECH).update(vars(Speech(data="--json" in options or "--jsonl" in options, stderr=True)))
    try:
        yield
    finally:
        vars(SPEECH).update(before)


def refuse(text: str, error: Exception | None = None) -> None:
    """Print why a command ends: on standard error, or on standard output as a JSON line if the answer is JSON."""
    if SPEECH.data:
        echo(json_line({"faults": faults_of(error or UsageError(text.removeprefix("tfkit: ")))}))
    else:
        warn_wrapped(text)


def faults_of(error: Warning | Exception | str) -> list[FaultData]:
    """Return the faults of an error or a warning for a program; those of a recipe with their places."""
    faults = error.faults if isinstance(error, RecipeError) else [Fault(Place(""), "", str(error))]
    return [fault.as_data() for fault in ([error.fault] if isinstance(error, RecipeWarning) else faults)]


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Show logged warnings that have no other handler on standard error, in the style of tfkit's warnings."""
    before, logging.lastResort = logging.lastResort, WarningHandler()
    try:
        yield
    finally:
        logging.lastResort = before


def _status(run: Callable[[], Any], args: Sequence[str]) -> int:
    """Return the exit status of a command. Raise OutputLost if its output is lost."""
    try:
        result = run()
    except click.ClickException as error:
        error = _with_hint(error, args) if isinstance(error, click.NoSuchOption) else error
        text = io.StringIO()
        error.show(text)
        refuse(text.getvalue().rstrip("\n"), UsageError(error.format_message()))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if not _by_click(error):
            raise
        raise lost(error) from None
    return result if isinstance(result, int) else 0


def _with_hint(error: click.NoSuchOption, args: Sequence[str]) -> click.UsageError:
    """Suggest --set for an unknown option that is a key of the recipe, if the command accepts --set."""
    options = {param.name for param in error.ctx.command.params} if error.ctx is not None else set()
    if error.ctx is not None and error.ctx.parent is None and error.option_name in ("--json", "--quiet", "--progress"):
        return click.UsageError(f"No such option '{error.option_name}' here; write it after the command.", error.ctx)
    name = error.option_name.lstrip("-")
    key, value = split_target(name if "." in name else key_for(name) or "")
    if not key or "sets" not in options or name.replace("-", "_") in options:
        return error
    typed = next((place for place, arg in enumerate(args) if arg.partition("=")[0] == error.option_name), len(args))
    following = [*"".join(args[typed : typed + 1]).split("=", 1)[1:], *args[typed + 1 : typed + 2]]
    first = next((arg for arg in following[:1] if not arg.startswith("-")), "VALUE")
    hint = f"--set {shlex.quote(f'{key}={value or first}')}"
    return click.UsageError(f"No such option '{error.option_name}'. Did you mean {hint}?", error.ctx)


def _by_click(error: OSError) -> bool:
    """True if click itself failed to print (help and version)."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1].f_code is click.echo.__code__ if frames else False


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
) -> None:
    """Print tfkit's warnings in the style of its errors, others as Python does."""
    if issubclass(category, RecipeWarning):  # includes its own place
        text = str(message)
    elif issubclass(category, TfkitWarning):
        text = f"tfkit: {message}"
    else:
        text = warnings.formatwarning(message, category, filename, lineno).rstrip("\n")
    warn_wrapped(text, **message.fault.as_data() if isinstance(message, RecipeWarning) else {})


def complain(error: Exception) -> bool:
    """Print an error on standard error if the user can fix it: wrong input, or an exception in a custom part.

    Recipe faults are printed with their locations. Return False, printing nothing, for a bug in tfkit.
    """
    if isinstance(error, TfkitError):
        refuse(str(error) if isinstance(error, RecipeError) else f"tfkit: {error}", error)
        return True
    if isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort, OutputLost)):
        return False
    if is_out_of_memory(error):
        refuse(f"tfkit: out of memory: {' '.join(str(error).split()) or type(error).__name__}")
        return True
    from tfkit.core.blame import described, note

    message = described(error)
    if message is None:
        note(error)
        return False
    if os.environ.get(TRACEBACK):
        warn("".join(traceback.format_exception(error)))
    refuse(f"tfkit: {message}")
    return True


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="tfkit %(version)s")
def main() -> None:
    """Transformers from recipes: describe an architecture in a file, then check, train and use it."""


with_examples(main, "")
