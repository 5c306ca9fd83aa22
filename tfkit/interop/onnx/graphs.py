"""The ONNX graphs of a model, one module per file, with named inputs and outputs, and their tracing."""

# Axes: batch, time, past, total and source, as named in the `inputs` of each graph.

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.blame import shortened
from tfkit.core.blueprint import StackPlan
from tfkit.core.component import Component
from tfkit.core.errors import UsageError, optional
from tfkit.core.inputs import Inputs
from tfkit.interop.onnx import OPSETS
from tfkit.models import Model
from tfkit.models.call import Call
from tfkit.models.static import TracedState, attentions, keeps_keys_alone

# sizes of the traced example; all are different because the exporter would merge axes of equal size
SIZES = {"batch": 3, "time": 5, "past": 7, "total": 12, "source": 11}
WHOLE, ENCODER, DECODER = "model.onnx", "encoder.onnx", "decoder.onnx"


@dataclass(frozen=True)
class Input:
    """A graph input: its axes (a name if dynamic, else a size) and dtype."""

    axes: tuple[str | int, ...]
    dtype: torch.dtype = torch.int64

    def example(self, sizes: Mapping[str, int] = SIZES) -> Tensor:
        """Return a tensor of ones, valid as ids and as a mask."""
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in self.axes]
        return torch.ones(shape, dtype=self.dtype)

    def named(self) -> dict[int, str]:
        """Return axis index -> name for the dynamic axes."""
        return {place: axis for place, axis in enumerate(self.axes) if isinstance(axis, str)}


