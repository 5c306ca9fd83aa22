"""`tfkit export --to onnx`: the files compute what the run computes, at any size, and what cannot leave is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tfkit
from tfkit.core.errors import RunError, UsageError
from tfkit.interop.greedy import WORST
from tfkit.interop.onnx import exporting, verifying
from tfkit.interop.onnx.exporting import as_float32, check_leaves, export_onnx, quantize_file
from tfkit.interop.onnx.graphs import Graph, StepGraph, WholeGraph, graphs_of, trace
from tfkit.interop.onnx.verifying import CALLS, GraphSession, inputs_of, sizes_of
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.run import Run

from .leaving import BOUND, NAMES, leave, listed, tiny
from .made import command, hidden
from .parity import randomise
from .test_export import LAYER, decoder, pair, trained
from .test_verify import change

ISOLATED = (
    hidden("tfkit", "torch", "transformers", "onnx")
    + """
import runpy
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("onnx") / "run", decoder())


def needs_onnx() -> None:
    """Skip a test where the extra is not installed."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="the exports need the extra onnx")


def model_of(**changes: Any) -> Model:
    recipe = {"tfkit": 1, "model": decoder(vocab_size=40, **changes)}
    made = build_model(load_recipe(recipe).blueprint(), seed=0).eval()
    randomise(made, 0.3)
    return as_float32(made)


def written(folder: Path, *words: str) -> str:
    """Run the example of a folder where neither tfkit nor torch can be imported."""
    line = [sys.executable, "-c", ISOLATED, str(folder / "example.py"), *words]
    return subprocess.run(line, capture_output=True, text=True, check=True, cwd=folder.parent).stdout


def small(name: str) -> Model:
    made = build_model(tiny(name).blueprint(), seed=0).eval()
    randomise(made, 0.3)
    return as_float32(made)


# graphs, untraced


@pytest.mark.full
@torch.no_grad()
@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("mask", [None, {"type": "window", "size": 3}], ids=["all", "window"])
def test_a_step_after_a_past_is_the_whole_text(mask: Any, call: tuple[int, ...]) -> None:
    model = model_of(mask=mask)
    (step,) = graphs_of(model)
    assert isinstance(step, StepGraph)
    sizes = sizes_of(call, None)
    given = inputs_of(step, sizes | {"time": sizes["total"], "past": 0})
    ids, mask_of = given["input_ids"], given["attention_mask"]
    positions = (mask_of.cumsum(dim=1) - 1).clamp(min=0)
    want = model(ids, attention_mask=mask_of, position_ids=positions).logits[:, sizes["past"] :]
    empty = {name: one for name, one in given.items() if name.startswith("past.")}
    past = sizes["past"]
    if past:
        first = step.compute({**empty, "input_ids": ids[:, :past], "attention_mask": mask_of[:, :past]})
        empty = {name.replace("present.", "past."): one for name, one in first.items() if name != "logits"}
    found = step.compute({**empty, "input_ids": ids[:, past:], "attention_mask": mask_of})["logits"]
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_an_encoder_decoder_leaves_in_two_files() -> None:
    model = small("t5-small")
    source, step = graphs_of(model)
    ids, target = torch.randint(5, 40, (2, 6)), torch.randint(5, 40, (2, 4))
    real = torch.ones_like(ids)
    real[1, 4:] = 0
    memory = source.compute({"input_ids": ids, "attention_mask": real})
    want = model(ids, attention_mask=real, decoder_input_ids=target).logits
    given: dict[str, torch.Tensor] = {"encoder_attention_mask": real, **memory}
    for place in range(4):
        mask = torch.ones(2, place + 1, dtype=torch.int64)
        out = step.compute({**given, "input_ids": target[:, place : place + 1], "attention_mask": mask})
        torch.testing.assert_close(out["logits"][:, 0], want[:, place], rtol=1e-4, atol=1e-4)
        given |= {name.replace("present.", "past."): one for name, one in out.items()}


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (lambda: small("bert-base"), ["logits"]),
        (lambda: model_of(mask={"type": "prefix"}), ["logits"]),
        (
            lambda: model_of(
                position={"type": "rotary", "scaling": {"type": "dynamic", "factor": 2.0, "original_length": 32}}
            ),
            ["logits"],
        ),
    ],
    ids=["an encoder", "a prefix", "positions that move"],
)
def test_what_keeps_no_past_leaves_whole(model: Callable[[], Model], outputs: list[str]) -> None:
    (graph,) = graphs_of(model())
    assert isinstance(graph, WholeGraph)
    assert (graph.file, graph.outputs) == ("model.onnx", outputs)


# what is refused, and what is left then


def test_a_part_that_cannot_leave_is_named() -> None:
    recipe = decoder(
        vocab_size=40, layer={**LAYER, "attention": None, "sublayers": ["mixer", "feedforward"], "mixer": "lstm"}
    )
    with pytest.raises(UsageError, match="mixer 'lstm' of the decoder cannot be exported with a dynamic length"):
        check_leaves(load_recipe({"tfkit": 1, "model": recipe}).blueprint())


@pytest.mark.full
def test_nothing_half_written_stays(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_onnx()

    def full(graph: Graph, path: Path, opset: int) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "trace", full)
    with pytest.raises(RunError, match="out: cannot be written: No space left on device"):
        export_onnx(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def nonsense(graph: Graph, path: Path, opset: int) -> None:
    path.write_bytes(b"nonsense")


@pytest.mark.full
def test_an_interrupted_export_leaves_what_was_there(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_onnx()
    monkeypatch.setattr(exporting, "trace", nonsense)
    words = ["export", run.folder, tmp_path / "out", "--to", "onnx"]
    assert command(*words).exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    again = command(*words)
    assert again.exit_code == 2 and "contains a model in ONNX format; --force replaces it" in again.stderr

    def stopped(graph: Graph, path: Path, opset: int) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "trace", stopped)
    result = command(*words, "--force")
    assert result.exit_code == 130 and "tfkit: interrupted" in result.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("metadata", "status", "message"),
    [
        ({}, 2, "model.onnx: onnxruntime cannot load it"),
        ({"ends": 5}, 1, "metadata.json: describes another architecture; export the run again"),
        ({"opset": "new"}, 2, "metadata.json: describes another architecture; export the run again"),
        ({"graphs": []}, 1, "metadata.json: describes another architecture; export the run again"),
    ],
    ids=lambda one: ",".join(one) if isinstance(one, dict) else "",
)
def test_a_damaged_folder_is_refused_in_words(
    metadata: dict[str, Any], status: int, message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_onnx()
    monkeypatch.setattr(exporting, "trace", nonsense)
    folder = export_onnx(run, tmp_path / "out").path
    facts = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(facts | metadata))
    result = command("verify", run.folder, "--against", folder)
    assert (result.exit_code, message in result.stderr) == (status, True), result.output


def test_a_model_that_writes_no_text_brings_no_example(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_onnx()
    monkeypatch.setattr(exporting, "trace", nonsense)
    recipe = {"tfkit": 1, "model": decoder(vocab_size=run.tokenizer.vocab_size, mask={"type": "prefix"})}
    tfkit.save(tfkit.build(recipe), recipe, run.tokenizer, tmp_path / "run")
    folder = export_onnx(tfkit.load_run(tmp_path / "run"), tmp_path / "out").path
    assert not (folder / "example.py").exists() and (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize("model", [SimpleNamespace(opset_imports={"": 18}), None], ids=["an older opset", "nothing"])
def test_an_opset_without_an_operator_is_refused(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = None if model is None else SimpleNamespace(model=model)
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **options: program)
    (graph,) = graphs_of(model_of())
    with pytest.raises(UsageError, match="it uses an operator that opset 20 lacks; use --opset 23"):
        trace(graph, tmp_path / "model.onnx", 20)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named_with_its_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_onnx()
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match="export to ONNX needs the package onnxscript: pip install"):
        export_onnx(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_wrong_options_are_refused(run: Run, tmp_path: Path) -> None:
    needs_onnx()
    there = tmp_path / "there"
    there.mkdir()
    (there / "notes.txt").write_text("mine")
    for words, message in [
        (["export", run.folder, there, "--to", "onnx"], "not empty and not a model in ONNX format"),
        (["export", run.folder, tmp_path / "out", "--opset", "20"], "--opset is an option of --to onnx"),
        (["export", run.folder, tmp_path / "out", "--quantize", "int8"], "--quantize is an option of --to onnx"),
        (["export", run.folder, tmp_path / "out", "--to", "onnx", "--opset", "17"], "'17' is not one of '18'"),
        (
            ["verify", run.folder, "--against", there, "--provider", "cpu"],
            "not a folder of `tfkit export --to onnx`",
        ),
    ]:
        result = command(*words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


# int8


def test_a_table_in_int8_is_looked_up_and_multiplied(tmp_path: Path) -> None:
    needs_onnx()
    import onnx
    from onnx import helper, numpy_helper

    generator = np.random.default_rng(0)
    table = generator.normal(size=(300, 64)).astype(np.float32) * generator.uniform(0.01, 5, (300, 1)).astype(
        np.float32
    )
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Transpose", ["table"], ["transposed"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "transposed"], ["logits"]),
        helper.make_node("ReduceSum", ["table"], ["sum"]),
    ]
    made = {"rows": [2, "time", 64], "logits": [2, "time", 300], "sum": [1, 1]}
    ids = helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [2, "time"])
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in made.items()]
    graph = helper.make_graph(nodes, "small", [ids], outputs, [numpy_helper.from_array(table, "table")])
    whole, small = tmp_path / "whole.onnx", tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(whole))
    quantize_file(whole, small)
    assert small.stat().st_size < 0.3 * whole.stat().st_size
    given = {"ids": torch.arange(0, 298).reshape(2, 149)}
    want, found = GraphSession(whole)(given), GraphSession(small)(given)
    rows = want["rows"].abs().amax(dim=-1, keepdim=True)
    assert bool(((found["rows"] - want["rows"]).abs() <= 0.51 / 127 * rows).all())  # half a step of each row
    assert float((found["logits"] - want["logits"]).abs().max()) < 0.02 * float(want["logits"].abs().max())
    torch.testing.assert_close(found["sum"], want["sum"], rtol=0.01, atol=2.0)


# traced: seconds each


def test_the_example_is_thirty_lines() -> None:
    lines = (Path(exporting.__file__).parent / exporting.EXAMPLE).read_text().splitlines()
    assert len([line for line in lines if line.strip() and not line.strip().startswith(('"""', "#"))]) <= 30


