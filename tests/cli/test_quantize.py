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
from safetensors.torch import load_file, save_file

from tfkit.core.errors import RunError
from tfkit.generation.layers import Int8
from tfkit.run import load_run
from tfkit.runs.folder import WEIGHTS
from tfkit.runs.weights import load_weights

from ..sampling import each, looped
from ..training.small import small, trained
from .typed import refused, typed

UP = "decoder.layers.0.feedforward.up.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small run, and the same in int8."""
    place = tmp_path_factory.mktemp("quantize")
    trained(small(place), place / "run")
    made = typed("quantize", place / "run", place / "small", "--json")
    assert made.exit_code == 0, made.output
    (place / "told.json").write_text(made.stdout)
    return place / "run", place / "small"


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


SCALE = f"{UP}_scale"
CHANGES: list[tuple[Callable[[Tensors], object], str]] = [
    (lambda tensors: tensors.pop(SCALE), f"{UP} has no {SCALE}"),
    (lambda tensors: tensors[SCALE][3].fill_(math.nan), f"{SCALE} holds NaN, infinite, zero or negative numbers"),
    (lambda tensors: tensors[SCALE][0].mul_(-1), f"{SCALE} holds NaN, infinite, zero or negative numbers"),
    (lambda tensors: tensors.update({SCALE: tensors[SCALE].half()}), f"{SCALE} holds float16, expected float32"),
    (lambda tensors: tensors.update({SCALE: tensors[SCALE][:-1].clone()}), rf"{SCALE} has shape \[7\], expected \[8\]"),
    (lambda tensors: tensors.update({UP: tensors[UP].to(torch.uint8)}), f"{UP} holds uint8, expected float32"),
    (lambda tensors: tensors.update({UP: tensors[UP].flatten()}), f"{UP} has 1 axes, expected 2"),
]


@looped(("change", "message"), CHANGES)
def test_a_file_from_elsewhere_is_refused_in_words(
    folders: tuple[Path, Path], tmp_path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    tensors = load_file(folders[1] / WEIGHTS)
    change(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(RunError, match=message):
        load_weights(load_run(folders[1]).model, tmp_path / WEIGHTS)


def test_what_cannot_be_done_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run, small_run = folders
    resolved, mine, out = run / "resolved.yaml", tmp_path / "mine.yaml", tmp_path / "out"
    mine.write_text(f"extends: {resolved}\ntrain:\n  init_from: {small_run}\n")
    started = f"mine.yaml:3:14: train.init_from: {small_run} contains quantized weights"
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("train", resolved, "--out", small_run, "--resume"), "contains int8 weights, which cannot be trained"),
        (("train", resolved, "--out", small_run), "contains a run in int8; --force replaces it"),
        (("train", mine, "--out", out), started),
        (("quantize", small_run, out), "the weights are already in int8"),
        (("quantize", run, run, "--force"), "is the run itself"),
        (("quantize", run, run / "int8"), "is inside the run"),
        (("quantize", run, small_run), "--force replaces it"),
        (("quantize", run, out, "--split", "tset"), "no split 'tset'"),
        (("quantize", tmp_path / "nothing", out), "no such folder"),
        (("quantize", run, out, "--to", "int4"), "'int4'"),
    ]

    def check(words: tuple[Any, ...], message: str) -> None:
        assert message in refused(*words)

    each(cases, check)
    assert not out.exists()


def test_nothing_is_written_into_the_run_itself(folders: tuple[Path, Path], tmp_path: Path) -> None:
    run, link = folders[0], tmp_path / "link"
    link.symlink_to(run)
    before = sorted(run.rglob("*"))
    lines: list[tuple[Any, ...]] = [("quantize", run), ("export", run / WEIGHTS), ("export", run)]
    lines += [("export", run, "--to", "onnx")]
    for out in (run, run / "sub", link / "a" / "b", link / "a" / "..", f"{run}/../{run.name}/x"):
        for command, source, *options in lines:
            found = typed(command, source, out, "--force", *options)
            assert found.exit_code == 2 and "choose a folder outside it" in found.stderr, (out, options, found.output)
    assert sorted(run.rglob("*")) == before


def test_a_weight_that_is_not_finite_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders[0], broken)
    (broken / "SHA256SUMS").unlink()
    tensors = load_file(broken / WEIGHTS)
    tensors[UP][0, 0] = math.inf
    save_file(tensors, broken / WEIGHTS, {"tied": '{"head.output.weight": "decoder.embedding.tokens.weight"}'})
    said = refused("quantize", broken, tmp_path / "out")
    assert f"{UP} contains NaN or infinite values, which cannot be quantized" in said


@pytest.mark.slow
def test_an_export_holds_the_stored_weights_as_floats(folders: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the proof needs transformers, which the extra test brings")
    exported = typed("export", folders[1], tmp_path / "theirs")
    assert exported.exit_code == 0, exported.output
    verified = typed("verify", folders[1], "--against", tmp_path / "theirs", "--trust")
    assert verified.exit_code == 0, verified.output
