"""Small models that contain a part under test, the part alone, and their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.contracts.cases import Case, blueprint, load
from tfkit.contracts.expect import Broken
from tfkit.contracts.options import D_MODEL, VOCABULARY
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Shape
from tfkit.core.context import Collector, Context
from tfkit.core.options import Slot
from tfkit.core.slots import AttentionFacts
from tfkit.models.alone import context
from tfkit.models.base import Model
from tfkit.models.build import build_model

SOURCE = 6  # source length of the encoder-decoder
PREFIX = 3  # prefix length of the prefix mask
PAD = 0
Arguments = dict[str, Any]  # of a model call, by name


@dataclass(frozen=True, kw_only=True)
class Trained(Case):
    """A given float64 model in place of a small one; it promises what all its parts declare."""

    made: Model

    @property
    def blueprint(self) -> Blueprint:
        return self.made.blueprint

    def lacking(self, capability: str) -> list[str]:
        return [name for plan in self.blueprint.stacks() for name in plan.without(capability)]


@cache
def model(case: Case, dtype: torch.dtype = torch.float64, num_layers: int = 2) -> Model:
    """Return the model of the case in eval mode, with noise on every weight, since zeros could hide errors."""
    if isinstance(case, Trained):
        return case.made
    made = build_model(blueprint(case, num_layers), seed=1)
    if dtype != torch.float32:
        made.load_state_dict(model(case, torch.float32, num_layers).state_dict())
        return made.to(dtype).eval()
    randomise(made)
    return made.eval()


def fresh(case: Case) -> Model:
    """Return a float64 copy of the model of the case, which the caller may modify."""
    made = build_model(blueprint(case), seed=1).double().eval()
    made.load_state_dict(model(case).state_dict())
    return made


def forget() -> None:
    """Clear the caches of models and Blueprints."""
    for kept in (model, blueprint, load, answers_tokens):
        kept.cache_clear()


def randomise(made: nn.Module) -> None:
    """Add noise to every weight; norm weights remain near 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)


def tokens(batch: int, time: int, seed: int = 0) -> Tensor:
    """Return random ids [batch time] other than 0."""
    return torch.randint(1, VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(100 + seed))


def changed(ids: Tensor, place: int) -> Tensor:
    """Return a copy of the ids with a different token at index `place`."""
    out = ids.clone()
    out[:, place] += torch.where(out[:, place] > 1, -1, 1)
    return out


def special(needs: frozenset[str], ids: Tensor, past: int = 0, shift: Tensor | None = None) -> Arguments:
    """Return the additional inputs that the parts need; `shift` [batch] is the left padding of each row."""
    shift = torch.zeros(len(ids), dtype=torch.long) if shift is None else shift
    inputs = {}
    for name in needs:
        if name == "prefix_length":
            inputs[name] = shift + PREFIX
        elif name == "global_attention_mask":
            place = torch.arange(past + ids.shape[1])
            inputs[name] = (place[None] == shift[:, None].clamp(max=ids.shape[1] - 1)).long()
        elif name == "token_type_ids":
            inputs[name] = (torch.arange(past, past + ids.shape[1])[None] >= shift[:, None] + PREFIX).long()
        else:
            raise Broken(f"needs the input '{name}', which models do not have")
    return inputs


def extra(case: Case, ids: Tensor, dtype: torch.dtype = torch.float64) -> Arguments:
    """Return random vectors as the extra inputs that the parts declare, equal in all rows, as the argument `inputs`."""
    draws = torch.Generator().manual_seed(70)
    found = {
        name: torch.randn(1, width, generator=draws, dtype=torch.float64).to(dtype).repeat(len(ids), 1)
        for name, (width, _) in sorted(case.blueprint.extra_inputs.items())
    }
    return {"inputs": found} if found else {}


def padded(rows: Sequence[Tensor], side: str, fill: int) -> dict[str, Tensor]:
    """Batch rows of different lengths; return ids, padding mask and the left padding of each row."""
    width = max(len(row) for row in rows) + 1
    ids = torch.full((len(rows), width), fill)
    real = torch.zeros(len(rows), width, dtype=torch.long)
    shift = torch.zeros(len(rows), dtype=torch.long)
    for index, row in enumerate(rows):
        start = width - len(row) if side == "left" else 0
        place = slice(start, start + len(row))
        ids[index, place], real[index, place] = row, 1
        shift[index] = start
    return {"ids": ids, "real": real, "shift": shift}


def arguments_of(case: Case, ids: Tensor) -> Arguments:
    """Return the minimal inputs of a call with [batch time] ids, which both sides of an encoder-decoder read."""
    inputs = special(case.needs, ids) | extra(case, ids)
    return as_read(case, inputs | {"input_ids": ids, **({"decoder_input_ids": ids} if case.pair else {})})


def as_read(case: Case, arguments: Arguments, dtype: torch.dtype = torch.float64) -> Arguments:
    """Replace ids with vectors for stacks that read vectors."""
    plans = list(case.blueprint.stacks())
    for plan, name in zip(plans, ("input_ids", "decoder_input_ids"), strict=False):
        width = None if plan.embedding is None else plan.embedding.reads(plan.shape())
        if width is not None and name in arguments:
            arguments[name.replace("input_ids", "inputs_embeds")] = _vectors(width, dtype)[arguments.pop(name)]
    return arguments


