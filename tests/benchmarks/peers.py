"""Training steps and forward passes of other installed libraries, with models of the same size."""

# Axes: rows, length, d_model, vocab_size.

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.decoders import transformers_model
from tests.benchmarks.models import Case, Peer, with_adamw
from tests.benchmarks.rounds import Call, library
from tfkit.core.errors import DifferenceError, UsageError
from tfkit.interop.onnx.graphs import WholeGraph, trace
from tfkit.models import Model

Engine = Callable[[dict[str, Tensor]], Tensor]  # maps inputs by name to logits
TOLERANCE = 1e-2  # maximum difference of logits, whose magnitude is about 1


def _transformers(case: Case, _: Model) -> Call:
    model = transformers_model(case.size, case.dropout).to(case.device).train(case.trains)
    if case.size.type == "pictures":
        return _call(case, model, lambda inputs: model(inputs["inputs_embeds"].permute(0, 3, 1, 2)).logits)
    return _call(case, model, lambda inputs: model(**inputs).logits)


class TorchLayers(nn.Module):
    """Embedding, torch's Transformer layers and a tied head, for one stack or two."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        size = case.size
        self.tokens = nn.Embedding(size.vocab_size, size.d_model)
        self.positions = nn.Embedding(case.length, size.d_model)
        self.drop = nn.Dropout(case.dropout)
        width, heads, inner, first = size.d_model, size.num_heads, size.d_ff, size.type == "decoder"
        activation = F.relu if size.pair else F.gelu
        encoder = nn.TransformerEncoderLayer(
            width, heads, inner, case.dropout, activation, batch_first=True, norm_first=first
        )
        self.encoder = nn.TransformerEncoder(encoder, size.num_layers, enable_nested_tensor=False)
        self.decoder = None
        if size.pair:
            decoder = nn.TransformerDecoderLayer(
                width, heads, inner, case.dropout, activation, batch_first=True, norm_first=first
            )
            self.decoder = nn.TransformerDecoder(decoder, size.num_layers)
        future = nn.Transformer.generate_square_subsequent_mask(case.length)
        self.register_buffer("future", None if size.type == "encoder" else future)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor | None = None) -> Tensor:
        """Return the logits [rows length vocab_size]."""
        if self.decoder is None or decoder_input_ids is None:
            hidden = self.encoder(self._embed(input_ids), mask=self.future, is_causal=self.future is not None)
        else:
            memory = self.encoder(self._embed(input_ids))
            hidden = self.decoder(self._embed(decoder_input_ids), memory, tgt_mask=self.future, tgt_is_causal=True)
        return F.linear(hidden, self.tokens.weight)  # [rows length vocab_size]

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.drop(self.tokens(ids) + self.positions.weight)  # [rows length d_model]
        return embedded


def _torch(case: Case, _: Model) -> Call:
    if case.size.type == "pictures":
        raise UsageError("torch's layers are compared on texts only")
    model = TorchLayers(case).to(case.device).train(case.trains)
    return _call(case, model, lambda inputs: model(**inputs))


def _call(case: Case, model: nn.Module, logits: Callable[[dict[str, Tensor]], Tensor]) -> Call:
    """Return a training step or a forward pass of another library."""
    inputs, labels = case.inputs(), case.labels().flatten()

    def forward() -> None:
        with torch.inference_mode(), case.autocast():
            logits(inputs)

    def backward() -> None:
        with case.autocast():
            loss = F.cross_entropy(logits(inputs).flatten(0, 1), labels)
        torch.autograd.backward(loss)

    return with_adamw(model, backward) if case.trains else forward


def exported(case: Case, model: Model, load: Callable[[Path], Engine]) -> Call:
    """Return the forward pass of the exported model in an engine. Raise DifferenceError if its logits differ."""
    if case.device != "cpu" or case.precision != "float32":
        raise UsageError("onnxruntime and openvino are compared on a CPU and in float32 only")
    graph = WholeGraph(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / graph.file
        trace(graph, file)
        run = load(file)
    given = case.inputs()
    if "inputs_embeds" in given:  # an exported model reads patches
        given["inputs_embeds"] = model.stack("encoder").cut(given["inputs_embeds"]).contiguous()
    inputs = {name: given.get(name, one.example()) for name, one in graph.inputs.items()}
    inputs |= {name: torch.ones_like(case.ids()) for name in inputs if name.endswith("attention_mask")}
    with torch.inference_mode():
        difference = (run(inputs) - graph(*inputs.values())[0]).abs().max().item()
    if not difference <= TOLERANCE:
        raise DifferenceError(f"{case.size.name}: the engine's logits differ from tfkit's by {difference:.2g}")
    return lambda: run(inputs)


def _onnxruntime(case: Case, model: Model) -> Call:
    runtime = library("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = case.threads

    def load(file: Path) -> Engine:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = {one.name for one in session.get_inputs()}

        def run(inputs: dict[str, Tensor]) -> Tensor:
            feed = {name: one.numpy() for name, one in inputs.items() if name in names}
            return torch.from_numpy(session.run(None, feed)[0])

        return run

    return exported(case, model, load)


def _openvino(case: Case, model: Model) -> Call:
    engine = library("openvino")

    def load(file: Path) -> Engine:
        threads = {"INFERENCE_NUM_THREADS": case.threads, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = engine.Core().compile_model(str(file), "CPU", threads)
        names = {name for one in compiled.inputs for name in one.names}

        def run(inputs: dict[str, Tensor]) -> Tensor:
            feed = {name: one.numpy() for name, one in inputs.items() if name in names}
            return torch.from_numpy(compiled(feed)[0])

        return run

    return exported(case, model, load)


TRAINERS: dict[str, Peer] = {"transformers": _transformers, "torch": _torch}
READERS: dict[str, Peer] = {**TRAINERS, "onnxruntime": _onnxruntime, "openvino": _openvino}
