"""Whether a run computes what a model of theirs computes: the same input through both, and how far apart they are."""

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
from tfkit.core.errors import DataError, UsageError
from tfkit.interop.huggingface.classes import OF_TEXTS
from tfkit.interop.huggingface.files import CONFIG, folder_of, read_config
from tfkit.models import Model
from tfkit.run import Run

TOLERANCE = 1e-4  # relative; two implementations in float32 round differently
ROWS, LENGTH = 2, 48  # of a random input; several models want a multiple of their window
EXTRA = 'verify computes with transformers, which is not installed: pip install "tfkit[hf]"'


@dataclass(frozen=True)
class Difference:
    """How far apart two tensors are: the largest difference, and that relative to the largest number of theirs."""

    place: str
    largest: float
    relative: float

    @classmethod
    def of(cls, place: str, ours: Tensor, theirs: Tensor) -> Difference:
        """Compare two tensors of one shape; what is not finite is infinitely far off."""
        ours, theirs = ours.float(), theirs.float()
        off = (ours - theirs).abs().max()
        largest = float(off) if bool(torch.isfinite(off)) else float("inf")
        return cls(place, largest, largest / max(float(theirs.abs().max()), 1e-12))


@dataclass
class Verdict:
    """What a comparison found; `agreeing` of `predicted` tokens are the most likely with both."""

    tolerance: float
    input: str
    differences: list[Difference] = field(default_factory=list)
    agreeing: int = 0
    predicted: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether everything that was compared lies within the tolerance."""
        return all(one.relative <= self.tolerance for one in self.differences)

    def as_data(self) -> dict[str, Any]:
        """The same as plain data."""
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
    """Compare `run` with their model in the folder (or of the name on the hub) `against`, both in float32.

    The input is `text`, or random tokens; `trust` lets the folder's own code run. Raises DataError where transformers
    is missing or cannot load the model, UsageError for a text without a tokenizer.
    """
    folder = folder_of(against)
    theirs = _theirs(folder, trust)
    ours = run.model if _is_float32(run.model) else copy.deepcopy(run.model).float()
    call, description, notes = _call(run, folder, text)
    verdict = Verdict(tolerance, description, notes=notes)
    with torch.no_grad():
        out = _reply(theirs, call, folder)
        with _layers(ours) as hidden:
            reply = ours(**call)
    _compare_layers(verdict, hidden, reply.hidden, out)
    logits = _their_logits(out)
    if logits is None or reply.logits is None:
        verdict.notes.append("one of the two has no head, so that hidden states alone are compared")
    else:
        logits = logits.squeeze(-1) if logits.shape == (*reply.logits.shape, 1) else logits  # a number of a text
        _compare(verdict, "logits", reply.logits, logits)
        if reply.logits.shape == logits.shape:
            same = reply.logits.argmax(dim=-1) == logits.argmax(dim=-1)
            verdict.agreeing, verdict.predicted = int(same.sum()), same.numel()
    if not verdict.differences:
        raise UsageError(f"{run.folder} and {against} give nothing that can be compared; are they one architecture?")
    return verdict


def _theirs(folder: Path, trust: bool) -> nn.Module:
    """Their model, in float32."""
    try:
        import transformers
    except ImportError:
        raise DataError(EXTRA) from None
    config = read_config(folder)
    own = "auto_map" in config
    if own and not trust:
        raise DataError(f"{folder}: this model brings its own code; read it, then give --trust to let it run")
    name = (config.get("architectures") or ["AutoModel"])[0]
    heads = [key for key, value in config.get("auto_map", {}).items() if str(value).endswith(f".{name}")]
    loader = getattr(transformers, heads[0] if own and heads else name, None)
    if loader is None:
        raise DataError(f"{folder / CONFIG}: architectures: this transformers has no {name}")
    with _quiet(transformers):
        try:
            model = loader.from_pretrained(folder, dtype=torch.float32, **({"trust_remote_code": True} if own else {}))
        except Exception as error:  # whatever their code raises
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{folder}: transformers cannot load it: {first}") from None
    model.config.use_cache = False  # the whole text at once, as ours does
    made: nn.Module = model.eval()
    return made


def _their_logits(out: Any) -> Tensor | None:
    """What their head says; of the beginning and the end of an answer as one tensor, as ours has it."""
    if getattr(out, "start_logits", None) is not None:
        return torch.stack((out.start_logits, out.end_logits), dim=-1)
    logits: Tensor | None = getattr(out, "logits", None)
    return logits


def _reply(theirs: nn.Module, call: dict[str, Tensor], folder: Path) -> Any:
    """Their output; raises DataError where their model cannot read what ours can."""
    try:
        return theirs(**call, output_hidden_states=True)
    except Exception as error:  # whatever their code raises
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{folder}: its model cannot read what this run reads; is it the same one? {first}") from None


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no advice of theirs within the block."""
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


def _is_float32(model: nn.Module) -> bool:
    return all(tensor.dtype == torch.float32 for tensor in model.parameters())