@cache
def _vectors(width: int, dtype: torch.dtype) -> Tensor:
    """Return a random vector for each id, [ids width]."""
    return torch.randn(VOCABULARY, width, generator=torch.Generator().manual_seed(60)).to(dtype)


def run(
    case: Case,
    ids: Tensor,
    real: Tensor | None = None,
    positions: Tensor | None = None,
    shift: Tensor | None = None,
    source: Tensor | None = None,
    source_real: Tensor | None = None,
    source_shift: Tensor | None = None,
    on: Any = None,
    **more: Any,
) -> dict[str, Tensor]:
    """Return the outputs for [batch time] ids: `hidden`, and `logits` or, for one output per row, `pooled`.

    In an encoder-decoder, the ids are those of the decoder, and all rows have the same source unless `source` is given.
    """
    called = on if on is not None else model(case)
    state = more.get("state")
    past = 0 if state is None or case.pair else state.length
    arguments: Arguments
    if case.pair:
        source = tokens(1, SOURCE, seed=9).expand(ids.shape[0], -1) if source is None else source
        arguments = {"input_ids": source, "attention_mask": source_real, "decoder_input_ids": ids}
        arguments |= {"decoder_attention_mask": real, "decoder_position_ids": positions}
        shift = source_shift
    else:
        arguments = {"input_ids": ids, "attention_mask": real, "position_ids": positions}
    dtype = next((weight.dtype for weight in called.parameters()), torch.float32)
    arguments |= special(case.needs, arguments["input_ids"], past, shift) | extra(case, ids, dtype) | more
    arguments = as_read(case, {name: value for name, value in arguments.items() if value is not None}, dtype)
    return outputs(case, called(**arguments))


def outputs(case: Case, out: Any) -> dict[str, Tensor]:
    """Return the outputs by name; logits with one entry per row are called `pooled`."""
    by_name, head = {"hidden": out.hidden}, case.blueprint.head
    # logits of a head on the encoder have the length of the source, not of the decoder's states
    if out.logits is not None and not (case.pair and head is not None and head.reads == "encoder"):
        by_name["logits" if answers_tokens(case) else "pooled"] = out.logits
    return by_name


def tokenwise(out: dict[str, Tensor]) -> dict[str, Tensor]:
    """Select the outputs with one entry per token."""
    return {name: value for name, value in out.items() if name != "pooled"}


@cache
def answers_tokens(case: Case) -> bool:
    """True if the head has one output per token, so that its second axis grows with the length."""
    shapes = []
    for time in (3, 4):
        with torch.no_grad():
            ids = torch.ones(2, time, dtype=torch.long)
            shapes.append(tuple(model(case)(**arguments_of(case, ids)).logits.shape))
    return [shape[1:2] for shape in shapes] == [(3,), (4,)]


TIME = 6


def states(rows: int, time: int, *sizes: int, seed: int = 1) -> Tensor:
    """Return random hidden states [rows time width] in float64."""
    shape = (rows, time, *(sizes or (D_MODEL,)))
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Alone:
    """The part of a case with randomized weights, built as causal if it supports that."""

    def __init__(
        self, case: Case, memory_width: int | None = None, both_ways: bool = False, dtype: torch.dtype = torch.float64
    ) -> None:
        self.case, config = case, case.config
        heads = config.heads() if isinstance(config, AttentionFacts.Config) else None
        causal = case.declares("causal") and memory_width is None and not both_ways
        self.shape = replace(case.shape, causal=causal, memory_width=memory_width, num_heads=heads)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            part: nn.Module = config.build(self.shape)
        randomise(part)
        self.part = part.to(dtype).eval()
        writer = case.writer
        self.writer = None if writer is None else writer.build(self.shape).to(dtype).eval()

    def __call__(self, x: Tensor, **how: Any) -> Tensor:
        """Map [rows time d_model] to the same shape; `how` are keywords of `tfkit.models.alone.context`."""
        with torch.no_grad():
            out: Tensor = self.part(x, self.context(x, **how))
        return out

    def states(self, rows: int, time: int = TIME, seed: int = 1) -> Tensor:
        return states(rows, time, *self.case.sizes, seed=seed)

    def context(self, x: Tensor, **how: Any) -> Context:
        """Return the context of a call with random ids, which a part may read."""
        made = context(x, causal=self.shape.causal, **how)
        ids, of_case = tokens(*x.shape[:2]), extra(self.case, x, x.dtype).get("inputs", {})
        inputs = replace(made.inputs, input_ids=ids, extra=of_case)
        made = replace(made, inputs=inputs, store=self.case.store(ids, x.dtype))
        if self.writer is not None and self.shape.memory_width is None:
            with torch.no_grad():
                self.writer(x, replace(made, state=None, collector=Collector()))
        return made


def built(slot: str, name: str, shape: Shape) -> Any:
    """Build a shipped part with default options."""
    return Slot(slot).validate(name).build(shape)
