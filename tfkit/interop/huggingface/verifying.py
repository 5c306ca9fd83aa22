"""Comparison of a run with its Hugging Face model on the same input."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tfkit.core.errors import UsageError
from tfkit.core.trees import JsonObject
from tfkit.interop.huggingface.files import folder_of
from tfkit.interop.huggingface.inputs import call_of
from tfkit.interop.huggingface.reference_model import load_reference, logits_of, reply_of
from tfkit.models import Model
from tfkit.run import Run

TOLERANCE = 1e-4  # maximum relative difference; float32 implementations round differently


@dataclass(frozen=True)
class Difference:
    """Difference between two tensors: the maximum, absolute and relative to the largest reference value."""

    place: str
    largest: float
    relative: float

    @classmethod
    def of(cls, place: str, own: Tensor, reference: Tensor) -> Difference:
        """Compare two tensors of equal shape; the difference is infinite if a value is not finite."""
        own, reference = own.float(), reference.float()
        off = (own - reference).abs().max()
        largest = float(off) if bool(torch.isfinite(off)) else float("inf")
        return cls(place, largest, largest / max(float(reference.abs().max()), 1e-12))


@dataclass
class Verdict:
    """Result of a comparison. Both models predict the same most likely token at `agreeing` of `predicted` positions."""

    tolerance: float
    input: str
    differences: list[Difference] = field(default_factory=list)
    agreeing: int = 0
    predicted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if all differences are within the tolerance."""
        return all(one.relative <= self.tolerance for one in self.differences)

    def as_data(self) -> JsonObject:
        """Return the verdict as plain data."""
        return {
            "equal": self.equal,
            "tolerance": self.tolerance,
            "input": self.input,
            "differences": [vars(one) for one in self.differences],
            "top_token": {"agreeing": self.agreeing, "of": self.predicted},
            "notes": self.notes,
        }


def verify(
    run: Run, against: str, text: str | None = None, tolerance: float = TOLERANCE, trust: bool = False
) -> Verdict:
    """Compare `run` with the Hugging Face model in the folder or hub repository `against`, both in float32.

    The input is `text` or random tokens. `trust` allows running code in the folder. Raises DataError if transformers is
    missing or cannot load the model, UsageError if `text` needs a tokenizer that the run lacks.
    """
    folder = folder_of(against)
    reference = load_reference(folder, trust)
    own = run.model if _is_float32(run.model) else copy.deepcopy(run.model).float()
    call, description, notes = call_of(run, folder, text)
    verdict = Verdict(tolerance, description, notes=notes)
    with torch.no_grad():
        out = reply_of(reference, call, folder)
        with _layers(own) as hidden:
            reply = own(**call)
    _compare_layers(verdict, hidden, reply.hidden, out)
    logits = logits_of(out)
    if logits is None or reply.logits is None:
        verdict.notes.append("one of the two models has no head; only hidden states are compared")
    else:
        logits = logits.squeeze(-1) if logits.shape == (*reply.logits.shape, 1) else logits  # regression
        _compare(verdict, "logits", reply.logits, logits)
        if reply.logits.shape == logits.shape:
            same = reply.logits.argmax(dim=-1) == logits.argmax(dim=-1)
            verdict.agreeing, verdict.predicted = int(same.sum()), same.numel()
    if not verdict.differences:
        raise UsageError(f"{run.folder} and {against} have no comparable outputs; are they the same architecture?")
    return verdict


def _is_float32(model: nn.Module) -> bool:
    return all(tensor.dtype == torch.float32 for tensor in model.parameters())


@contextlib.contextmanager
def _layers(model: Model) -> Iterator[list[Tensor]]:
    """Within the block, record the last stack's input and the output of each of its layers."""
    recorded: list[Tensor] = []
    layers = model.stack(model.blueprint.last.side).layers

    def keep(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        if not recorded:
            recorded.append(arguments[0])
        recorded.append(output)

    # layers that share weights are one module, which is hooked only once
    handles = [layer.register_forward_hook(keep) for layer in dict.fromkeys(layers)]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _compare_layers(verdict: Verdict, own: Sequence[Tensor], last: Tensor, out: object) -> None:
    """Compare the final hidden states, and those of each layer if both models have the same number of layers."""
    states = getattr(out, "decoder_hidden_states", None) or getattr(out, "hidden_states", None) or ()
    reference: tuple[Tensor, ...] = tuple(states)
    final: Tensor | None = getattr(out, "last_hidden_state", None)
    if len(reference) == len(own):
        # the last state is usually the final one; some families (CLIP) return it separately, after the norm
        apart = [] if final is None or torch.equal(reference[-1], final) else [final]
        mine = [*own, last] if apart else [*own[:-1], last]
        names = ["embedding", *(f"layer {number}" for number in range(len(mine) - 2)), "hidden"]
        for place, one, other in zip(names, mine, [*reference, *apart], strict=True):
            _compare(verdict, place, one, other)
    elif final is not None:
        _compare(verdict, "hidden", last, final)
    else:
        verdict.notes.append("hidden states are not compared: the reference does not return one per layer")


def _compare(verdict: Verdict, place: str, own: Tensor, reference: Tensor) -> None:
    if own.shape == reference.shape:
        verdict.differences.append(Difference.of(place, own, reference))
    else:
        if place != "hidden":  # some families return it before a projection that belongs to the head here
            verdict.differences.append(Difference(place, float("inf"), float("inf")))
        verdict.notes.append(f"{place}: {list(own.shape)} in the run, {list(reference.shape)} in the folder")