SCALED = {"type": "rotary", "scaling": {"type": "dynamic", "factor": 2.0, "original_length": 32}}
FORMS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "cache": ({}, False, ["model.onnx"]),
    "no cache": ({"position": SCALED}, False, ["model.onnx"]),
    "two files": ({}, True, ["encoder.onnx", "decoder.onnx"]),
    "both stacks in one": ({"position": SCALED}, True, ["model.onnx"]),
}


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS)
def test_the_example_writes_what_the_run_writes(form: str, tmp_path: Path) -> None:
    needs_onnx()
    changes, paired, files = FORMS[form]
    run = pair(tmp_path, changes) if paired else trained(tmp_path / "run", decoder(**changes))
    randomise(run.model, 0.3)
    folder = export_onnx(run, tmp_path / "out").path
    assert sorted(path.name for path in folder.glob("*.onnx")) == sorted(files)
    prompt = "1 cats" if paired else "def f"
    assert written(folder, prompt, "6") == run.generate(prompt, 6, strategy="greedy")[0] + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 23])
def test_a_decoder_leaves_and_is_equal(run: Run, opset: int, tmp_path: Path) -> None:
    needs_onnx()
    folder = tmp_path / "out"
    done = command("export", run.folder, folder, "--to", "onnx", "--opset", str(opset))
    assert done.exit_code == 0, done.output
    result = command("verify", run.folder, "--against", folder)
    assert result.exit_code == 0, result.output
    assert "greedy tokens: equal after 20 of 20 prompts" in result.stdout
    refused = command("verify", run.folder, "--against", folder, "--provider", "tensorrt")
    assert refused.exit_code == 2 and "--provider tensorrt: this onnxruntime supports only" in refused.stderr
    assert written(folder, "def f", "6") == run.generate("def f", 6, strategy="greedy")[0] + "\n"
    assert json.loads((folder / "metadata.json").read_text())["costs"]["parameters"] > 0
    found = command(
        "verify",
        change(run.folder, tmp_path / "other", "decoder.layers.1.feedforward.up.bias"),
        "--against",
        folder,
        "--accept-changes",
        "--json",
    )
    assert found.exit_code == 1 and "model.onnx: off by" in json.loads(found.stdout)["failures"][0]


