"""An exception in somebody's own part: the command line tells its file and line, Python adds a note that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfkit
from tfkit.cli.main import main
from tfkit.core.blame import blame, note, own_parts
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY

from ..sampling import looped

# each part fails where its text says so; the line of each failure stands in its comment
PARTS = """\
import torch, tfkit
from pydantic import model_validator
from tfkit.components.feedforward import FeedForward
from tfkit.components.norm import Norm
from tfkit.data.corpus import Corpus
from tfkit.training.metric import TextMetric
from tfkit.training.objective import CausalLm

class Lost(Exception): ...

def fail(where):
    if WHERE == where:
        raise Lost(f"no {where}\\nat all")

@tfkit.register("feedforward", "mine")
class Mine(FeedForward):
    class Config(FeedForward.Config):
        size: int = 1

        @model_validator(mode="after")
        def _checked(self):
            fail("validator")
            return self

        def check(self, shape):
            fail("check")
            return ()

    def __init__(self, config, shape):
        super().__init__(config, shape)
        fail("constructor")
        self.up = torch.nn.Linear(shape.d_model, shape.d_model)

    def forward(self, x, context):
        fail("forward")
        if WHERE == "torch":
            x @ torch.ones(1, 2)
        return None if WHERE == "nothing" else self.up(x)

@tfkit.register("corpus", "my_texts")
class Texts(Corpus):
    fields = ("text",)

    def read(self):
        fail("corpus")
        yield from ({"text": "abc " * n} for n in range(1, 9))

@tfkit.register("objective", "my_lm")
class Mine2(CausalLm):
    def loss(self, model, batch, training):
        fail("objective")
        return super().loss(model, batch, training)

@tfkit.register("metric", "my_score")
class Score(TextMetric):
    def compare(self, outputs, references):
        fail("metric")
        return 1.0
"""
RECIPE = """\
tfkit: 1
imports: [parts.py]
model:
  type: decoder
  d_model: 8
  vocab_size: tokenizer
  num_layers: 1
  max_length: 64
  embedding: tokens
  position: sinusoidal
  layer:
    norm: layer_norm
    attention: {type: multi_head, num_heads: 2}
    feedforward: {type: mine, size: 2}
  head: language_model
data:
  tokenizer: character
  train: my_texts
  valid: my_texts