def _call(run: Run, folder: Path, text: str | None) -> tuple[dict[str, Tensor], str, list[str]]:
    """The arguments of a call that both understand, what they are in words, and a remark about them."""
    blueprint = run.blueprint
    notes: list[str] = []
    paired = blueprint.encoder is not None and blueprint.decoder is not None
    if text is None:
        call = _random_input(next(blueprint.stacks()), _room(run), 0)
        description = f"{ROWS} rows of {_room(run)} random {'tokens' if 'input_ids' in call else 'vectors'}"
    else:
        ids = run.read([text])[0]
        if not ids:
            raise UsageError("the text has no tokens, so that there is nothing to compare")
        call, description = {"input_ids": torch.tensor([ids])}, f"{len(ids)} tokens of the text"
        notes += _their_ids(folder, text, ids)
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
    """What masks ask of every call of `count` rows, and its description."""
    needs = {name for plan in blueprint.stacks() for name in plan.needs}
    call: dict[str, Tensor] = {}
    notes = []
    if "global_attention_mask" in needs:
        call["global_attention_mask"] = (torch.arange(length) == 0).long().expand(count, length)
        notes.append("the first token sees all and is seen by all")
    if "prefix_length" in needs:
        call["prefix_length"] = torch.full((count,), max(1, length // 2))
        notes.append(f"the first {max(1, length // 2)} tokens of a row see one another")
    return call, notes


def _random_input(plan: StackPlan, length: int, seed: int) -> dict[str, Tensor]:
    """What a stack reads: tokens [rows length], or vectors where it looks none up."""
    embedding: Any = plan.embedding
    width = plan.d_model if embedding is None else embedding.reads(plan.shape())
    if width is None:
        return {"input_ids": _random(plan.vocab_size, length, seed)}
    generator = torch.Generator().manual_seed(seed)
    return {"inputs_embeds": torch.randn(ROWS, length, width, generator=generator)}


def _ended(rows: Tensor, again: Tensor, end: int | None) -> dict[str, Tensor]:
    """Texts that end, whose last place in the decoder stands for them with theirs; nothing where no token ends them."""
    if end is None or rows.shape != again.shape:
        return {}
    other = end - 1 if end else end + 1
    ended = rows.where(rows != end, other).index_fill(1, torch.tensor([rows.shape[1] - 1]), end)
    return {"input_ids": ended}


def _room(run: Run) -> int:
    """How long a random input may be."""
    bounds = [plan.max_length for plan in run.blueprint.stacks() if plan.max_length is not None]
    return min([LENGTH, *bounds])


def _random(size: int | None, length: int, seed: int) -> Tensor:
    """Tokens [rows length]; the first few ids, where special tokens mostly stand, are left out."""
    size = size or 1
    least = min(10, size - 1)
    return torch.randint(least, size, (ROWS, length), generator=torch.Generator().manual_seed(seed))


def _their_ids(folder: Path, text: str, ids: Sequence[int]) -> list[str]:
    """What to say where their tokenizer reads the text otherwise."""
    import transformers

    with _quiet(transformers):
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        except Exception:  # no tokenizer there, or one that needs more packages
            return ["their tokenizer cannot be loaded, so that the tokens are this run's alone"]
    return [] if theirs == list(ids) else [f"the tokenizers differ: {list(ids)} here, {theirs} there"]


@contextlib.contextmanager
def _layers(model: Model) -> Iterator[list[Tensor]]:
    """What goes into the first layer of the last stack, and what comes out of each, while the block runs."""
    found: list[Tensor] = []
    layers = model.stack(model.blueprint.last.side).layers

    def keep(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        if not found:
            found.append(arguments[0])
        found.append(output)

    # a layer whose weights serve several times is one module
    handles = [layer.register_forward_hook(keep) for layer in dict.fromkeys(layers)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _compare_layers(verdict: Verdict, ours: Sequence[Tensor], last: Tensor, out: Any) -> None:
    """Hidden states layer by layer, where they give as many, and what is after the final norm."""
    states = getattr(out, "decoder_hidden_states", None) or getattr(out, "hidden_states", None) or ()
    theirs: tuple[Tensor, ...] = tuple(states)
    final: Tensor | None = getattr(out, "last_hidden_state", None)
    if len(theirs) == len(ours):
        # the last of the states is mostly the final one; some families (CLIP) give it apart, after the norm
        apart = [] if final is None or torch.equal(theirs[-1], final) else [final]
        mine = [*ours, last] if apart else [*ours[:-1], last]
        names = ["embedding", *(f"layer {number}" for number in range(len(mine) - 2)), "hidden"]
        for place, one, other in zip(names, mine, [*theirs, *apart], strict=True):
            _compare(verdict, place, one, other)
    elif final is not None:
        _compare(verdict, "hidden", last, final)
    else:
        verdict.notes.append("their hidden states are not one a layer, so that they are not compared")


def _compare(verdict: Verdict, place: str, ours: Tensor, theirs: Tensor) -> None:
    if ours.shape == theirs.shape:
        verdict.differences.append(Difference.of(place, ours, theirs))
    else:
        verdict.notes.append(f"{place}: {list(ours.shape)} here, {list(theirs.shape)} there")
