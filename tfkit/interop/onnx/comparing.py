"""Comparison of ONNX files with their model, at sizes other than the traced ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tfkit.core.blame import shortened
from tfkit.core.errors import DataError, DifferenceError, UsageError
from tfkit.interop.onnx import PROVIDERS
from tfkit.interop.onnx.example import call
from tfkit.interop.onnx.graphs import Graph
from tfkit.interop.onnx.tracing import need

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
