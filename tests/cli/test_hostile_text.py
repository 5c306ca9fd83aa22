"""Text of strangers, in files, names and arguments, never acts on the terminal that shows it."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import tfkit
from tests.training.small import RECIPE
from tfkit.cli.main import main
from tfkit.cli.terminal import echo_text
from tfkit.core.errors import Fault, Place, UsageError
from tfkit.core.output import json_line, printable

from ..sampling import looped

# clears the screen; the same in one character; shows the rest backwards; overwrites the line
EVIL = "x\x1b[2J\x9b2J\u202ey\rz"
SPELLED = "x\\x1b[2J\\x9b2J\\u202ey\\x0dz"
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def recipe(folder: Path) -> dict[str, Any]:
    """A classifier of texts whose labels, words and file names are a stranger's."""
    file = folder / f"{EVIL}.jsonl"
    rows = [{"text": f"a {EVIL}", "label": f"one {EVIL}"}, {"text": "b \u202e", "label": "two\x1b[0m"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus = {"type": "json_lines", "file": str(file), "fields": {"text": "text", "label": "label"}}
    model = {**RECIPE["model"], "type": "encoder", "head": {"type": "classifier", "num_classes": "labels"}}
    return {
        "tfkit": 1,
        "model": model,
        "data": {"tokenizer": "character", "train": corpus, "valid": corpus, "batch": {"size": 2}},
        "objective": "classification",
        "train": {"device": "cpu", "steps": 1, "samples": 0},
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stranger")


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return tfkit.train(recipe(place), out=place / f"run {EVIL}", progress=False).folder


def said(*arguments: object) -> str:
    """All that a command prints, of which nothing may act; what comes out of it is a message, not an exception."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    found = ACTING.search(result.output)
    assert found is None, f"{found[0]!r} in {result.output!r}"  # type: ignore[index]
    return result.output


def written(place: Path, name: str, data: Any) -> Path:
    file = place / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return file


def doors(place: Path, run: Path) -> Iterator[tuple[object, ...]]:
    """Lines with a stranger's text in them, or in a file that they read."""
    plain = recipe(place)
    mine = written(place, "mine.yaml", yaml.safe_dump(plain))
    for number, (path, value) in enumerate(
        (
            (("model", EVIL), 1),
            (("model", "type"), EVIL),
            (("model", "layer", "attention", "type"), EVIL),
            (("model", "layer", "attention", EVIL), 1),
            (("model", "d_model"), EVIL),
            (("data", "train", "file"), EVIL),
            (("data", "train", "fields", "text"), EVIL),
            (("objective",), EVIL),
            (("train", "device"), EVIL),
            (("train", "init_from"), EVIL),
            (("extends",), EVIL),
            (("imports",), [EVIL]),
            (("variants",), {EVIL: {"model.d_model": EVIL}}),
            (("data", "tokenizer"), {"type": "file", "file": EVIL}),
        )
    ):
        changed = json.loads(json.dumps(plain))
        at = changed
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        file = written(place, f"changed{number}.yaml", changed)
        yield "check", file
        yield "train", file, "--out", place / f"run{number}"
    yield "check", place / EVIL
    yield "check", mine, "--set", f"model.{EVIL}=1"
    yield "check", mine, "--set", f"model.d_model={EVIL}"
    yield "check", mine, "--variant", EVIL
    yield "check", mine, "--import", f"{EVIL}.py"
    yield "show", mine, "--length", EVIL
    yield "show", run
    yield "explain", mine, EVIL
    yield "explain", mine, "data.train.file"
    yield "diff", mine, "--set", f"data.train.file={EVIL}"
    yield "diff", mine, "--json", "--set", f"data.train.file={EVIL}"
    yield "parts", EVIL
    yield "parts", "norm", EVIL
    yield "parts", "--verify", written(place, f"{EVIL}.py", "import tfkit\ntfkit.register('norm', '\x1b[2J')\n")
    yield "new", place / f"{EVIL}/new", "--from", mine
    yield "new", place / EVIL, "--part", EVIL
    yield "new", place / f"part{EVIL}", "--part", "norm"
    yield "schema", "--out", place / EVIL / "schema.json"
    yield "train", mine, "--out", run
    yield "evaluate", run
    yield "evaluate", run, "--split", EVIL
    yield "predict", run, EVIL
    yield "predict", run, EVIL, "--json"
    yield "generate", run, EVIL
    yield "generate", run, EVIL, "--strategy", EVIL
    yield "embed", run, place / EVIL
    yield "export", run, place / f"out {EVIL}"
    yield "verify", run, "--against", place / EVIL
    yield "import", written(place, "theirs/config.json", {"model_type": EVIL}).parent
    yield "import", written(place, "other/config.json", {"model_type": "gpt2", EVIL: 1}).parent
    yield (EVIL,)
    yield "show", f"--{EVIL}"


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_door_lets_a_control_character_through(every: int, place: Path, run: Path) -> None:
    texts = [said(*line) for line in list(doors(place, run))[::every]]
    assert all(texts)
    assert sum("\\x1b[2J" in text for text in texts) > 0.7 * len(texts)  # or this test feeds nothing


def test_what_a_model_writes_is_spelled_out_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (True, False):
        monkeypatch.setattr("tfkit.cli.terminal.is_terminal", lambda stream, terminal=terminal: terminal)
        echo_text(EVIL, end="")
        assert capsys.readouterr().out == (SPELLED if terminal else EVIL)


def test_what_is_logged_is_printed_as_harmlessly(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("tfkit")

    def logged(*_: object, **__: object) -> None:
        logger.warning("left out: %s", EVIL)
        raise UsageError("enough")

    monkeypatch.setattr("tfkit.run.load_run", logged)
    monkeypatch.setattr(logger, "propagate", False)  # not to those that pytest listens with
    assert said("evaluate", run) == f"tfkit: left out: {SPELLED}\ntfkit: enough\n"


def test_what_a_run_wrote_about_itself_is_harmless_and_read_again(run: Path) -> None:
    log = (run / "train.log").read_bytes().decode()
    assert SPELLED in log and not ACTING.search(log)
    assert not ACTING.search((run / "resolved.yaml").read_text(encoding="utf-8").replace("\n", ""))
    assert tfkit.load_run(run).recipe.data.train.file.endswith(f"{EVIL}.jsonl")  # type: ignore[union-attr]


def test_data_is_printed_as_it_is_spelled_otherwise(run: Path) -> None:
    (row,) = [json.loads(line) for line in said("predict", run, "a", "--json").splitlines()]
    assert row["label"] in (f"one {EVIL}", "two\x1b[0m")
    assert json.loads(json_line({EVIL: ["\ud800", "ä"]})) == {EVIL: ["\ud800", "ä"]}
    assert json_line("ä\n") == '"ä\\n"'


def test_what_stays_and_what_is_spelled() -> None:
    assert printable("a\tb\nö 字 👩\u200d🔬 \u200f") == "a\tb\nö 字 👩\u200d🔬 \u200f"
    assert printable(EVIL) == SPELLED
    assert printable("\x00\x7f\x85\u2028\u2066\udcff") == "\\x00\\x7f\\x85\\u2028\\u2066\\udcff"
    assert printable(printable(EVIL)) == SPELLED


def test_an_error_is_harmless_in_python_too() -> None:
    assert str(UsageError(f"{EVIL}\nmore")) == f"{SPELLED}\nmore"
    fault = str(Fault(Place(f"a\n{EVIL}", 1, 2), EVIL, EVIL))
    assert not ACTING.search(fault) and "\n" not in fault


def calls(tree: ast.AST) -> Iterator[str]:
    """What is called in a source file, by its dotted name where that is plain."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@looped("room", ["cli", "reports", "training", "contracts", "run", "interop"])
def test_everything_is_printed_through_the_doors(room: str) -> None:
    root = Path(tfkit.__file__).parent / room
    for file in sorted(root.rglob("*.py")):
        if file.name == "example.py":  # a script that travels with an export
            continue
        text = file.read_text(encoding="utf-8")
        called = set(calls(ast.parse(text)))
        assert not called & {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}, file
        assert "Console" not in called or "from tfkit.core.figures import Console" in text, file
