"""`tfkit generate`: its forms of output, its short options, what is typed, and what is wrong with any of it."""

from __future__ import annotations

import builtins
import fcntl
import json
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

import tfkit
from tfkit.cli.writing import _quoted, converse
from tfkit.core.errors import UsageError

from ..sampling import looped
from .typed import refused, typed

generate = partial(typed, "generate")


@pytest.fixture
def run(writer: Path) -> Path:
    return writer


def test_one_output_for_each_text_in_pieces_or_whole(run: Path) -> None:
    whole = generate(run, "The ", "a")
    assert (whole.exit_code, whole.stderr) == (0, "")
    assert whole.stdout.splitlines() == tfkit.load_run(run).generate(["The ", "a"])
    assert generate(run, "The ", "a", "--stream").stdout == whole.stdout
    lines = "The \na\nThe \n"
    answered = generate(run, stdin=lines)
    assert len(answered.stdout.splitlines()) == 3
    assert generate(run, "--stream", stdin=lines).stdout == answered.stdout
    assert generate(run, "--batch-size", "1", stdin=lines).stdout == answered.stdout


LETTERS = ", ".join(f"'{letter}'" for letter in "abcdefghijklmnopqrstuvwxyz")
WORDS = ("--set", "generate.logits=[{type: regex, pattern: '[a-z]{8}'}]")
STOPPED = (*WORDS, "--set", f"generate.stop=[{{type: strings, strings: [{LETTERS}], keep: true}}]")


@looped("form", [(), ("--stream",), ("--jsonl",), ("--num-beams", "2", "--n-best", "2")])
def test_a_text_that_its_rules_do_not_allow_is_told_by_the_exit_status(run: Path, form: tuple[str, ...]) -> None:
    pytest.importorskip("llguidance")
    for stdin, where in ((None, "prompt 2"), ("The \na\n", "standard input, line 2")):
        told = generate(run, *(("The ", "a") if stdin is None else ()), *STOPPED, *form, stdin=stdin)
        assert told.exit_code == 1
        assert f"tfkit: {where}: the text is cut off: it ended before it satisfied generate.logits" in told.stderr
        texts = [json.loads(line) for line in told.stdout.splitlines()] if form == ("--jsonl",) else []
        assert all(text["cut"] is True and len(text["text"]) == 1 for text in texts)
        assert len(told.stdout.splitlines()) == (4 if "--n-best" in form else 2)


def test_a_text_that_its_rules_allow_fits_into_its_room(run: Path) -> None:
    pytest.importorskip("llguidance")
    whole = generate(run, "The ", "a", *WORDS, "--max-new-tokens", "8", "--jsonl")
    assert whole.exit_code == 0 and whole.stderr == ""
    assert [len(json.loads(line)["text"]) for line in whole.stdout.splitlines()] == [8, 8]
    short = generate(run, "The ", *WORDS, "--max-new-tokens", "7")
    assert short.exit_code == 2
    assert "the shortest allowed text takes 8 tokens, but the limit is 7" in short.stderr


def test_json_lines_say_all_of_every_candidate(run: Path) -> None:
    out = generate(run, "The ", "a", "--num-beams", "3", "--n-best", "2", "--jsonl").stdout
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == ["The ", "The ", "a", "a"]
    found = tfkit.load_run(run).candidates(["The ", "a"], strategy={"type": "beam", "num_beams": 3, "n_best": 2})
    flat = [candidate for candidates in found for candidate in candidates]
    for row, candidate in zip(rows, flat, strict=True):
        assert set(row) == {"prompt", "text", "ids", "tokens", "log_probability", "score"}
        assert (row["text"], row["ids"], row["score"]) == (candidate.text, list(candidate.ids), candidate.score)
        assert row["log_probability"] == candidate.log_probability and len(row["tokens"]) == len(row["ids"])
    texts = generate(run, "The ", "a", "--num-beams", "3", "--n-best", "2").stdout
    assert texts.splitlines() == [candidate.text for candidate in flat]


