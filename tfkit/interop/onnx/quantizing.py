"""int8 weights in ONNX: onnxruntime's dynamic quantization for linear layers, one scale per row for tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfkit.interop.onnx.tracing import LARGEST, need, quiet

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
