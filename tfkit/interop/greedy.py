"""Shared checks of exported files against their run: greedy tokens and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

import torch

from tfkit.core.bounds import JsonObject
from tfkit.interop.huggingface.exporting import special_ids_of
from tfkit.models import Model
from tfkit.run import Run

TOLERANCE = 1e-4  # maximum absolute difference of any output
WORST = 1.001  # highest allowed ratio of int8 to float32 perplexity
SLACK = 2.0  # highest allowed ratio of an int8 file's difference to that of the run quantized again
PROMPTS, LONGEST, NEW = 20, 12, 16  # number of random prompts, maximum prompt length, new tokens per prompt


class BoundaryTokens(TypedDict):
    """Start and end tokens of generated text."""

    start: int | None  # first decoder token of an encoder-decoder
    ends: list[int]


Write = Callable[[list[int], int], list[int]]  # (prompt, limit) -> new ids


@dataclass
class FilesVerdict:
    """Result of a comparison of exported files with their run."""

    tolerance: float
    differences: dict[str, float] = field(default_factory=dict)
    equal_prompts: int | None = None  # None if the model does not generate
    prompts: int = PROMPTS
    quantized: bool = False
    figures: dict[str, dict[str, float]] = field(default_factory=dict)  # "float32" or "int8" -> measurements
    bounds: dict[str, float] = field(default_factory=dict)  # int8 file -> largest allowed difference

    @property
    def failures(self) -> list[str]:
        bounds = {name: self.bounds.get(name, self.tolerance) for name in self.differences}
        off = [
            f"{name}: off by {worst:.1e}, more than {bounds[name]:.1e}"
            for name, worst in self.differences.items()
            if not worst <= bounds[name]
        ]
        if self.quantized:
            whole, small = (self.figures[name].get("perplexity", 1.0) for name in ("float32", "int8"))
            wrong = f"int8 perplexity {small:.3f} exceeds {WORST} times the float32 perplexity {whole:.3f}"
            return off if small <= WORST * whole else [*off, wrong]
        if self.equal_prompts is not None and self.equal_prompts < self.prompts:
            off.append(f"greedy tokens: equal for only {self.equal_prompts} of {self.prompts} prompts")
        return off

    def as_data(self) -> JsonObject:
        return {**vars(self), "equal": not self.failures, "failures": self.failures}


def boundary_tokens(run: Run) -> BoundaryTokens:
    """Return the start and end tokens of a run."""
    special = special_ids_of(run)
    paired = run.blueprint.encoder is not None and run.blueprint.decoder is not None
    return {"start": special.get("start") if paired else None, "ends": [special["end"]] if "end" in special else []}


def equal_prompts(model: Model, special: BoundaryTokens, write: Write) -> int:
    """Count those of 20 reproducible prompts for which `write` produces the model's greedy tokens."""
    generator, equal = torch.Generator().manual_seed(0), 0
    size, most = next(model.blueprint.stacks()).vocab_size or 1, model.blueprint.last.max_length or LONGEST + NEW
    for number in range(PROMPTS):
        length = min(1 + number % LONGEST, max(1, most - 1))
        ids = torch.randint(size // 8, size, (length,), generator=generator).tolist()
        count = min(NEW, most - (length if special["start"] is None else 1))
        equal += write(ids, count) == greedy(model, ids, count, special)
    return equal


@torch.no_grad()
def greedy(model: Model, ids: list[int], count: int, special: BoundaryTokens) -> list[int]:
    """Decode greedily without a cache."""
    start, source = special["start"], torch.tensor([ids])
    text = list(ids) if start is None else [start]
    prompt = len(text)
    for _ in range(count):
        read = torch.tensor([text])
        inputs = {"input_ids": read} if start is None else {"input_ids": source, "decoder_input_ids": read}
        new = int(model(**inputs).logits[0, -1].argmax())
        if new in special["ends"]:
            break
        text.append(new)
    return text[prompt:]
