"""Comparison of a run with its Hugging Face model, loaded as a reference, on the same input."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DataError, DifferenceError, UsageError, optional
from tfkit.interop.huggingface.classes import OF_TEXTS
from tfkit.interop.huggingface.files import CONFIG, folder_of, read_config
from tfkit.models import Model
from tfkit.run import Run


def load_reference(folder: Path, trust: bool) -> nn.Module:
    """Load the folder's transformers model in float32."""
    transformers = optional("transformers", "hf", "verify needs")
    config = read_config(folder)
    own = "auto_map" in config
    if own and not trust:
        raise DataError(f"{folder}: this model contains its own code; review it, then allow it with --trust")
    name = (config.get("architectures") or ["AutoModel"])[0]
    heads = [key for key, value in config.get("auto_map", {}).items() if str(value).endswith(f".{name}")]
    loader = getattr(transformers, heads[0] if own and heads else name, None)
    if loader is None:
        raise DataError(f"{folder / CONFIG}: architectures: the installed transformers has no class {name}")
    with quiet(transformers):
        try:
            model = loader.from_pretrained(folder, dtype=torch.float32, **({"trust_remote_code": True} if own else {}))
        except Exception as error:  # the model's code may raise any exception
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{folder}: transformers cannot load it: {first}") from None
    model.config.use_cache = False  # whole texts are compared, without a cache
    loaded: nn.Module = model.eval()
    return loaded


def reply_of(reference: nn.Module, call: dict[str, Tensor], folder: Path) -> object:
    """Run the Hugging Face model. Raise DifferenceError if the model rejects the input."""
    own = reference.config.model_type == "tfkit"  # type: ignore[union-attr]  # exported classes return no layer states
    try:
        return reference(**call) if own else reference(**call, output_hidden_states=True)
    except Exception as error:  # the model's code may raise any exception
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DifferenceError(
            f"{folder}: its model does not accept this run's inputs; is it the same model? {first}"
        ) from None


def logits_of(out: Any) -> Tensor | None:
    """Return the logits; start and end logits are stacked on the last axis, as in tfkit."""
    if getattr(out, "start_logits", None) is not None:
        return torch.stack((out.start_logits, out.end_logits), dim=-1)
    logits: Tensor | None = getattr(out, "logits", None)
    return logits


def tokenizer_difference(folder: Path, text: str, ids: Sequence[int]) -> list[str]:
    """Return a note if the folder's tokenizer encodes the text differently from the run's."""
    import transformers

    with quiet(transformers):
        try:
            reference = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        except Exception:  # no tokenizer, or missing packages
            return ["the folder's tokenizer cannot be loaded; the run's tokens are used"]
    same = reference == list(ids)
    return [] if same else [f"the tokenizers differ: {list(ids)} in the run, {reference} in the folder"]


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Suppress transformers' progress bars and messages within the block."""
    logging = transformers.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


ROWS, LENGTH = 2, 48  # size of random inputs; the length is a multiple of common window sizes


def call_of(run: Run, folder: Path, text: str | None) -> tuple[dict[str, Tensor], str, list[str]]:
    """Return call arguments that both models accept, a description of them, and notes."""
    blueprint = run.blueprint
    notes: list[str] = []
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    if text is None:
        call = _random_input(next(blueprint.stacks()), _room(run), 0)
        description = f"{ROWS} rows of {_room(run)} random {'tokens' if 'input_ids' in call else 'vectors'}"
    else:
        ids = run.read([text])[0]
        if not ids:
            raise UsageError("the text has no tokens to compare")
        call, description = {"input_ids": torch.tensor([ids])}, f"{len(ids)} tokens of the text"
        notes += tokenizer_difference(folder, text, ids)
    count, length = next(iter(call.values())).shape[:2]
    if paired:
        again = _random_input(blueprint.last, _room(run), 1)
        call |= {f"decoder_{name}": values[:count] for name, values in again.items()}
        looked_up = {"input_ids", "decoder_input_ids"} <= call.keys()
        if looked_up and blueprint.head is not None and blueprint.head.part.part_name in OF_TEXTS:
            call |= _ended(call["input_ids"], call["decoder_input_ids"], dict(blueprint.special_ids).get("end"))
    marks, seen = _needed(blueprint, count, length)
    return call | marks, description, notes + seen


