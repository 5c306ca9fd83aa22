"""`tfkit verify` for ONNX folders: differences, greedy tokens, and int8 compared with float32."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfkit.core.blame import shortened
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DataError, DifferenceError, UsageError
from tfkit.interop.greedy import LONGEST, SLACK, TOLERANCE, BoundaryTokens, FilesVerdict, equal_prompts
from tfkit.interop.onnx import METADATA, OPSETS, PROVIDERS
from tfkit.interop.onnx.example import call, generate
from tfkit.interop.onnx.exporting import as_float32, metadata_of, quantize_file, size_of
from tfkit.interop.onnx.graphs import Graph, graphs_of, need, trace, writes
from tfkit.recipe.settings.sections import Data
from tfkit.run import Run
from tfkit.storage.files import read_json
from tfkit.training.setup import longest_example

# sizes (batch, time, past, source) of the compared calls; past 0: prefill, time 1: decode step
CALLS = ((2, 9, 4, 6), (1, 1, 3, 1), (4, 3, 0, 5), (3, 17, 0, 13))


class GraphSession:
    """An onnxruntime session with named inputs and outputs."""

    def __init__(self, file: Path, provider: str = "cpu") -> None:
        (runtime,) = need("running an ONNX model needs", "onnxruntime")
        named = PROVIDERS[provider]
        available = runtime.get_available_providers()
        if named not in available:
            raise UsageError(
                f"--provider {provider}: this onnxruntime supports only {', '.join(available)}; install another build"
            )
        settings = runtime.SessionOptions()
        settings.log_severity_level = 4  # log only fatal errors; others are raised as exceptions
        self.file = file
        try:
            self.raw = runtime.InferenceSession(str(file), settings, providers=[named])
        except Exception as error:  # onnxruntime's errors have no common class
            raise DataError(f"{file}: onnxruntime cannot load it: {shortened(error)}") from None
        used = self.raw.get_providers()
        if named not in used:
            raise UsageError(f"--provider {provider}: onnxruntime falls back to {', '.join(used)}; check its libraries")
        self.inputs = {one.name for one in self.raw.get_inputs()}
        self.outputs = [one.name for one in self.raw.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name. Inputs that the graph does not have are ignored."""
        try:
            outputs = call(self.raw, {name: one.numpy() for name, one in inputs.items()})
        except Exception as error:
            raise DifferenceError(f"{self.file}: onnxruntime cannot run it: {shortened(error)}") from None
        return {name: torch.from_numpy(one) for name, one in outputs.items()}


def sizes_of(call: Sequence[int], longest: int | None) -> dict[str, int]:
    """Return the axis sizes of a call, limiting texts to `longest` tokens."""
    batch, time, past, source = call
    most = longest or sum(call)
    time, source = min(time, most), min(source, most)
    past = min(past, most - time)
    return {"batch": batch, "time": time, "past": past, "total": past + time, "source": source}