@looped(
    ("words", "said"),
    [
        ("--num-beams 3", ["strategy={type: beam, num_beams: 3}"]),
        ("--strategy beam --num-beams 3", ["strategy={type: beam, num_beams: 3}"]),
        ("--strategy sample --seed 4", ["strategy=sample", "seed=4"]),
        ("--temperature 0.6 --seed 4", ["strategy=sample", "seed=4", "logits={type: temperature, temperature: 0.6}"]),
        (
            "--top-p 0.9 --top-k 5 --seed 4",
            ["strategy=sample", "seed=4", "logits=[{type: top_k, k: 5}, {type: top_p, p: 0.9}]"],
        ),
        ("--max-new-tokens 3", ["max_new_tokens=3"]),
    ],
)
def test_short_options_stand_for_what_a_recipe_says(run: Path, words: str, said: list[str]) -> None:
    sets = [word for text in said for word in ("--set", f"generate.{text}")]
    assert generate(run, "The ", "a", *words.split()).stdout == generate(run, "The ", "a", *sets).stdout


def test_a_short_option_changes_what_the_recipe_says_and_keeps_the_rest(run: Path) -> None:
    rules = "generate.logits=[{type: temperature, temperature: 1000.0}, {type: top_k, k: 3}]"
    settled = ["--set", "generate.strategy={type: sample, n_best: 2}", "--set", rules, "--seed", "4"]
    changed = ["--set", rules.replace("1000.0", "0.001"), *settled[:2], "--seed", "4"]
    assert generate(run, "a", *settled, "--temperature", "0.001").stdout == generate(run, "a", *changed).stdout
    assert generate(run, "a", *settled, "--temperature", "0.001").stdout != generate(run, "a", *settled).stdout
    assert len(generate(run, "a", *settled, "--n-best", "3").stdout.splitlines()) == 3
    beams = ["--set", "generate.strategy={type: beam, num_beams: 2, length_penalty: -3.0}"]
    longer = generate(run, "a", *beams, "--num-beams", "4", "--jsonl").stdout
    same = ["--set", beams[1].replace("num_beams: 2", "num_beams: 4")]
    assert longer == generate(run, "a", *same, "--jsonl").stdout


