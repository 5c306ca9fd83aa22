"""`tfkit verify` of a folder of ONNX files: differences, greedy tokens, and int8 next to float32."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfkit.core.errors import DataError
from tfkit.core.files import read_json
from tfkit.interop.onnx import METADATA, OPSETS
from tfkit.interop.onnx.comparing import GraphSession, given_to, largest_difference, sizes_of
from tfkit.interop.onnx.example import generate
from tfkit.interop.onnx.exporting import as_float32, facts_of, size_of
from tfkit.interop.onnx.graphs import Graph, graphs_of, writes
from tfkit.interop.onnx.tracing import trace
from tfkit.models import Model
from tfkit.run import Run
from tfkit.training.setup import longest_example

TOLERANCE = 1e-4  # of any output, absolute
PROMPTS, LONGEST, NEW = 20, 12, 16  # prompts of random tokens, and what is written after each
ROWS = 16  # of the validation texts, for a perplexity
WORST = 1.001  # of the perplexity in int8 relative to that in float32
DECISIVE = ("graphs", "start", "ends", "max_length")  # of the metadata
TIMED = 64  # tokens of a measured text


@dataclass
class OnnxVerdict:
    """What a comparison found; the figures of int8 and float32 by name."""

    tolerance: float
    differences: dict[str, float] = field(default_factory=dict)
    equal_prompts: int | None = None  # None where nothing is written
    prompts: int = PROMPTS
    quantized: bool = False
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """What is wrong, a sentence each."""
        if self.quantized:
            whole, small = (self.figures[name].get("perplexity", 1.0) for name in ("float32", "int8"))
            wrong = f"perplexity {small:.3f} in int8, {whole:.3f} in float32; at most {WORST} times that is right"
            return [] if small <= WORST * whole else [wrong]
        off = [f"{name}: off by {worst:.1e}" for name, worst in self.differences.items() if not worst <= self.tolerance]
        if self.equal_prompts is not None and self.equal_prompts < self.prompts:
            off.append(f"greedy tokens: equal after {self.equal_prompts} of {self.prompts} prompts")
        return off

    def as_data(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**vars(self), "equal": not self.failures, "failures": self.failures}


def verify_onnx(run: Run, folder: Path, provider: str = "cpu", tolerance: float = TOLERANCE) -> OnnxVerdict:
    """Compare `run` with its files in `folder`; raises DataError for files of another architecture."""
    model = as_float32(run.model)
    graphs = graphs_of(model)
    facts = _facts(folder, facts_of(run, graphs))
    sessions = {graph.file: _session(folder / graph.file, graph, provider) for graph in graphs}
    longest = run.blueprint.last.max_length
    verdict = OnnxVerdict(tolerance, quantized=facts["quantize"] is not None)
    for graph in graphs:
        verdict.differences[graph.file] = largest_difference(graph, sessions[graph.file], longest)
    if writes(model):
        verdict.equal_prompts = _equal_prompts(model, sessions, facts, longest)
    if verdict.quantized:
        with tempfile.TemporaryDirectory() as beside:
            for graph in graphs:
                trace(graph, Path(beside) / graph.file, facts["opset"])
            whole = {graph.file: GraphSession(Path(beside) / graph.file, provider) for graph in graphs}
            verdict.figures["float32"] = _figures(run, graphs, whole, Path(beside), facts)
        verdict.figures["int8"] = _figures(run, graphs, sessions, folder, facts)
    return verdict


def _facts(folder: Path, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read what is written about the files. Raise DataError unless it is what this architecture has."""
    facts: dict[str, Any] = read_json(folder / METADATA)
    ours = isinstance(facts, dict) and all(facts.get(name, "") == wanted[name] for name in DECISIVE)
    if not ours or facts.get("opset") not in range(OPSETS[0], OPSETS[1] + 1) or "quantize" not in facts:
        raise DataError(f"{folder / METADATA}: is of another architecture than the run; export the run again")
    return facts