def inputs_of(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return random inputs of a graph, with one masked token in the last row if possible."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = min((plan.vocab_size or 2 for plan in graph.model.blueprint.stacks()), default=2)
    inputs = {}
    for name, one in graph.inputs.items():
        value = one.example(sizes)
        if one.dtype.is_floating_point:
            value = torch.randn(value.shape, generator=generator)
        elif name.endswith("input_ids"):
            value = torch.randint(vocabulary // 8, vocabulary, value.shape, generator=generator)
        elif name.endswith("attention_mask") and value.shape[1] > 2:
            value[-1, 0 if "total" in one.axes else -1] = 0  # prompts are left-padded
        elif name == "token_type_ids":
            value = torch.zeros_like(value)
        elif name == "global_attention_mask":
            value[:, 1:] = 0
        inputs[name] = value
    return inputs


@torch.no_grad()
def largest_difference(graph: Graph, session: GraphSession, longest: int | None = None) -> float:
    """Return the largest difference between outputs over all calls."""
    worst = 0.0
    for axes in CALLS:
        inputs = inputs_of(graph, sizes_of(axes, longest))
        outputs = session(inputs)
        expected = graph.compute(dict(inputs))
        for name in graph.outputs:
            worst = max(worst, _off(outputs[name], expected[name]))
    return worst


def _off(actual: Tensor, want: Tensor) -> float:
    """Return the largest difference; infinite if the shapes differ or a value is NaN."""
    if actual.shape != want.shape:
        return float("inf")
    off = float((actual - want).abs().max()) if want.numel() else 0.0
    return off if off == off else float("inf")


ROWS = 16  # validation rows used for perplexity
DECISIVE = ("graphs", "start", "ends", "max_length")  # metadata keys that must equal the run's
TIMED = 64  # number of tokens in the speed measurement


def verify_onnx(run: Run, folder: Path, provider: str = "cpu", tolerance: float = TOLERANCE) -> FilesVerdict:
    """Compare `run` with its ONNX export in `folder`. Raise DifferenceError if the architectures differ.

    An int8 file may differ from the run `SLACK` times as much as the run quantized again.
    """
    model = as_float32(run.model)
    graphs = graphs_of(model)
    facts = _facts(folder, metadata_of(run, graphs))
    sessions = {graph.file: _session(folder / graph.file, graph, provider) for graph in graphs}
    longest = run.blueprint.last.max_length
    verdict = FilesVerdict(tolerance, quantized=facts["quantize"] is not None)
    for graph in graphs:
        verdict.differences[graph.file] = largest_difference(graph, sessions[graph.file], longest)
    if writes(model):
        special = BoundaryTokens(start=facts["start"], ends=facts["ends"])
        verdict.equal_prompts = equal_prompts(
            model, special, lambda ids, count: generate(_raw(sessions), facts, np.array([ids]), count)
        )
    if verdict.quantized:
        with tempfile.TemporaryDirectory() as beside:
            for graph in graphs:
                file, small = Path(beside) / graph.file, Path(beside) / f"int8.{graph.file}"
                trace(graph, file, facts["opset"])
                quantize_file(file, small)
                again = largest_difference(graph, GraphSession(small, provider), longest)
                verdict.bounds[graph.file] = tolerance + SLACK * again
            whole = {graph.file: GraphSession(Path(beside) / graph.file, provider) for graph in graphs}
            verdict.figures["float32"] = _figures(run, graphs, whole, Path(beside), facts)
        verdict.figures["int8"] = _figures(run, graphs, sessions, folder, facts)
    return verdict


def _facts(folder: Path, expected: Mapping[str, object]) -> JsonObject:
    """Read metadata.json. Raise DataError if it is damaged, DifferenceError if it describes another architecture."""
    facts: JsonObject = read_json(folder / METADATA)
    what = f"{folder / METADATA}: describes another architecture; export the run again"
    known = isinstance(facts, dict) and facts.get("opset") in range(OPSETS[0], OPSETS[1] + 1) and "quantize" in facts
    if not known:
        raise DataError(what)
    if any(facts.get(name, "") != expected[name] for name in DECISIVE):
        raise DifferenceError(what)
    return facts


def _session(file: Path, graph: Graph, provider: str) -> GraphSession:
    """Open an ONNX file of the export. Raise DataError unless its inputs and outputs match the graph."""
    if not file.is_file():
        raise DataError(f"{file}: missing; export the run again")
    session = GraphSession(file, provider)
    if session.outputs != graph.outputs or not session.inputs <= set(graph.inputs):
        raise DifferenceError(f"{file}: inputs or outputs differ from the run's; export the run again")
    return session


def _figures(
    run: Run, graphs: Sequence[Graph], sessions: Mapping[str, GraphSession], folder: Path, facts: JsonObject
) -> dict[str, float]:
    """Return the size, perplexity and speed of the files."""
    figures = {"bytes": float(sum(size_of(folder / graph.file) for graph in graphs))}
    graph = graphs[-1]
    objective = run.recipe.objective
    if objective is not None and objective.part.part_name == "causal_lm" and run.recipe.data is not None:
        figures["perplexity"] = _perplexity(run, run.recipe.data, graph, sessions[graph.file])
    ids = [1] * min(LONGEST, (facts["max_length"] or LONGEST + 1) - 1)
    if writes(graph.model):
        count = min(TIMED, (facts["max_length"] or TIMED + len(ids)) - len(ids))
        begin = time.perf_counter()
        generate(_raw(sessions), {**facts, "ends": []}, np.array([ids]), count)
        figures["tokens_per_second"] = count / (time.perf_counter() - begin)
    else:
        inputs = inputs_of(graph, sizes_of((1, TIMED, 0, TIMED), facts["max_length"]))
        begin = time.perf_counter()
        sessions[graph.file](inputs)
        figures["tokens_per_second"] = TIMED / (time.perf_counter() - begin)
    return figures


def _raw(sessions: Mapping[str, GraphSession]) -> list[Any]:
    return [one.raw for one in sessions.values()]


def _perplexity(run: Run, data: Data, graph: Graph, session: GraphSession) -> float:
    """Return the perplexity of a graph on the first validation rows."""
    examples = dict(data.splits())["valid"].build().examples()
    items = run.objective.rows.prepare(examples, run.tokenizer, longest_example(run.blueprint, data))
    nats, count = 0.0, 0
    for item in items[:ROWS]:
        row = torch.as_tensor(item["text"], dtype=torch.int64)[None]
        sizes = {"batch": 1, "time": row.shape[1] - 1, "past": 0, "total": row.shape[1] - 1}
        inputs = {name: one.example(sizes) for name, one in graph.inputs.items()} | {"input_ids": row[:, :-1]}
        logits: Tensor = session(inputs)["logits"]
        nats += float(torch.nn.functional.cross_entropy(logits[0], row[0, 1:], reduction="sum"))
        count += row.shape[1] - 1
    return math.exp(nats / max(1, count))
