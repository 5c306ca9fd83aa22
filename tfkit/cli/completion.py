"""`tfkit completion`, and the words that it completes: recipes, runs and keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from tfkit.cli.terminal import echo, echo_data

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # not generic in older releases
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


class Completed(ParamType):
    """Text that a shell completes from the words that `suggest` returns for its beginning, else from file names."""

    name = "text"

    def __init__(self, suggest: Callable[[str], Iterable[str]], files: bool = True) -> None:
        self.suggest, self.files = suggest, files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words with this beginning."""
        found = [CompletionItem(word) for word in self.suggest(incomplete) if word.startswith(incomplete)]
        return found or ([CompletionItem(incomplete, type="file")] if self.files else [])


def recipes(beginning: str) -> Iterable[str]:
    """Return the names of the shipped recipes and the run folders, which most commands take too."""
    from tfkit.recipe.compose import shipped_recipes

    return [*shipped_recipes(), *runs(beginning)]


def runs(beginning: str) -> Iterable[str]:
    """Yield the run folders that are one level below the folder that is typed, and below runs."""
    for place in {os.path.dirname(beginning), "runs"}:
        for file in sorted(Path(place).glob("*/resolved.yaml")):
            yield os.path.join(place, file.parent.name)


def keys(beginning: str) -> Iterable[str]:
    """Return the keys of a recipe with `=`; sections whose keys follow end with a dot."""
    from tfkit.recipe.keys import LAYER, MODEL, STACK, TOP
    from tfkit.recipe.schema import SECTIONS

    groups: dict[str, Iterable[str]] = {"": TOP, "model.": {**MODEL, **STACK}, "model.layer.": LAYER}
    groups |= {f"{name}.": section.model_fields for name, section in SECTIONS.items()}
    names = (f"{above}{name}" for above, group in groups.items() for name in group)
    return (f"{name}." if f"{name}." in groups else f"{name}=" for name in names)


RECIPE, RUN, KEY = Completed(recipes), Completed(runs), Completed(keys, files=False)


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(SHELLS)))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, recipes, runs and keys.

    bash: eval "$(tfkit completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: tfkit completion fish | source.
    """
    script = SHELLS[shell](click.Command("tfkit"), {}, "tfkit", "_TFKIT_COMPLETE").source()
    echo_data({"shell": shell, "script": script}, lambda _: echo(script))
