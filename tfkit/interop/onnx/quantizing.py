"""Weights in int8 by onnxruntime's dynamic quantization: a scale for each column, activations as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfkit.interop.onnx.tracing import LARGEST, need, quiet

WEIGHED = ("MatMul", "Gather")  # linear layers and tables


def quantize_file(source: Path, target: Path) -> None:
    """Write `source` to `target` with its weights in int8; a table that serves as output weights stays one."""
    onnx, quantization = need("--quantize needs", "onnx", "onnxruntime.quantization")
    held = source.stat().st_size + sum(path.stat().st_size for path in source.parent.glob(f"{source.name}.data"))
    with quiet():
        quantization.quantize_dynamic(
            str(source),
            str(target),
            op_types_to_quantize=list(WEIGHED),
            per_channel=True,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=_products(onnx.load(str(source), load_external_data=False).graph),
            use_external_data_format=held > 4 * LARGEST,
            extra_options={"MatMulConstBOnly": False},  # a table reaches the output transposed
        )


def _products(graph: Any) -> list[str]:
    """Return the products of two activations by name."""
    constant = {one.name for one in graph.initializer}
    constant |= {node.output[0] for node in graph.node if node.op_type == "Transpose" and node.input[0] in constant}
    return [node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] not in constant]