def _session(file: Path, graph: Graph, provider: str) -> GraphSession:
    """Open a file. Raise DataError unless it has the tensors of the graph."""
    if not file.is_file():
        raise DataError(f"{file}: is missing; export the run again")
    session = GraphSession(file, provider)
    if session.outputs != graph.outputs or not session.inputs <= set(graph.inputs):
        raise DataError(f"{file}: has other inputs or outputs than the run; export the run again")
    return session


def _equal_prompts(model: Model, sessions: Mapping[str, GraphSession], facts: Any, longest: int | None) -> int:
    """Count the prompts after which both write the same tokens."""
    generator = torch.Generator().manual_seed(0)
    size, most = next(model.blueprint.stacks()).vocab_size or 1, longest or LONGEST + NEW
    equal = 0
    for number in range(PROMPTS):
        length = min(1 + number % LONGEST, max(1, most - 1))
        ids = torch.randint(size // 8, size, (length,), generator=generator).tolist()
        count = min(NEW, most - (length if facts["start"] is None else 1))
        equal += list(generate(_raw(sessions), ids, count, facts["start"], facts["ends"])) == greedy(
            model, ids, count, facts
        )
    return equal


@torch.no_grad()
def greedy(model: Model, ids: list[int], count: int, facts: Mapping[str, Any]) -> list[int]:
    """Return the likeliest tokens, the whole text read for each."""
    start, source = facts["start"], torch.tensor([ids])
    text = list(ids) if start is None else [start]
    prompt = len(text)
    for _ in range(count):
        read = torch.tensor([text])
        given = {"input_ids": read} if start is None else {"input_ids": source, "decoder_input_ids": read}
        new = int(model(**given).logits[0, -1].argmax())
        if new in facts["ends"]:
            break
        text.append(new)
    return text[prompt:]


def _figures(
    run: Run, graphs: Sequence[Graph], sessions: Mapping[str, GraphSession], folder: Path, facts: Any
) -> dict[str, float]:
    """Return the size, the perplexity and the speed of files."""
    figures = {"bytes": float(sum(size_of(folder / graph.file) for graph in graphs))}
    graph = graphs[-1]
    objective = run.recipe.objective
    if objective is not None and objective.part.part_name == "causal_lm" and run.recipe.data is not None:
        figures["perplexity"] = _perplexity(run, graph, sessions[graph.file])
    ids = [1] * min(LONGEST, (facts["max_length"] or LONGEST + 1) - 1)
    if writes(graph.model):
        count = min(TIMED, (facts["max_length"] or TIMED + len(ids)) - len(ids))
        begin = time.perf_counter()
        for _ in generate(_raw(sessions), ids, count, facts["start"], []):
            pass
        figures["tokens_per_second"] = count / (time.perf_counter() - begin)
    else:
        given = given_to(graph, sizes_of((1, TIMED, 0, TIMED), facts["max_length"]))
        begin = time.perf_counter()
        sessions[graph.file](given)
        figures["tokens_per_second"] = TIMED / (time.perf_counter() - begin)
    return figures


def _raw(sessions: Mapping[str, GraphSession]) -> dict[str, Any]:
    return {name: one.raw for name, one in sessions.items()}


def _perplexity(run: Run, graph: Graph, session: GraphSession) -> float:
    """Return exp(loss) of the first rows of the validation texts."""
    data = run.recipe.data
    examples = dict(data.splits())["valid"].build().examples()  # type: ignore[union-attr]
    items = run.objective.rows.prepare(examples, run.tokenizer, longest_example(run.blueprint, data))  # type: ignore[arg-type]
    nats, count = 0.0, 0
    for item in items[:ROWS]:
        row = torch.as_tensor(item["text"], dtype=torch.int64)[None]
        sizes = {"batch": 1, "time": row.shape[1] - 1, "past": 0, "total": row.shape[1] - 1}
        given = {name: one.example(sizes) for name, one in graph.inputs.items()} | {"input_ids": row[:, :-1]}
        logits: Tensor = session(given)["logits"]
        nats += float(torch.nn.functional.cross_entropy(logits[0], row[0, 1:], reduction="sum"))
        count += row.shape[1] - 1
    return math.exp(nats / max(1, count))
