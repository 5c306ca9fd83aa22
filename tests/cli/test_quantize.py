"""`tfkit quantize`: a run in int8 is loaded, measured, written with and exported; it is not trained."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from tfkit.cli.main import main
from tfkit.core.errors import RunError
from tfkit.generation.products import Int8
from tfkit.run import load_run
from tfkit.training.folder import WEIGHTS
from tfkit.training.weights import load_weights

from ..training.small import small, trained

UP = "decoder.layers.0.feedforward.up.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small run, and the same in int8."""
    place = tmp_path_factory.mktemp("quantize")
    trained(small(place), place / "run")
    made = tfkit_command("quantize", place / "run", place / "small", "--json")
    assert made.exit_code == 0, made.output
    (place / "told.json").write_text(made.stdout)
    return place / "run", place / "small"


def tfkit_command(*words: str | Path) -> Result:
    """The result of a command."""
    return CliRunner().invoke(main, [str(word) for word in words])


def test_matrices_are_int8_with_a_scale_a_row(folders: tuple[Path, Path]) -> None:
    before, after = (load_file(folder / WEIGHTS) for folder in folders)
    stored = [name for name, tensor in after.items() if tensor.dtype == torch.int8]
    assert {"decoder.embedding.tokens.weight", UP} <= set(stored)
    for name in before:
        if name not in stored:
            assert torch.equal(after[name], before[name])
            continue
        scale = after[f"{name}_scale"]
        assert (scale.dtype, scale.shape) == (torch.float32, before[name].shape[:1])
        assert bool(((after[name] * scale[:, None] - before[name]).abs() <= scale[:, None] * 0.501).all())


def test_it_tells_the_sizes_and_the_scores_before_and_after(folders: tuple[Path, Path]) -> None:
    run, small_run = folders
    told = json.loads((run.parent / "told.json").read_text())
    assert told["bytes"] == {
        "before": (run / WEIGHTS).stat().st_size,
        "after": (small_run / WEIGHTS).stat().st_size,
    }
    assert told["bytes"]["after"] < told["bytes"]["before"]
    scores = told["scores"]
    assert scores["loss"]["before"] == load_run(run).evaluate()["loss"]
    assert scores["loss"]["after"] == load_run(small_run).evaluate()["loss"] != scores["loss"]["before"]
    assert math.isclose(scores["loss"]["after"], scores["loss"]["before"], rel_tol=0.01)
    written = json.loads((small_run / "evaluation.json").read_text())
    assert written["valid"]["loss"] == scores["loss"]["after"]
    card = (small_run / "README.md").read_text()
    sizes = f"{told['bytes']['after']:,} bytes instead of {told['bytes']['before']:,}."
    assert f"Quantized to int8 from the run recipe: weights of {sizes}" in card
    assert f"| loss | {scores['loss']['before']:.4g} |" in card
    assert f"| valid | loss | {scores['loss']['after']:.4g} |" in card


def test_it_decodes_with_the_int8_that_is_stored(folders: tuple[Path, Path]) -> None:
    run, small_run = (load_run(folder) for folder in folders)
    assert small_run.generate("one two", 5) == run.generate("one two", 5, quantize="int8")
    assert small_run.decoder().quantize == "int8"
    assert run.decoder().quantize is None
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    products = [Int8(one.model.get_parameter(UP).detach(), None)(x, 3) for one in (run, small_run)]
    assert torch.allclose(*products, atol=1e-6)  # float32 rounds the scale once more


def _without_scale(tensors: Tensors) -> None:
    del tensors[f"{UP}_scale"]


def _with_nan(tensors: Tensors) -> None:
    tensors[f"{UP}_scale"][3] = math.nan


def _negative(tensors: Tensors) -> None:
    tensors[f"{UP}_scale"][0] *= -1


def _half(tensors: Tensors) -> None:
    tensors[f"{UP}_scale"] = tensors[f"{UP}_scale"].half()


def _short(tensors: Tensors) -> None:
    tensors[f"{UP}_scale"] = tensors[f"{UP}_scale"][:-1].clone()


def _unsigned(tensors: Tensors) -> None:
    tensors[UP] = tensors[UP].to(torch.uint8)