@pytest.mark.slow
def test_a_translator_with_two_vocabularies_writes_without_torch(tmp_path: Path) -> None:
    needs_onnx()
    run, folder = tmp_path / "run", tmp_path / "out"
    for words in (["train", "translate-characters", "--out", run], ["export", run, folder, "--to", "onnx"]):
        done = command(*words)
        assert done.exit_code == 0, done.output
    result = command("verify", run, "--against", folder)
    assert result.exit_code == 0, result.output
    assert "greedy tokens: equal after 20 of 20 prompts" in result.stdout
    assert written(folder, "Where is the station?", "64") == "Wo ist der Bahnhof?\n"


@pytest.mark.slow
def test_int8_is_measured_next_to_float32(run: Run, tmp_path: Path) -> None:
    needs_onnx()
    assert command("export", run.folder, tmp_path / "out", "--to", "onnx", "--quantize", "int8").exit_code == 0
    result = command("verify", run.folder, "--against", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["figures"]
    assert figures["int8"]["bytes"] < figures["float32"]["bytes"]
    assert figures["int8"]["perplexity"] <= WORST * figures["float32"]["perplexity"]
    recipe = {"tfkit": 1, "model": decoder(vocab_size=run.tokenizer.vocab_size)}
    tfkit.save(tfkit.build(recipe, seed=5), recipe, run.tokenizer, tmp_path / "other")
    other = command("verify", tmp_path / "other", "--against", tmp_path / "out")
    assert (other.exit_code, "not equal: model.onnx: off by" in other.stdout) == (1, True), other.output


class Rounded:
    """Stands for a session of onnxruntime: a saved graph in torch."""

    def __init__(self, file: Path, *_: object) -> None:
        self.graph = torch.load(file, weights_only=False)
        self.outputs, self.inputs = self.graph.outputs, set(self.graph.inputs)

    @torch.no_grad()
    def __call__(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(self.outputs, self.graph(*inputs.values()), strict=True))

    @staticmethod
    def quantize(source: Path, target: Path) -> None:
        graph = torch.load(source, weights_only=False)
        for weight in graph.parameters():
            weight.data = (weight.data * 256).round() / 256
        torch.save(graph, target)


def test_int8_without_a_perplexity_is_held_to_the_run_quantized_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "trace", lambda graph, file, _: torch.save(graph, file))
    monkeypatch.setattr(verifying, "quantize_file", Rounded.quantize)
    monkeypatch.setattr(verifying, "GraphSession", Rounded)
    recipe = {"tfkit": 1, "model": decoder(type="encoder", vocab_size=40)}
    run = tfkit.save(tfkit.build(recipe, seed=0), recipe, None, tmp_path / "run")
    (graph,) = graphs_of(as_float32(run.model))
    facts = {"opset": 23, "quantize": "int8"} | exporting.metadata_of(run, [graph])
    for offset, status in ((0.0, 0), (0.01, 0), (0.5, 1)):
        folder = tmp_path / f"{offset}"
        folder.mkdir()
        (folder / "metadata.json").write_text(json.dumps(facts))
        next(graph.parameters()).data[9, ::2] += offset
        torch.save(graph, folder / "float")
        Rounded.quantize(folder / "float", folder / graph.file)
        result = command("verify", run.folder, "--against", folder)
        assert (result.exit_code, "not equal: model.onnx: off by" in result.stdout) == (status, bool(status))
        assert status or "\nequal: no difference above " in result.stdout
    (folder / "metadata.json").write_text(json.dumps(facts | {"max_length": 7}))
    assert command("verify", run.folder, "--against", folder).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_model_leaves_or_is_refused_by_its_part(name: str) -> None:
    needs_onnx()
    found = leave(name)
    assert found.refused or found.difference <= BOUND
    assert not found.refused or "'" in found.refused
    if name in listed():
        assert listed()[name].split("|")[2].strip() == found.row(name).split("|")[2].strip()
