"""`tfkit new`: create a recipe or a part."""

from __future__ import annotations

import warnings
from pathlib import Path

import click

from tfkit.cli.options import ReadOptions, reads_recipe
from tfkit.cli.terminal import echo

DEFAULT = "translate-numbers"


@click.command("new")
@click.argument("name")
@click.option("--from", "source", metavar="RECIPE", help=f"Recipe to extend, by name or path.  [default: {DEFAULT}]")
@click.option("--part", "slot", metavar="SLOT", help="Write a part for this slot instead, with a test.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@reads_recipe
def command(name: str, source: str | None, slot: str | None, force: bool, reading: ReadOptions) -> None:
    """Write NAME.yaml, a recipe that extends another with the changes of --set and --variant.

    Relative paths are adjusted, and nothing is written unless the new recipe is valid. Without --from it extends
    translate-numbers, which needs no data and trains in minutes.

    With --part SLOT (attention, feedforward, metric, ...), write NAME.py, a small working part with comments on what to
    change, and test_NAME.py, which tests the part in a model.
    """
    if slot is None:
        _recipe(_file(name, (".yaml", ".yml"), force), source or DEFAULT, reading)
    elif source is not None or reading != ReadOptions():
        raise click.UsageError(
            "--part writes a part from a skeleton; the only other arguments that it accepts are NAME and --force"
        )
    else:
        _part(_file(name, (".py",), force), slot, force)


def _recipe(file: Path, source: str, reading: ReadOptions) -> None:
    from tfkit.core.errors import TfkitWarning
    from tfkit.recipe.derive import Derived
    from tfkit.storage.files import whole

    original = reading.recipe(source)  # reports every fault of the original and of the overrides with its location
    derived = Derived(source, file, reading.sets, reading.variants)
    text = derived.text()
    with whole(file) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
        alone = ReadOptions(imports=reading.imports, trust=reading.trust)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TfkitWarning)  # already shown for the original
            derived.check(alone.recipe(str(temporary)), original)
    echo(f"{file}: derived from {source}")
    echo(f"Next: tfkit {'show' if original.objective is None else 'train'} {file}")


def _part(file: Path, slot: str, force: bool) -> None:
    from tfkit.cli.skeleton import Skeleton
    from tfkit.storage.files import write_text

    skeleton = Skeleton.of(slot, file.stem)
    test = file.with_name(f"test_{file.name}")
    refuse(test, force)
    for path, text in ((file, skeleton.part()), (test, skeleton.test())):
        write_text(path, text)
    echo(f"{file}: a part for the slot {slot}; {test}: its test")
    echo("Next: " + "\n      ".join(skeleton.commands(file, test)))


def _file(name: str, endings: tuple[str, ...], force: bool) -> Path:
    """Return the path to write. Raise UsageError if it is invalid or exists."""
    path = Path(name if name.endswith(endings) else name + endings[0])
    if not name.strip() or name.endswith(("/", "\\")) or path.stem in endings:
        raise click.UsageError(f"NAME must be a file name or path, got {name!r}")
    refuse(path, force)
    return path


def refuse(path: Path, force: bool) -> None:
    """Raise UsageError if the path is a folder, or exists without `force`."""
    from tfkit.core.errors import UsageError

    if path.is_dir():
        raise UsageError(f"{path}: is a folder")
    if path.exists() and not force:
        raise UsageError(f"{path}: already exists; choose another name, or replace it with --force")