def _flat(tensors: Tensors) -> None:
    tensors[UP] = tensors[UP].flatten()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_scale, f"{UP} has no {UP}_scale"),
        (_with_nan, f"{UP}_scale holds NaN, infinite, zero or negative numbers"),
        (_negative, f"{UP}_scale holds NaN, infinite, zero or negative numbers"),
        (_half, f"{UP}_scale holds float16, expected float32"),
        (_short, rf"{UP}_scale has shape \[7\], expected \[8\]"),
        (_unsigned, f"{UP} holds uint8, expected float32"),
        (_flat, f"{UP} has 1 axes, expected 2"),
    ],
)
def test_a_file_from_elsewhere_is_refused_in_words(
    folders: tuple[Path, Path], tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    tensors = load_file(folders[1] / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(RunError, match=message):
        load_weights(load_run(folders[1]).model, tmp_path / WEIGHTS)


def test_it_is_neither_resumed_nor_started_from(folders: tuple[Path, Path], tmp_path: Path) -> None:
    small_run = folders[1]
    resumed = tfkit_command("train", folders[0] / "resolved.yaml", "--out", small_run, "--resume")
    assert resumed.exit_code == 2
    assert "contains int8 weights, which cannot be trained" in resumed.stderr
    again = tfkit_command("train", folders[0] / "resolved.yaml", "--out", small_run)
    assert "contains a run in int8; --force replaces it" in again.stderr
    (tmp_path / "mine.yaml").write_text(f"extends: {folders[0] / 'resolved.yaml'}\ntrain:\n  init_from: {small_run}\n")
    started = tfkit_command("train", tmp_path / "mine.yaml", "--out", tmp_path / "new")
    assert started.exit_code == 2
    assert f"mine.yaml:3:14: train.init_from: {small_run} contains quantized weights" in started.stderr
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_quantized_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run, small_run = folders
    for words, message in (
        ((small_run, tmp_path / "out"), "the weights are already in int8"),
        ((run, run, "--force"), "is the run itself"),
        ((run, run / "int8"), "is inside the run"),
        ((run, small_run), "--force replaces it"),
        ((run, tmp_path / "out", "--split", "tset"), "no split 'tset'"),
        ((tmp_path / "nothing", tmp_path / "out"), "no such folder"),
        ((run, tmp_path / "out", "--to", "int4"), "'int4'"),
    ):
        found = tfkit_command("quantize", *words)
        assert found.exit_code == 2
        assert message in found.stderr
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_into_the_run_itself(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run, link = folders[0], tmp_path / "link"
    link.symlink_to(run)
    before = sorted(run.rglob("*"))
    lines: list[tuple[Any, ...]] = [("quantize", run), ("export", run / WEIGHTS), ("export", run)]
    lines += [("export", run, "--to", "onnx")]
    for out in (run, run / "sub", link / "a" / "b", link / "a" / "..", f"{run}/../{run.name}/x"):
        for command, source, *options in lines:
            found = tfkit_command(command, source, out, "--force", *options)
            assert found.exit_code == 2 and "choose a folder outside it" in found.stderr, (out, options, found.output)
    assert sorted(run.rglob("*")) == before


def test_a_weight_that_is_not_finite_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders[0], broken)
    (broken / "SHA256SUMS").unlink()
    tensors = load_file(broken / WEIGHTS)
    tensors[UP][0, 0] = math.inf
    save_file(tensors, broken / WEIGHTS, {"tied": '{"head.output.weight": "decoder.embedding.tokens.weight"}'})
    found = tfkit_command("quantize", broken, tmp_path / "out")
    assert found.exit_code == 2
    assert f"{UP} contains NaN or infinite values, which cannot be quantized" in found.stderr


@pytest.mark.slow
def test_an_export_holds_the_stored_weights_as_floats(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the proof needs transformers, which the extra test brings")
    exported = tfkit_command("export", folders[1], tmp_path / "theirs")
    assert exported.exit_code == 0, exported.output
    verified = tfkit_command("verify", folders[1], "--against", tmp_path / "theirs", "--trust")
    assert verified.exit_code == 0, verified.output