def _needed(blueprint: Blueprint, count: int, length: int) -> tuple[dict[str, Tensor], list[str]]:
    """Return the inputs that the mask rules require, for `count` rows, and a description of each."""
    needs = {name for plan in blueprint.stacks() for name in plan.needs}
    call: dict[str, Tensor] = {}
    notes = []
    if "global_attention_mask" in needs:
        call["global_attention_mask"] = (torch.arange(length) == 0).long().expand(count, length)
        notes.append("the first token attends to all tokens, and all attend to it")
    if "prefix_length" in needs:
        call["prefix_length"] = torch.full((count,), max(1, length // 2))
        notes.append(f"the first {max(1, length // 2)} tokens of a row attend to each other")
    for name, one in blueprint.extra_inputs.items():
        call[name] = torch.randn(count, one.width, generator=torch.Generator().manual_seed(0))
        notes.append(f"the input {name} is random")
    return call, notes


def _random_input(plan: StackPlan, length: int, seed: int) -> dict[str, Tensor]:
    """Return random input for a stack: ids [rows length], or vectors."""
    embedding: Any = plan.embedding
    width = plan.d_model if embedding is None else embedding.reads(plan.shape())
    generator = torch.Generator().manual_seed(seed)
    if width is None:
        size = plan.vocab_size or 1
        least = min(10, size - 1)  # the lowest ids are often special tokens
        return {"input_ids": torch.randint(least, size, (ROWS, length), generator=generator)}
    return {"inputs_embeds": torch.randn(ROWS, length, width, generator=generator)}


def _ended(rows: Tensor, again: Tensor, end: int | None) -> dict[str, Tensor]:
    """End each source row with the end token, whose state represents the row; return {} if not applicable."""
    if end is None or rows.shape != again.shape:
        return {}
    other = end - 1 if end else end + 1
    ended = rows.where(rows != end, other).index_fill(1, torch.tensor([rows.shape[1] - 1]), end)
    return {"input_ids": ended}


def _room(run: Run) -> int:
    """Return the length of random inputs that all stacks accept."""
    bounds = [plan.max_length for plan in run.blueprint.stacks() if plan.max_length is not None]
    return min([LENGTH, *bounds])


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
    is_float32 = all(tensor.dtype == torch.float32 for tensor in run.model.parameters())
    own = run.model if is_float32 else copy.deepcopy(run.model).float()
    call, description, notes = call_of(run, folder, text)
    verdict = Verdict(tolerance, description, notes=notes)
    with torch.no_grad():
        out = reply_of(reference, call, folder)
        with _layers(own) as hidden:
            extra = {name: call.pop(name) for name in own.extra_inputs}
            reply = own(**call, inputs=extra)
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
        if not apart and _is_nearer(own[1], own[0], reference[0]):  # Mamba's classes omit the input of the first layer
            mine = [*own[1:], last]
            names = [*(f"layer {number}" for number in range(len(own) - 1)), "hidden"]
        for place, one, other in zip(names, mine, [*reference, *apart], strict=True):
            _compare(verdict, place, one, other)
    elif final is not None:
        _compare(verdict, "hidden", last, final)
    else:
        verdict.notes.append("hidden states are not compared: the reference does not return one per layer")


def _is_nearer(one: Tensor, other: Tensor, reference: Tensor) -> bool:
    """True if `one` is nearer than `other` to a tensor of the same shape."""
    if not one.shape == other.shape == reference.shape:
        return False
    return bool((one - reference).abs().max() < (other - reference).abs().max())


def _compare(verdict: Verdict, place: str, own: Tensor, reference: Tensor) -> None:
    if own.shape == reference.shape:
        verdict.differences.append(Difference.of(place, own, reference))
    else:
        if place != "hidden":  # some families return it before a projection that belongs to the head here
            verdict.differences.append(Difference(place, float("inf"), float("inf")))
        verdict.notes.append(f"{place}: {list(own.shape)} in the run, {list(reference.shape)} in the folder")
