"""Help: groups of commands, two examples of each that are right, and nothing heavy is imported for it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tfkit.cli.examples import EXAMPLES
from tfkit.cli.main import COMMANDS, GROUPS, main

from ..sampling import each
from .typed import typed

README = " ".join(Path(__file__).parents[2].joinpath("README.md").read_text().split())
QUICK = ("new", "recipes", "check", "show", "explain", "diff", "parts", "schema")  # `new` writes what the others read
LONGER = ("--verify",)  # of these commands
HEAVY = ("torch", "pydantic", "rich", "yaml", "einops", "numpy")
RECIPES = ("check", "show", "train", "evaluate", "generate")  # commands that take a recipe or a run


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command and subcommand; none of `tfkit` itself."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


PATHS = list(commands(main))


def test_every_command_is_in_a_group_and_in_one_alone() -> None:
    assert list(GROUPS) == ["Recipes", "Training", "Using", "Comparing", "Extending"]
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    text = typed("--help").stdout
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_help_ends_with_two_examples() -> None:
    assert sorted(EXAMPLES) == sorted(map(" ".join, PATHS))

    def check(*path: str) -> None:
        lines = typed(*path, "--help").stdout.rstrip().splitlines()
        assert lines[-3].strip() == "Examples:"
        statuses = " ".join(map(str.strip, lines[-6:-4]))
        assert statuses.startswith("Exit status: 0 done; 1") and statuses.removeprefix("Exit status: ") in README
        assert [line.strip() for line in lines[-2:]] == [f"tfkit {line}" for line in EXAMPLES[" ".join(path)]]
        assert all(len(line) <= 80 for line in lines)
        if path in [(name,) for name in RECIPES]:
            assert all(any(option in line for line in lines) for option in ("--trust", "--import", "--set"))
        if path:
            assert all(line.split()[: len(path)] == list(path) for line in EXAMPLES[" ".join(path)])

    each(PATHS, check)


def test_an_example_is_parsed() -> None:
    def check(line: str) -> None:
        command: click.Command = main
        words, parent = shlex.split(line), click.Context(main, info_name="tfkit")
        while isinstance(command, click.Group):
            name, found, words = command.resolve_command(parent, words)
            assert found is not None
            command = found
            if not isinstance(command, click.Group):
                command.make_context(name, list(words), parent=parent)  # raises a UsageError

    each([line for lines in EXAMPLES.values() for line in lines], check)


def test_quick_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in [line for name in QUICK for line in EXAMPLES[name] if not any(word in line for word in LONGER)]:
        found = typed(*shlex.split(line))
        assert found.exit_code == 0, (line, found.output)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tfkit.cli.main import main\n"
        "import tfkit.cli.train, tfkit.cli.show, tfkit.cli.check, tfkit.cli.parts\n"
        f"main(['--help'], standalone_mode=False); sys.exit(str([n for n in {HEAVY} if n in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "check" in result.stdout and result.stderr.strip() == "[]"