class Graph(nn.Module):
    """A module that is exported to one file; `inputs` and `outputs` determine the order of its tensors."""

    def __init__(self, model: Model, file: str, inputs: Mapping[str, Input], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.file, self.inputs, self.outputs = model, file, dict(inputs), outputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:  # shapes as in `inputs`
        outputs = self.compute(dict(zip(self.inputs, inputs, strict=True)))
        return tuple(outputs[name] for name in self.outputs)

    def compute(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError


class WholeGraph(Graph):
    """A whole model, without a cache."""

    def __init__(self, model: Model) -> None:
        first, last = next(model.blueprint.stacks()), model.blueprint.last
        axis = "time" if first is last else "source"
        inputs = _read_by(first, axis) | _marks(model, axis)
        if first is not last:
            inputs |= {f"decoder_{name}": one for name, one in _read_by(last, "time").items()}
        elif first.memory_width is not None:
            inputs["encoder_hidden_states"] = Input(("batch", "source", first.memory_width), torch.float32)
        heads = ["logits"] * (model.head is not None) + [f"heads.{name}" for name in model.heads]
        super().__init__(model, WHOLE, inputs, heads or ["hidden"])

    def compute(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        out = self.model(**inputs)
        return {"hidden": out.hidden, "logits": out.logits} | {f"heads.{name}": one for name, one in out.heads.items()}


class EncoderGraph(Graph):
    """An encoder with the key and value projections of the decoder's cross-attention."""

    def __init__(self, model: Model) -> None:
        inputs = _read_by(next(model.blueprint.stacks()), "source") | _marks(model, "source")
        super().__init__(model, ENCODER, inputs, [])
        outputs = self.compute({name: one.example() for name, one in inputs.items()})
        self.shapes = {name: held.shape for name, held in outputs.items()}
        self.outputs = list(outputs)

    def compute(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        decoder = self.model.stack("decoder")
        start = torch.zeros(next(iter(inputs.values())).shape[0], 1, dtype=torch.int64)
        state = TracedState(decoder, {}, 0, start[:1])
        # the decoder's own outputs are unused, so the exporter drops them
        self.model(**inputs, decoder_input_ids=start, state=state, with_heads=False)
        return {f"memory.{name}": held for name, held in state.held() if _of_memory(decoder, name)}


class StepGraph(Graph):
    """A decode step: new tokens, with cached keys and values as inputs and outputs."""

    def __init__(self, model: Model, source: EncoderGraph | None) -> None:
        stack = model.stack("decoder")
        inputs = {"input_ids": Input(("batch", "time"))}
        if not stack.plan.without("padding"):
            inputs["attention_mask"] = Input(("batch", "total"))
        if source is not None:
            inputs["encoder_attention_mask"] = Input(("batch", "source"))
            for name, shape in source.shapes.items():
                inputs[name] = Input(("batch", shape[1], "source", shape[3]), torch.float32)
        super().__init__(model, WHOLE if source is None else DECODER, inputs, ["logits"])
        outputs = self.compute({name: one.example(SIZES | {"total": SIZES["time"]}) for name, one in inputs.items()})
        for name in (name for name in outputs if name != "logits"):
            axes = ("batch", outputs[name].shape[1], "past", outputs[name].shape[3])
            self.inputs[name.replace("present", "past", 1)] = Input(axes, torch.float32)
            self.outputs.append(name)

    def compute(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ids, mask, source = inputs["input_ids"], inputs.get("attention_mask"), inputs.get("encoder_attention_mask")
        stack = self.model.stack("decoder")
        held = {name.partition(".")[2]: one for name, one in inputs.items() if "." in name}
        past = next((one.shape[2] for name, one in inputs.items() if name.startswith("past.")), 0)
        mask = torch.ones(1, past + ids.shape[1], dtype=torch.int64) if mask is None else mask
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)  # [batch total], padding is not counted
        real = mask.bool() if "attention_mask" in inputs else None
        state = TracedState(stack, held, past, positions, real)
        memory = None if source is None else source[..., None].expand(-1, -1, stack.plan.memory_width or 1).float()
        memory_real = None if source is None else source.bool()
        call = Call(Inputs(ids, real=real), None, positions[:, past:], None, memory, memory_real, state)
        logits = self.model.head_of_last(stack(call))
        present = {f"present.{name}": one for name, one in state.held() if not _of_memory(stack, name)}
        return {"logits": logits} | present


def graphs_of(model: Model) -> list[Graph]:
    """Return the graphs of a model: decode steps if its state is only keys and values, else one whole graph.

    Raise UsageError if its parts read inputs besides ids.
    """
    for name, one in model.extra_inputs.items():
        raise UsageError(f"{one.readers[0]} reads the input '{name}', which ONNX graphs of tfkit do not have")
    if not steps(model):
        return [WholeGraph(model)]
    source = None if model.blueprint.encoder is None else EncoderGraph(model)
    return [StepGraph(model, source)] if source is None else [source, StepGraph(model, source)]


def writes(model: Model) -> bool:
    """True if the model generates text and its only input is text."""
    plan, encoder, head = model.blueprint.decoder, model.blueprint.encoder, model.blueprint.head
    if plan is None or plan.reads_vectors or model.special_inputs or (encoder is not None and encoder.reads_vectors):
        return False
    alone = plan.memory_width is not None and encoder is None
    return not alone and head is not None and head.part.part_name == "language_model"


def steps(model: Model) -> bool:
    """True if cached keys and values are the model's whole decode state."""
    return writes(model) and not model.heads and keeps_keys_alone(model.stack("decoder"))


def _read_by(plan: StackPlan, axis: str) -> dict[str, Input]:
    """Return the inputs of a stack: ids or vectors, padding mask and segments."""
    embedding: Any = plan.embedding
    width = plan.d_model if embedding is None else embedding.reads(plan.shape())
    vectors = {"inputs_embeds": Input(("batch", axis, width), torch.float32)}
    inputs = {"input_ids": Input(("batch", axis))} if width is None else vectors
    if not plan.without("padding"):
        inputs["attention_mask"] = Input(("batch", axis))
    if embedding is not None and embedding.num_segments():
        inputs["token_type_ids"] = Input(("batch", axis))
    return inputs


def _marks(model: Model, axis: str) -> dict[str, Input]:
    """Return the inputs required by the model's mask rules."""
    inputs = {"global_attention_mask": Input(("batch", axis)), "prefix_length": Input(("batch",))}
    return {name: one for name, one in inputs.items() if name in model.special_inputs}


def _of_memory(stack: Any, name: str) -> bool:
    return attentions(stack)[name.rpartition(".")[0]]


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
    for part in (program.model.graph, *program.model.functions.values()):
        for node in part.all_nodes():
            node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)  # contains local paths
    program.save(path, external_data=weights > LARGEST)


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