@looped(
    ("words", "message"),
    [
        ("--temperature 0", "--temperature 0: generate.logits.temperature: temperature must be at least"),
        ("--temperature -1", "--temperature -1: generate.logits.temperature: "),
        ("--temperature nan", "--temperature nan: generate.logits.temperature: "),
        ("--temperature hot", "'hot' is not a valid float"),
        ("--top-k 0", "expected a whole number from 1 to 2,147,483,648, got '0'"),
        ("--top-k 5000", "generate.logits: top_k: k: 5000 exceeds the vocabulary of"),
        ("--top-p 1.5", "--top-p 1.5: generate.logits.p: must be at most 1"),
        ("--seed -1", "expected a whole number from 0 to 4,294,967,295, got '-1'"),
        ("--seed 1", "--seed 1: strategy 'greedy' does not sample; use --strategy sample"),
        ("--n-best 2", "--n-best 2: strategy 'greedy' has no option n_best; supported by: "),
        ("--num-beams 2 --n-best 5", "--num-beams 2 --n-best 5: generate.strategy: n_best 5"),
        ("--num-beams 2 --temperature 1", "generate.logits: temperature affects sampling, but beam does not sample"),
        ("--strategy sample --num-beams 2", "--num-beams 2: strategy 'sample' has no option num_beams"),
        ("--strategy sampel", "--strategy sampel: generate.strategy.type: unknown strategy 'sampel'. Did you mean"),
        ("--strategy beam --set generate.strategy=sample", "--strategy beam and --set generate.strategy=sample both"),
        ("--num-beams 2 --set generate.strategy=greedy", "--num-beams 2: strategy 'greedy' has no option num_beams"),
        ("--stream --num-beams 2", "beam cannot stream, because its text is only known at the end"),
        (
            "--stream --jsonl --batch-size 2",
            "while it is generated; remove --json and --batch",
        ),
        ("--set model.d_model=3", "--set model.d_model=3: the run is already trained"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(run: Path, words: str, message: str) -> None:
    assert message in refused("generate", run, "The ", *words.split())


@looped("stream", [[], ["--stream"]])
def test_the_message_says_which_prompt_is_wrong(run: Path, stream: list[str]) -> None:
    said = "tfkit: prompt 2 has 60 tokens, but this model reads at most 40; shorten it\n"
    assert refused("generate", run, "The ", "a" * 60, *stream) == said  # the first is not written either
    result = generate(run, *stream, stdin="a\n" * 66 + "a" * 60)
    assert result.exit_code == 2 and len(result.stdout.splitlines()) in (64, 66)
    said = "tfkit: standard input, line 67: the prompt has 60 tokens, but this model reads at most 40; shorten it\n"
    assert result.stderr == said


@looped(
    ("prompt", "said"),
    [
        ("\u3000", "an empty text"),
        ("a \u3000a", "'\\u3000'"),
        ("a\u3000", "'\\u3000'"),
        ("\x00", "'\\x00'"),
        ("☃ Ω ☃", "'☃', 'Ω'"),
    ],
)
def test_what_is_unknown_is_named_once_though_it_is_not_seen(prompt: str, said: str, run: Path) -> None:
    for words, stdin in (([prompt], None), ([], f"a\n{prompt}\n"))[: 1 if prompt == "\x00" else 2]:
        result = generate(run, "--max-new-tokens", "1", *words, stdin=stdin)
        assert result.stderr == f"tfkit: not in the vocabulary, read as <unk>: {said}\n"
    assert _quoted("x" * 30) == f"'{'x' * 30}'"
    assert _quoted("x" * 12_345) == f"'{'x' * 30}'... (12,345 characters)"


# --- on a terminal


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let somebody type lines, which may be exceptions."""

    def types(*lines: Any) -> None:
        left = iter(lines)

        def line(sign: str) -> str:
            assert sign == "> "
            value = next(left)
            if isinstance(value, BaseException):
                raise value
            return str(value)

        monkeypatch.setattr(builtins, "input", line)

    return types


@pytest.mark.parametrize("leave", [EOFError(), KeyboardInterrupt()])
def test_texts_are_asked_for_until_somebody_leaves(
    typing: Callable[..., None], leave: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    def answer(text: str) -> None:
        heard.append(text)
        if text == "wrong":
            raise UsageError("this is wrong")
        if text == "long":
            raise KeyboardInterrupt

    typing("one", "", "wrong", "long", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), " two", leave)
    converse(answer)
    assert heard == ["one", "wrong", "long", " two"]
    assert capsys.readouterr() == ("\n\n", "tfkit: this is wrong\ntfkit: the input is not UTF-8 text\n")


def test_a_terminal_is_answered_in_pieces_where_that_is_possible(
    run: Path, typing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfkit.cli.writing.on_terminal", lambda: True)
    expected = tfkit.load_run(run).generate("The ")[0]
    for options in ([], ["--num-beams", "2"]):
        typing("The ", "a" * 60, EOFError())
        result = generate(run, *options)
        assert result.exit_code == 0 and (options or result.stdout == f"{expected}\n\n")
        assert result.stderr == "tfkit: prompt 1 has 60 tokens, but this model reads at most 40; shorten it\n"


def unread(pipe: IO[bytes]) -> int:
    """How many bytes of what was written nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"    "))[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_ctrl_c_ends_with_130(run: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "tfkit", "generate", str(run), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(b"The \n")
        process.stdin.flush()
        while unread(process.stdin) and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == b"tfkit: interrupted\n"