objective: my_lm
train: {device: cpu, steps: 1, samples: 0, schedule: {type: constant, lr: 0.01}}
generate: {max_new_tokens: 3}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a recipe, and a run of it whose parts were sound then."""
    place = tmp_path_factory.mktemp("own")
    (place / "mine.yaml").write_text(RECIPE)
    fails(place, "")
    with REGISTRY.recording() as entries:
        tfkit.train(place / "mine.yaml", out=place / "run", progress=False, trust=True)
    yield place
    REGISTRY.take_back(iter(entries))


@pytest.fixture
def folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setattr("tfkit.recipe.imports._IMPORTED", {})  # what a test registered is gone after it
    return place


def fails(folder: Path, where: str) -> Path:
    """Parts that fail there."""
    file = folder / "parts.py"
    file.write_text(f"WHERE = {where!r}\n" + PARTS)
    return file


def tfkit_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


# where it fails, the command, and what the part is called
CASES = [
    ("validator", ["check", "mine.yaml"], "feedforward 'mine'"),
    ("check", ["check", "mine.yaml"], "feedforward 'mine'"),
    ("constructor", ["check", "mine.yaml"], "feedforward 'mine'"),
    ("constructor", ["show", "mine.yaml"], "feedforward 'mine'"),
    ("forward", ["show", "mine.yaml"], "feedforward 'mine'"),
    ("corpus", ["train", "mine.yaml", "--out", "other", "--force"], "corpus 'my_texts'"),
    ("objective", ["train", "mine.yaml", "--out", "other", "--force"], "objective 'my_lm'"),
    ("forward", ["train", "mine.yaml", "--out", "other", "--force"], "feedforward 'mine'"),
    ("forward", ["generate", "run", "a"], "feedforward 'mine'"),
    ("forward", ["generate", "run", "a", "--stream"], "feedforward 'mine'"),
    ("corpus", ["evaluate", "run"], "corpus 'my_texts'"),
    ("forward", ["embed", "run", "mine.yaml"], "feedforward 'mine'"),
]


@looped(("where", "line", "part"), CASES)
def test_its_file_and_line_are_told(
    where: str, line: list[str], part: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfkit.recipe.imports._IMPORTED", {})  # as in a new process
    with REGISTRY.recording() as entries:
        told_of(where, line, part, folder)
    REGISTRY.take_back(iter(entries))


def told_of(where: str, line: list[str], part: str, folder: Path) -> None:
    fails(folder, where)
    result = tfkit_command(*line, "--import", "parts.py")
    assert result.exit_code == 2, result.output
    told = result.stderr.splitlines()[-1]
    # the innermost line of the part's module is where its helper raises
    assert told == f"tfkit: parts.py:14: in fail: Lost: no {where} at all (part {part})"
    assert "Traceback" not in result.output


def test_an_error_of_torch_is_told_where_the_part_called_it(folder: Path) -> None:
    fails(folder, "torch")
    result = tfkit_command("show", "mine.yaml", "--import", "parts.py")
    assert result.exit_code == 2
    assert re.fullmatch(r"tfkit: parts.py:38: in forward: \w+Error: .+\(part feedforward 'mine'\)\n", result.stderr), (
        result.stderr
    )


def test_every_recipe_is_checked_though_one_fails(folder: Path) -> None:
    fails(folder, "constructor")
    result = tfkit_command("check", "mine.yaml", "gpt2", "--import", "parts.py")
    assert result.exit_code == 2 and result.stdout.startswith("gpt2: ok"), result.output


def test_all_of_it_is_shown_where_that_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(folder, "forward")
    monkeypatch.setenv("TFKIT_TRACEBACK", "1")
    result = tfkit_command("show", "mine.yaml", "--import", "parts.py")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr and result.stderr.splitlines()[-1].startswith("tfkit: parts.py:14: in fail")


def test_a_mistake_that_shows_in_tfkit_itself_names_the_parts_in_use(folder: Path) -> None:
    fails(folder, "nothing")
    result = tfkit_command("show", "mine.yaml", "--import", "parts.py")
    assert isinstance(result.exception, TypeError)
    (told,) = result.exception.__notes__
    assert told.startswith("tfkit: registered custom parts may be the cause: ") and "--verify" in told


def test_a_mistake_of_tfkits_stays_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("tfkit.reports.counts.count_parameters", broken)
    result = tfkit_command("check", "gpt2")
    assert isinstance(result.exception, ZeroDivisionError)
    told = getattr(result.exception, "__notes__", [""])
    assert told[0].startswith("tfkit: registered custom parts may be the cause") or not told[0]


def test_in_python_the_exception_goes_on_with_a_note(folder: Path) -> None:
    fails(folder, "forward")
    with pytest.raises(Exception, match="no forward") as raised:
        tfkit.train("mine.yaml", out="another", progress=False, trust=True)
    assert type(raised.value).__name__ == "Lost"
    assert raised.value.__notes__ == ["tfkit: parts.py:14: in fail, of the part feedforward 'mine'"]
    fails(folder, "constructor")
    recipe = tfkit.load_recipe("mine.yaml", overrides={"model.vocab_size": 9}, trust=True)
    with pytest.raises(Exception, match="no constructor") as raised:
        tfkit.build(recipe)
    assert len(raised.value.__notes__) == 1


def test_an_error_for_the_user_gets_no_note(folder: Path) -> None:
    fails(folder, "")
    tfkit.load_recipe("mine.yaml", trust=True)
    assert own_parts()
    error = UsageError("wrong")
    note(error)
    assert not hasattr(error, "__notes__")


def test_the_caller_is_not_to_blame() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        assert blame(error) is None
