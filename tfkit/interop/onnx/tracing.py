"""Tracing of graphs to ONNX with torch's exporter, whose output is suppressed and whose errors are made readable."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tfkit.core.blame import shortened
from tfkit.core.component import Component
from tfkit.core.errors import UsageError
from tfkit.core.extras import optional
from tfkit.interop.onnx import OPSETS
from tfkit.interop.onnx.graphs import Graph

LARGEST = 1 << 30  # maximum bytes of weights in the graph file; larger weights go to a separate file


def need(purpose: str, *modules: str) -> list[Any]:
    """Import modules of the `onnx` extra. Raise UsageError with install instructions if one is missing."""
    return [optional(module, "onnx", purpose) for module in modules]


@torch.no_grad()
def trace(graph: Graph, path: Path, opset: int = OPSETS[1]) -> None:
    """Write a graph to `path` with dynamic axes. Raise UsageError for unsupported operators."""
    examples = tuple(one.example() for one in graph.inputs.values())
    weights = sum(weight.numel() * weight.element_size() for weight in graph.parameters())
    try:
        with quiet():
            program = torch.onnx.export(
                graph,
                examples,
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                opset_version=opset,
                dynamic_shapes=(tuple(one.named() for one in graph.inputs.values()),),
                dynamo=True,
                verbose=False,
            )
            written = None if program is None else program.model.opset_imports.get("")
    except Exception as error:  # the exporter's errors have no common class
        raise UsageError(f"{graph.file}: cannot be exported to opset {opset}{_where(error)}: {_why(error)}") from None
    if program is None or written != opset:
        raise UsageError(f"{graph.file}: it uses an operator that opset {opset} lacks; use --opset {OPSETS[1]}")
    _forget_source(program.model)
    program.save(path, external_data=weights > LARGEST)


def _forget_source(model: Any) -> None:
    """Drop the stack traces of the nodes, which contain local paths."""
    for graph in (model.graph, *model.functions.values()):
        for node in graph.all_nodes():
            node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the exporter's output, hints and warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _why(error: BaseException) -> str:
    """Return the message of the innermost cause; the outer messages are long general advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return shortened(error) or type(error).__name__


def _where(error: BaseException) -> str:
    """Name the part that was being traced when the error occurred."""
    place = ""
    walked: BaseException | None = error
    while walked is not None:
        for frame, _ in traceback.walk_tb(walked.__traceback__):
            part = frame.f_locals.get("self")
            if isinstance(part, Component) and isinstance(part, torch.nn.Module) and hasattr(part, "part_slot"):
                place = f", in {part.part_slot} '{part.part_name}'"
        walked = walked.__cause__
    return place
