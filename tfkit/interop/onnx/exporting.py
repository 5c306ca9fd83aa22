"""Export of a run to ONNX: a folder of graphs (also int8) with tokenizer, recipe, costs and an example script."""

from __future__ import annotations

import copy
import importlib.resources
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import UsageError
from tfkit.interop.greedy import boundary_tokens
from tfkit.interop.hub import LocalPaths
from tfkit.interop.huggingface.exporting import has_tokenizer, write_code
from tfkit.interop.huggingface.strangers import kept_of
from tfkit.interop.huggingface.tokenizer import write_tokenizer
from tfkit.interop.onnx import METADATA, OPSETS
from tfkit.interop.onnx.graphs import LARGEST, Graph, WholeGraph, graphs_of, need, quiet, trace, writes
from tfkit.models import Model
from tfkit.run import Run
from tfkit.runs.folder import RESOLVED, TARGET_TOKENIZER, TOKENIZER
from tfkit.storage.files import write_json, write_text
from tfkit.storage.folders import target_folder, whole_folder

SMALL = 1 << 12  # minimum number of values; smaller tables, such as relative positions, remain in float32
ZERO = 128  # zero point of uint8; int8 products saturate on CPUs without VNNI


def quantize_file(source: Path, target: Path) -> None:
    """Write `source` to `target` with int8 weights. An intermediate file remains next to `source`."""
    onnx, quantization = need("--quantize needs", "onnx", "onnxruntime.quantization")
    linear = source.with_name(f"linear.{source.name}")
    held = sum(path.stat().st_size for path in source.parent.glob(f"{source.name}*"))
    with quiet():
        quantization.quantize_dynamic(
            str(source),
            str(linear),
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=quantization.QuantType.QUInt8,
            use_external_data_format=held > LARGEST,
        )
    model = onnx.load(str(linear))
    for table in list(_tables(model.graph)):
        _quantize_table(onnx, model.graph, table)
    if model.ByteSize() > LARGEST:
        onnx.save(model, str(target), save_as_external_data=True, location=f"{target.name}.data")
    else:
        onnx.save(model, str(target))


def _tables(graph: Any) -> Iterator[Any]:
    """Yield the large float matrices from which Gather nodes read rows."""
    rows = (node for node in graph.node if node.op_type == "Gather" and not any(one.i for one in node.attribute))
    read = {node.input[0] for node in rows}
    for one in graph.initializer:
        if one.name in read and one.data_type == one.FLOAT and len(one.dims) == 2 and np.prod(one.dims) > SMALL:
            yield one


def _quantize_table(onnx: Any, graph: Any, table: Any) -> None:
    """Store a table as bytes with a scale per row, and rewrite the nodes that read its rows or its transpose."""
    name, values = table.name, onnx.numpy_helper.to_array(table)  # [rows, dim]
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-12) / 127
    held = {"bytes": np.rint(values / scale + ZERO).astype(np.uint8), "scale": scale.astype(np.float32)}
    held |= {"one": np.float32(1), "zero": np.uint8(ZERO)}
    graph.initializer.remove(table)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(one), f"{name}.{key}") for key, one in held.items()
    )
    transposes = {node.output[0] for node in graph.node if node.op_type == "Transpose" and node.input[0] == name}
    nodes = []
    for node in graph.node:
        if node.op_type == "Gather" and node.input[0] == name:
            nodes += _lookup(onnx.helper.make_node, name, node)
        elif node.op_type == "MatMul" and node.input[1] in transposes:
            nodes += _product(onnx.helper.make_node, name, node)
        else:
            nodes.append(node)
    read = {one for node in nodes for one in node.input}
    nodes = [node for node in nodes if node.output[0] in read or node.output[0] not in transposes]
    if any(name in node.input for node in nodes):
        nodes = [*_whole(onnx.helper.make_node, name), *nodes]
    graph.ClearField("node")
    graph.node.extend(nodes)


def _lookup(make: Any, name: str, node: Any) -> list[Any]:
    """Return nodes that look up rows and multiply them by their scales."""
    (out,), ids = node.output, node.input[1]
    return [
        make("Gather", [f"{name}.bytes", ids], [f"{out}.bytes"]),
        make("Gather", [f"{name}.scale", ids], [f"{out}.scale"]),
        make("DequantizeLinear", [f"{out}.bytes", f"{name}.one", f"{name}.zero"], [f"{out}.whole"]),
        make("Mul", [f"{out}.whole", f"{out}.scale"], [out]),
    ]


def _product(make: Any, name: str, node: Any) -> list[Any]:
    """Return nodes that multiply quantized activations by the table's transpose, which onnxruntime computes once."""
    (out,), x = node.output, node.input[0]
    return [
        make("DynamicQuantizeLinear", [x], [f"{out}.x", f"{out}.step", f"{out}.zero"]),
        make("Transpose", [f"{name}.bytes"], [f"{out}.table"]),
        make("Transpose", [f"{name}.scale"], [f"{out}.scale"]),
        make("MatMulInteger", [f"{out}.x", f"{out}.table", f"{out}.zero", f"{name}.zero"], [f"{out}.sum"]),
        make("Cast", [f"{out}.sum"], [f"{out}.whole"], to=1),
        make("Mul", [f"{out}.scale", f"{out}.step"], [f"{out}.unit"]),
        make("Mul", [f"{out}.whole", f"{out}.unit"], [out]),
    ]


def _whole(make: Any, name: str) -> list[Any]:
    """Return nodes that dequantize the whole table, for nodes that use it in other ways."""
    return [
        make("DequantizeLinear", [f"{name}.bytes", f"{name}.one", f"{name}.zero"], [f"{name}.whole"]),
        make("Mul", [f"{name}.whole", f"{name}.scale"], [name]),
    ]


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
        about["code"] = write_code(run, folder)
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
