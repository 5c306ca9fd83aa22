"""Promises of a trained model, measured with the weights and texts of a run: `tfkit prove`.

Contracts test parts in small random models. The comparisons here use the model of a run, in float64 so that differences
are not rounding errors.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from tfkit.contracts.calls import PREFIX, padded, special
from tfkit.contracts.expect import EQUAL, SAME, far
from tfkit.core.blame import shortened
from tfkit.core.errors import TfkitError
from tfkit.core.trees import JsonObject
from tfkit.models import Model, build_model
from tfkit.training.weights import Weights, load_weights

LONGEST = 48  # maximum number of tokens used from each text
TEXTS = 4
RANDOM = (12, 5, 9, 7)  # lengths of random texts
CHANGED = 8  # number of tokens that are changed, one at a time


class NotApplicable(Exception):
    """Raised for a promise that does not apply to this model or run; the message is the reason."""


@dataclass(frozen=True)
class Promise:
    """A promise with the measured difference and its bound; `value` is None if nothing was measured."""

    name: str
    bound: float
    value: float | None = None
    reason: str = ""  # reason why the promise does not apply, or the error message
    applies: bool = True

    @property
    def holds(self) -> bool:
        """True unless the promise applies and is broken."""
        return not self.applies or (self.value is not None and self.value <= self.bound)

    def as_data(self) -> JsonObject:
        """Convert to JSON data; non-finite differences become null."""
        finite = self.value is not None and self.value < float("inf")
        value = self.value if finite else None
        return {**vars(self), "value": value, "holds": self.holds}


def proved(name: str, bound: float, measure: Callable[[], float]) -> Promise:
    """Measure a promise; any exception of the model counts as a broken promise."""
    try:
        value = measure()
    except NotApplicable as error:
        return Promise(name, bound, reason=str(error), applies=False)
    except TfkitError as error:
        return Promise(name, bound, reason=str(error))
    except Exception as error:
        return Promise(name, bound, reason=f"{type(error).__name__}: {shortened(error)}")
    return Promise(name, bound, value)


@dataclass(frozen=True)
class ReadText:
    """Ids [time] for the last stack, and for an encoder-decoder also the ids of the source."""

    ids: Tensor
    source: Tensor | None = None


def random_texts(model: Model) -> list[ReadText]:
    """Return texts of random ids, for a model without data."""
    first, last = next(model.blueprint.stacks()), model.blueprint.last
    generator = torch.Generator().manual_seed(0)

    def ids(length: int, vocab_size: int | None, longest: int | None) -> Tensor:
        return torch.randint(0, vocab_size or 1, (min(length, longest or length),), generator=generator)

    return [
        ReadText(
            ids(length, last.vocab_size, last.max_length),
            ids(length + 1, first.vocab_size, first.max_length) if first is not last else None,
        )
        for length in RANDOM
    ]


def model_promises(model: Model, read: Callable[[], Sequence[ReadText]]) -> Iterator[Promise]:
    """Measure the promises that need only a model and the texts that `read` returns."""

    @cache
    def subject() -> Subject:
        if any(plan.reads_vectors for plan in model.blueprint.stacks()):
            raise NotApplicable("the model reads vectors, but this comparison needs token ids")
        return Subject(copy.deepcopy(model).double().eval(), read())

    yield proved("packed = apart", EQUAL, lambda: subject().packed())
    yield proved("padded left = right", EQUAL, lambda: subject().padded())
    yield proved("future leak", SAME, lambda: subject().future())
    yield proved("cached = uncached", EQUAL, lambda: subject().cached())
    yield proved("saved = loaded", 0.0, lambda: saved(model))


class Subject:
    """A float64 model, and the texts it is measured on."""

    def __init__(self, model: Model, texts: Sequence[ReadText]) -> None:
        self.model, self.texts = model, texts
        self.stacks = list(model.blueprint.stacks())
        self.last = model.blueprint.last
        self.pair = len(self.stacks) == 2
        # logits of a head on the encoder have the length of the source, not of the decoder's states
        head = model.blueprint.head
        self.reads_source = head is not None and self.pair and head.reads == "encoder"

    @torch.no_grad()
    def packed(self) -> float:
        """Compare packed texts with the same texts in separate rows."""
        if self.pair:
            raise NotApplicable("an encoder-decoder reads one text per row")
        if "prefix_length" in self.last.needs:
            raise NotApplicable("a prefix applies to a whole row")
        self._check("packing", "packed texts separate")
        room = (self.last.max_length or LONGEST * TEXTS) // len(self.texts)
        texts = [text.ids[:room] for text in self.texts]
        lengths = [len(ids) for ids in texts]
        positions = torch.cat([torch.arange(length) for length in lengths])
        segments = torch.cat([torch.full((length,), number) for number, length in enumerate(lengths, 1)])
        alone = [self._special(ids[None]) for ids in texts]
        more = {name: torch.cat([one[name] for one in alone], dim=1) for name in alone[0]}
        whole = self._outputs(
            {
                "input_ids": torch.cat(texts)[None],
                "position_ids": positions[None],
                "segment_ids": segments[None],
                **more,
            }
        )
        worst, start = 0.0, 0
        for ids, inputs in zip(texts, alone, strict=True):
            end = start + len(ids)
            out = tokenwise(self._outputs({"input_ids": ids[None], **inputs}))
            worst = max([worst, *(far(whole[name][:, start:end], value) for name, value in out.items())])
            start = end
        return worst

    @torch.no_grad()
    def padded(self) -> float:
        """Compare the outputs of real tokens with left and with right padding."""
        self._check("padding", "padding separate")
        left, right = (self._batch(side) for side in ("left", "right"))
        outs = [self._outputs(call) for call, _ in (left, right)]
        worst = 0.0
        for name, value in outs[1].items():
            right_value = value if name == "pooled" else value[right[1]]
            left_value = outs[0][name] if name == "pooled" else outs[0][name][left[1]]
            worst = max(worst, far(left_value, right_value))
        return worst

    @torch.no_grad()
    def future(self) -> float:
        """Change tokens one at a time and compare the outputs of earlier tokens."""
        if not self.last.causal:
            raise NotApplicable(f"the {self.last.side} is bidirectional")
        opens = any(rule.part.opens for plan in self.last.layers for rule in plan.mask)
        if opens and "prefix_length" not in self.last.needs:
            raise NotApplicable("a mask reveals later tokens")
        text = self._longest()
        before = tokenwise(self._outputs(self._call(text)))
        places = range(PREFIX if opens else 1, len(text.ids))
        worst = 0.0
        for place in places[:: max(1, len(places) // CHANGED)]:
            ids = text.ids.clone()
            ids[place] = (ids[place] + 1) % (self.last.vocab_size or 1)
            after = self._outputs(self._call(ReadText(ids, text.source)))
            worst = max([worst, *(far(after[name][:, :place], value[:, :place]) for name, value in before.items())])
        return worst

    @torch.no_grad()
    def cached(self) -> float:
        """Compare a full forward pass with cached decoding, half of the text at once and the rest token by token."""
        if not self.model.caches:
            lacking = self.last.without("cache")
            raise NotApplicable(f"{lacking[0]} has no cache" if lacking else f"the {self.last.side} is bidirectional")
        text = self._longest()
        whole = tokenwise(self._outputs(self._call(text)))
        half = max(len(text.ids) // 2, min(PREFIX, len(text.ids)))
        state, steps = self.model.new_state(), []
        for start, end in [(0, half), *((place, place + 1) for place in range(half, len(text.ids)))]:
            call = self._call(ReadText(text.ids[start:end], text.source), past=start)
            steps.append(tokenwise(self._outputs({**call, "state": state})))
        return max(far(torch.cat([step[name] for step in steps], dim=1), value) for name, value in whole.items())

    def _check(self, capability: str, keeps: str) -> None:
        """Raise NotApplicable if a part does not declare the capability."""
        lacking = [name for plan in self.stacks for name in plan.without(capability)]
        if lacking:
            raise NotApplicable(f"{lacking[0]} does not keep {keeps}")

    def _longest(self) -> ReadText:
        return max(self.texts, key=lambda text: len(text.ids))

    def _special(self, ids: Tensor, past: int = 0, shift: Tensor | None = None) -> dict[str, Tensor]:
        needs = frozenset(name for plan in self.stacks for name in plan.needs)
        return special(needs, ids, past, torch.zeros(len(ids), dtype=torch.long) if shift is None else shift)

    def _call(self, text: ReadText, past: int = 0) -> dict[str, object]:
        """Return the inputs for a single text."""
        if text.source is None:
            return {"input_ids": text.ids[None], **self._special(text.ids[None], past)}
        more = self._special(text.source[None])
        return {"input_ids": text.source[None], "decoder_input_ids": text.ids[None], **more}

    def _batch(self, side: str) -> tuple[dict[str, Tensor], Tensor]:
        """Return the inputs for all texts, padded on `side`, and the mask of real tokens in the last stack."""
        last = padded([text.ids for text in self.texts], side, 0)
        first = last
        sources = [text.source for text in self.texts if text.source is not None]
        if sources:
            first = padded(sources, side, 0)
        call = {"input_ids": first["ids"], "attention_mask": first["real"]}
        if sources:
            call |= {"decoder_input_ids": last["ids"], "decoder_attention_mask": last["real"]}
        return call | self._special(first["ids"], shift=first["shift"]), last["real"].bool()

    def _outputs(self, call: Mapping[str, object]) -> dict[str, Tensor]:
        """Return hidden states and logits; logits with one entry per text are called `pooled`."""
        device = next(self.model.parameters()).device
        on_device = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in call.items()}
        out = self.model(**on_device)
        outputs = {"hidden": out.hidden}
        if out.logits is not None and not self.reads_source:
            outputs["logits" if out.logits.dim() > 2 else "pooled"] = out.logits
        return {name: value.cpu() for name, value in outputs.items()}


def tokenwise(out: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the outputs with one entry per token."""
    return {name: value for name, value in out.items() if name != "pooled"}


def saved(model: Model) -> float:
    """Save the weights, load them into a differently initialized model, and compare."""
    own = Weights.of(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        own.save(file)
        other = build_model(model.blueprint, dtype=next(model.parameters()).dtype, seed=99)
        load_weights(other, file)
    return largest(own, Weights.of(other))


def largest(own: Weights, other: Weights) -> float:
    """Return the largest difference between tensors with equal names."""
    others = other.by_name()
    return max((far(tensor.cpu(), others[name].cpu()) for name, tensor in own.by_name().items()), default=0.0)
