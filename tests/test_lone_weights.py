"""A weights file without its run: its metadata contains the recipe, as data that runs no code."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tests.interop.made import command
from tests.sampling import each
from tests.training.small import RECIPE, small
from tfkit.core.errors import RecipeError, RunError, TfkitError, UsageError
from tfkit.runs.weights import ENTRY, Weights, entry_of, load_weights, recipe_in
from tfkit.training.publish import mean

IDS: dict[str, Any] = {"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 20}}


def alone(folder: Path, **model: Any) -> tuple[tfkit.Run, Path]:
    """A run, and a copy of its file of weights in an empty folder."""
    recipe = tfkit.load_recipe({**IDS, "model": {**IDS["model"], **model}})
    run = tfkit.save(tfkit.build(recipe, seed=3), recipe, None, folder / "run")
    (folder / "empty").mkdir()
    return run, Path(shutil.copyfile(run.weights, folder / "empty" / "mine.safetensors"))


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change tfkit's entry of a file's metadata; a text that is returned takes its place, an empty one removes it."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    entry = json.loads(header["__metadata__"][ENTRY])
    changed = change(entry)
    header["__metadata__"] = {ENTRY: json.dumps(entry) if changed is None else changed} if changed != "" else {}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def test_the_model_comes_from_the_file_alone(tmp_path: Path) -> None:
    run, file = alone(tmp_path)
    shutil.rmtree(tmp_path / "run")
    found, ids = tfkit.load_run(file), torch.tensor([[1, 2, 3]])
    assert found.blueprint == run.blueprint and found.recipe.name == "mine"
    assert torch.equal(found.model(ids).logits, tfkit.build(run.recipe, seed=3).eval()(ids).logits)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.full
def test_the_commands_take_it(tmp_path: Path) -> None:
    _, file = alone(tmp_path)
    assert "mine: decoder" in command("show", file).output
    assert "d_model: " in command("diff", file, "gpt2").output
    for words, message in (
        (("generate", file, "a"), "has no tokenizer: this run works on ids (run.model), not on texts"),
        (("evaluate", file), "the recipe has no data"),
        (("quantize", file, tmp_path / "small"), "is only a weight file, not a run folder; use a run folder"),
    ):
        result = command(*words)
        assert (result.exit_code, result.stderr) == (2, f"tfkit: {file}: {message}\n")
    assert not (tmp_path / "small").exists()


@pytest.mark.full
def test_every_file_of_weights_holds_it(tmp_path: Path) -> None:
    run = tfkit.train(small(tmp_path), tmp_path / "run", progress=False)
    files = sorted((tmp_path / "run").glob("checkpoints/*/model.safetensors"))
    assert files
    for file in (run.weights, *files):
        assert recipe_in(file).blueprint() == run.blueprint
    mean(files).save(tmp_path / "mean.safetensors")
    assert tfkit.load_run(tmp_path / "mean.safetensors").model.blueprint == run.blueprint
    command("quantize", run.folder, tmp_path / "small", "--limit", "2")
    small_file = tfkit.load_run(tmp_path / "small" / "model.safetensors")
    assert small_file.stores_int8 and small_file.model.blueprint == run.blueprint


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    run, file = alone(tmp_path)
    Weights.of(run.model).save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()
    Weights.read(file).save(tmp_path / "read.safetensors")
    assert (tmp_path / "read.safetensors").read_bytes() == file.read_bytes()


def test_a_file_of_an_older_version_loads_with_its_run_only(tmp_path: Path) -> None:
    run, file = alone(tmp_path)
    rewrite(file, lambda entry: "")
    with pytest.raises(RunError, match=r"mine\.safetensors: contains no recipe: .* load its run folder"):
        tfkit.load_run(file)
    load_weights(tfkit.build(run.recipe), file)


def deeper(entry: dict[str, Any]) -> None:
    entry["recipe"]["model"]["num_layers"] = 5


def extended(entry: dict[str, Any]) -> None:
    entry["recipe"]["extends"] = "gpt2"


def test_a_damaged_recipe_is_refused(tmp_path: Path) -> None:
    _, file = alone(tmp_path)
    whole = file.read_bytes()

    def refused(change: Callable[[dict[str, Any]], Any], message: str) -> None:
        file.write_bytes(whole)
        rewrite(file, change)
        with pytest.raises(RunError, match=message) as error:
            tfkit.load_run(file)
        assert str(error.value).startswith(f"{file}: ")

    changed, damaged = "its recipe has changed since it was written", "metadata cannot be read; the file is damaged"
    each([(deeper, changed), (extended, changed), (lambda entry: entry.update(recipe=3), changed)], refused)
    each([(lambda _, text=text: text, damaged) for text in ("[" * 100_000, "[1]", "{")], refused)


def other(entry: dict[str, Any], **model: Any) -> None:
    """The entry of another model."""
    entry |= entry_of(tfkit.load_recipe({**IDS, "model": {**IDS["model"], **model}}).blueprint())


def test_tensors_that_do_not_fit_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    _, file = alone(tmp_path)
    rewrite(file, lambda entry: other(entry, d_model=2**20, layer={**IDS["model"]["layer"], "feedforward": "none"}))
    with pytest.raises(TfkitError, match=r"mine\.safetensors: does not fit its recipe: .* has shape .* expected shape"):
        _ = tfkit.load_run(file).model
    rewrite(file, lambda entry: other(entry, num_layers=3))
    with pytest.raises(RunError, match=r"does not fit its recipe: decoder\.layers\.\d\..* is missing, expected shape"):
        _ = tfkit.load_run(file).model


def test_a_part_of_ones_own_needs_its_file(tmp_path: Path) -> None:
    code = tmp_path / "parts.py"
    code.write_text(
        "import torch, tfkit\nfrom tfkit.components.activation import Activation\n"
        '@tfkit.register(\'activation\', \'lone_square\')\nclass LoneSquare(Activation):\n    """x * x."""\n'
        "    def forward(self, x):\n        return x * x\n"
    )

    def square(entry: dict[str, Any]) -> None:
        entry["recipe"]["model"]["layer"]["feedforward"]["activation"] = {"type": "lone_square"}
        text = json.dumps(entry["recipe"], sort_keys=True)
        entry["recipe_sha256"] = hashlib.sha256(text.encode()).hexdigest()

    _, file = alone(tmp_path)
    rewrite(file, square)
    with pytest.raises(RecipeError, match=r"mine\.safetensors: .*activation\.type: unknown activation 'lone_square'"):
        tfkit.load_run(file, trust=True)
    assert tfkit.load_run(file, imports=[code]).model is not None


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nothing\.safetensors: no such file"):
        tfkit.load_run(tmp_path / "nothing.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 9)
    with pytest.raises(RunError, match=r"cut\.safetensors: not a complete safetensors file"):
        tfkit.load_run(tmp_path / "cut.safetensors")
    _, file = alone(tmp_path)
    with pytest.raises(UsageError, match=r"the run is already trained"):
        tfkit.load_run(file, sets=["model.d_model=3"])
