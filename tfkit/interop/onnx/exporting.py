"""Export of a run to ONNX: a folder of graphs with tokenizer, recipe, costs and an example script."""

from __future__ import annotations

import copy
import importlib.resources
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import UsageError
from tfkit.core.trees import JsonObject
from tfkit.interop.greedy import boundary_tokens
from tfkit.interop.huggingface.exporting import has_tokenizer
from tfkit.interop.huggingface.kept import kept_of
from tfkit.interop.huggingface.tokenizer_files import write_tokenizer
from tfkit.interop.local_paths import LocalPaths
from tfkit.interop.onnx import METADATA, OPSETS
from tfkit.interop.onnx.graphs import Graph, WholeGraph, graphs_of, writes
from tfkit.interop.onnx.quantizing import quantize_file
from tfkit.interop.onnx.tracing import need, trace
from tfkit.models import Model
from tfkit.run import Run
from tfkit.storage.files import write_json, write_text
from tfkit.storage.targets import target_folder, whole_folder
from tfkit.training.folder import RESOLVED, TARGET_TOKENIZER, TOKENIZER

EXAMPLE = "example.py"


@dataclass(frozen=True)
class OnnxFolder:
    """Result of an export: bytes of each graph file, and total bytes in float32."""

    path: Path
    sizes: Mapping[str, int]
    full: int
    whole_text: bool  # True if a decoder recomputes the whole text for every token


def export_onnx(
    run: Run,
    target: str | Path,
    force: bool = False,
    opset: int = OPSETS[1],
    quantize: str | None = None,
    costs: Mapping[str, object] | None = None,
) -> OnnxFolder:
    """Export `run` to the folder `target` as ONNX graphs. `costs` are stored in metadata.json.

    Raises UsageError if a library is missing or the model is unsupported, RunError if the folder must not be
    overwritten. No files are left behind on failure.
    """
    goal = target_folder(run.outside(target), "model in ONNX format", (METADATA,), force)
    need("export to ONNX needs", "onnx", "onnxscript", *(["onnxruntime"] if quantize else []))
    check_leaves(run.blueprint)
    graphs = graphs_of(as_float32(run.model))
    with whole_folder(goal) as folder:
        full = 0
        for graph in graphs:
            with tempfile.TemporaryDirectory(dir=folder) as beside:
                whole = (folder if quantize is None else Path(beside)) / graph.file
                trace(graph, whole, opset)
                full += size_of(whole)
                if quantize is not None:
                    quantize_file(whole, folder / graph.file)
        sizes = {graph.file: size_of(folder / graph.file) for graph in graphs}
        about = {"opset": opset, "quantize": quantize, "float32_bytes": full, "bytes": sizes}
        write_json(folder / METADATA, about | metadata_of(run, graphs) | {"costs": dict(costs or {})})
        if has_tokenizer(run):
            write_tokenizer(run, kept_of(run), folder)
            LocalPaths.of(run).out_of_files(folder)
            if writes(run.model):
                example = importlib.resources.files("tfkit.interop.onnx").joinpath(EXAMPLE)
                write_text(folder / EXAMPLE, example.read_text("utf-8"))
    whole_text = writes(run.model) and isinstance(graphs[0], WholeGraph)
    return OnnxFolder(goal.path, sizes, full, whole_text)


def check_leaves(blueprint: Blueprint) -> None:
    """Raise UsageError if a part of the architecture cannot be exported."""
    for plan in blueprint.stacks():
        for part in plan.without("export"):
            raise UsageError(f"{part} of the {plan.side} cannot be exported with a dynamic length; choose another part")


def as_float32(model: Model) -> Model:
    """Return a float32 copy on the CPU, without gradients because the exporter cannot trace them."""
    return copy.deepcopy(model).float().cpu().eval().requires_grad_(False)


def size_of(path: Path) -> int:
    """Return the size of a graph in bytes, including its external weights."""
    beside = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)


def metadata_of(run: Run, graphs: list[Graph]) -> JsonObject:
    """Return metadata.json: the recipe, the inputs and outputs of each graph, and the start and end tokens."""
    texts = has_tokenizer(run)
    two = texts and run.source_tokenizer is not run.tokenizer
    resolved = run.folder / RESOLVED
    return {
        "recipe": LocalPaths.of(run).out_of(resolved.read_text("utf-8")) if resolved.is_file() else None,
        **boundary_tokens(run),
        "max_length": run.blueprint.last.max_length,
        "tokenizers": [TOKENIZER, TARGET_TOKENIZER if two else TOKENIZER] if texts else [],  # for inputs, for outputs
        "graphs": {
            graph.file: {
                "inputs": {name: list(one.axes) for name, one in graph.inputs.items()},
                "outputs": graph.outputs,
            }
            for graph in graphs
        },
    }
