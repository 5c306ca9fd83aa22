"""Help, and what is printed in 80 columns: right examples, whole words, short paths, nothing heavy imported."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tfkit.cli.main import COMMANDS, EXAMPLES, GROUPS, main
from tfkit.core.errors import PACKAGE, Place
from tfkit.core.output import counted
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.recipe.compose import shipped_recipes, shipped_tasks

from ..sampling import each, looped
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
    assert {group for _, group, _ in COMMANDS.values()} == set(GROUPS)
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
        "import tfkit.cli.training, tfkit.cli.recipes, tfkit.cli.parts\n"
        f"main(['--help'], standalone_mode=False); sys.exit(str([n for n in {HEAVY} if n in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "check" in result.stdout and result.stderr.strip() == "[]"


# --- 80 columns


WRONG = ("check", "gpt2", "--set", "model.layer.attention=linear", "--set", "model.position=rotary")


def test_the_matrix_breaks_no_word() -> None:
    printed = typed("parts", "--matrix", columns=80).stdout
    assert max(map(len, printed.splitlines())) <= 80
    for slot in ("objective", "metric", "attention", "strategy"):
        assert set(REGISTRY.names(slot)) <= set(printed.split())


def test_a_fault_is_wrapped_between_words_and_stays_whole() -> None:
    wide, narrow = typed(*WRONG, columns=1000), typed(*WRONG, columns=80)
    assert max(map(len, narrow.stderr.splitlines())) <= 80
    assert narrow.stderr.split() == wide.stderr.split()
    first, *more = narrow.stderr.splitlines()
    assert first.startswith(("--set model.position=rotary: ", "--set model.layer.attention=linear: "))
    assert all(line.startswith("    ") for line in more)


def test_a_fault_is_one_line_in_a_pipe_that_says_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert len(typed(*WRONG).stderr.splitlines()) == 1


def test_the_path_of_a_shipped_recipe_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = typed("explain", "gpt2", "model", columns=80).stdout
    assert "recipes/models/gpt2.yaml:8:9" in printed and str(PACKAGE.parent) not in printed
    assert str(Place(str(PACKAGE / "_recipes" / "tasks" / "names.yaml"), 2, 3)) == "recipes/tasks/names.yaml:2:3"
    assert str(Place(str(tmp_path / "gpt2.yaml"), 2, 3)) == f"{tmp_path}/gpt2.yaml:2:3"


@looped(
    "arguments",
    [
        ("recipes",), ("parts",), ("parts", "attention"), ("parts", "attention", "multi_head"), ("parts", "--matrix"),
        ("show", "gpt2"), ("show", "t5-small"), ("explain", "gpt2", "model"), ("explain", "gemma-3-1b", "model.layer"),
        ("explain", "translate-numbers", "train"), ("diff", "gpt2", "bert-base"), ("check", "gpt2"), ("--help",),
        ("new", "--help"),
    ],
)  # fmt: skip
def test_lines_fit_and_end_without_blanks(arguments: tuple[str, ...]) -> None:
    result = typed(*arguments, columns=80)
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.splitlines() if line != line.rstrip() or len(line) > 80] == []


def test_recipes_lists_all_or_those_with_a_word() -> None:
    assert set(shipped_recipes()) <= set(typed("recipes", columns=80).stdout.split())
    some = typed("recipes", "Caption", columns=80).stdout
    assert re.search(r"^tasks: [\s\S]*\n  multi30k  +The original architecture", some) and "gpt2" not in some
    nothing = typed("recipes", "xyzzy", columns=80)
    assert nothing.exit_code == 2 and "no shipped recipe has 'xyzzy'" in nothing.stderr


@looped(("word", "meant"), [("bert", "bert-docstrings"), ("gpt", "gpt-docstrings"), ("nmaes", "names"),
                            ("bert-base", "bert-docstrings")])  # fmt: skip
def test_train_suggests_what_trains(word: str, meant: str) -> None:
    result = typed("train", word, columns=80)
    assert meant in shipped_tasks()
    assert result.exit_code == 2 and f"Did you mean '{meant}'?" in " ".join(result.stderr.split())


def test_numbers_go_with_their_nouns() -> None:
    assert [counted(number, "example") for number in (0, 1, 2000)] == ["0 examples", "1 example", "2,000 examples"]


def test_byte_level_tokens_are_shown_as_text() -> None:
    Bpe = REGISTRY.get("tokenizer", "bpe")
    texts = ["für den Hund", "für die Katze"] * 9

    def tokens(**options: bool) -> list[str]:
        fitted: Tokenizer = Bpe.Config.model_validate({"vocab_size": 300, **options}).build().fit(texts)
        return [fitted.readable_token(id_) for id_ in fitted.encode("für den Hund")]

    assert "".join(tokens(byte_level=True)).strip() == "für den Hund"
    assert "".join(tokens()).replace("▁", " ").strip() == "für den Hund"
