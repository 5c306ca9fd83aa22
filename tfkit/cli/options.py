"""Options shared by several commands."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tfkit.cli.completion import KEY, ParamType
from tfkit.core.bounds import ROWS, Bound
from tfkit.core.errors import UsageError, on_one_line
from tfkit.core.rooms import page

if TYPE_CHECKING:
    from tfkit.recipe.load import Recipe
    from tfkit.run import Run

Function = Callable[..., object]  # a command function
Decorator = Callable[[Function], Function]


class Whole(ParamType):
    """Integer from `least` to a bound of core/bounds.py; the error message names the range."""

    name = "n"

    def __init__(self, bound: Bound, least: int = 1) -> None:
        self.bound, self.least = bound, least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert `value` to an integer; click reports failures."""
        try:
            number = int(str(value).replace("_", "").replace(",", ""))
        except ValueError:
            number = self.least - 1
        if not self.least <= number <= self.bound.most:
            got = repr(on_one_line(str(value), 60))
            self.fail(f"expected a whole number from {self.least} to {self.bound.most:,}, got {got}", param, ctx)
        return number


class Finite(click.FloatRange):
    """Finite number in a range. click's own range lets NaN pass."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert `value` to a number; click reports failures."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {on_one_line(str(value), 60)!r}", param, ctx)
        return number


def _device(name: str) -> str:
    """Check a device name before any input is read. Raise UsageError, which is printed without click's usage lines."""
    from tfkit.core.options import check_device_name

    try:
        return check_device_name(name)
    except ValueError as error:
        raise UsageError(f"--device: {error}") from None


@dataclass(frozen=True)
class ReadOptions:
    """Command line settings for loading recipes and runs."""

    sets: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    trust: bool = False
    accept_changes: bool = False

    @property
    def words(self) -> list[str]:
        """The arguments that repeat these settings on a command line."""
        named = (("--variant", self.variants), ("--set", self.sets), ("--import", self.imports))
        words = [word for option, values in named for value in values for word in (option, value)]
        return [*words, *(["--trust"] if self.trust else [])]

    def recipe(self, source: str) -> Recipe:
        """Load a recipe by name or path. Raise RecipeError with every fault, or RunError for an unusable run."""
        from tfkit.recipe.load import load_recipe
        from tfkit.runs.folder import RunFolder
        from tfkit.runs.supply import downloaded_run, run_folder, saved_recipe
        from tfkit.runs.weights import is_weights_file, recipe_in
        from tfkit.storage.hub import is_on_hub

        if is_weights_file(source):
            return recipe_in(Path(source), self.imports, self.sets, self.variants)
        run = RunFolder(downloaded_run(source)) if is_on_hub(source) else run_folder(source)
        if run is not None:
            from tfkit.runs.folder import ENVIRONMENT, RESOLVED
            from tfkit.runs.record import warn_changed

            warn_changed(run, (RESOLVED, ENVIRONMENT))
            return saved_recipe(run, self.trust, self.imports, self.sets, self.variants)
        return load_recipe(source, variant=self.variants, trust=self.trust, sets=self.sets, imports=self.imports)

    def run(self, folder: str, device: str, quantize: str | None = None) -> Run:
        """Load the run in a folder. With `quantize`, `auto` selects the CPU, the only supported device."""
        from tfkit.run import load_run

        where = "cpu" if device == "auto" and quantize is not None else device
        return load_run(folder, self.trust, where, self.imports, self.sets, self.accept_changes)


PATH = click.Path(path_type=Path)
DEVICE = click.option(
    "--device",
    type=_device,
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Device: cpu, cuda, cuda:1; auto: CUDA if available.",
)
TRUST = click.option(
    "--trust", is_flag=True, help="Import the modules in the recipe's `imports:`, which runs their code."
)
IMPORTS = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="FILE_OR_MODULE",
    help="Import this module of custom parts first; repeatable.",
)
SETS = click.option(
    "--set",
    "sets",
    type=KEY,
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value, as in model.num_layers=4; repeatable.",
)
GENERATE_SETS = click.option(
    "--set",
    "sets",
    type=KEY,
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of data, objective or generation: generate.stop=[end_token, {type: time, seconds: 5}]; "
    "repeatable.",
)
BATCH = click.option("--batch", type=Whole(ROWS), default=1, show_default=True, help="Batch size.")
DTYPE = click.option(
    "--dtype",
    type=click.Choice(("float32", "bfloat16")),
    default="float32",
    show_default=True,
    help="Dtype of weights and activations.",
)
ACCEPT = click.option(
    "--accept-changes",
    is_flag=True,
    help="Accept files of the run that were replaced on purpose, and record their new hashes.",
)
OF_CODE = ("out", "inputs", "force")  # options that need --code
OF_COUNTS = ("length", "batch", "dtype", "data")  # options that have no effect on the code
VARIANTS = click.option(
    "--variant", "variants", multiple=True, metavar="NAME", help="Apply a variant of the recipe; repeatable."
)


def gathered(argument: str, make: Callable[..., object], *options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command.

    The command receives those that `make` has parameters for as one argument, made by it.
    """
    names = inspect.signature(make).parameters

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_argument(*args: object, **kwargs: object) -> object:
            own = {name: kwargs.pop(name) for name in names if name in kwargs}
            return function(*args, **{argument: make(**own)}, **kwargs)

        decorated: Function = with_argument
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


# decorators of commands, which receive these options as `reading`
reads_recipe = gathered("reading", ReadOptions, SETS, VARIANTS, IMPORTS, TRUST)
reads_run = gathered("reading", ReadOptions, IMPORTS, TRUST, ACCEPT)
sets_run = gathered("reading", ReadOptions, GENERATE_SETS, IMPORTS, TRUST, ACCEPT)


def check_code_options(code: bool) -> None:
    """Raise UsageError for an option on the command line that needs --code, or that --code would ignore."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        name = str(param.name)
        if name in (OF_COUNTS if code else OF_CODE) and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = param.opts[0]
            raise UsageError(f"{option} has no effect on --code; remove it" if code else f"{option} needs --code")


def printer() -> ModuleType:
    """Return the page that prints models as plain PyTorch. Raise UsageError if its room is cut off."""
    found = page("code")
    if found is None:
        raise UsageError("--code: this installation has no printer (tfkit/plain); reinstall tfkit")
    return found


def vocabulary_note(recipe: Recipe) -> str | None:
    """Return notes on unknown vocabulary or class counts, and on ids without a token."""
    notes = []
    bound = recipe.vocabulary_bound
    if recipe.unknown_vocab:
        bounds = [] if recipe.data is None else [one.vocabulary_bound for one in recipe.data.tokenizers().values()]
        counted = " and ".join("1 token" if most is None else f"the maximum of {most:,} tokens" for most in bounds)
        what = (
            "vocabularies unknown until the tokenizers are"
            if len(bounds) > 1
            else "vocabulary unknown until the tokenizer is"
        )
        notes.append(f"{what} trained: costs assume {counted}")
    elif bound is not None and (size := recipe.blueprint().last.vocab_size or 0) > bound:
        notes.append(
            f"the tokenizer has at most {bound:,} tokens: {size - bound:,} of {size:,} ids are never generated"
        )
    if recipe.unknown_labels:
        notes.append("number of classes unknown until the corpus is read: costs assume 1 class")
    return "; ".join(notes) or None
