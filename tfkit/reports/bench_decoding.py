"""Benchmark of decoding speed for models of common sizes, with other libraries for comparison."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table

from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.core.synonyms import nearest
from tfkit.core.trees import JsonObject, Tree
from tfkit.generation.decoder import Quantize, StepDecoder
from tfkit.generation.search import prepare
from tfkit.generation.texts import find
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

Call = Callable[[], object]
PROMPT = 32  # prompt length in tokens
OWN = "tfkit"
FLOOR = "weights alone"
OF_SOURCES = ("cross_attention.key.weight", "cross_attention.value.weight")  # used once, not at every step


@dataclass(frozen=True)
class Size:
    """A randomly initialized model: a GPT, or an encoder-decoder with `num_layers` on each side."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocab_size: int
    pair: bool = False


SIZES = {
    size.name: size
    for size in (
        Size("small", 6, 384, 6, 1536, 256),
        Size("gpt2", 12, 768, 12, 3072, 50257),
        Size("pair", 3, 256, 4, 1024, 8000, pair=True),
    )
}


@dataclass(frozen=True)
class Work:
    """A decoding task: `new` tokens for each of `batch` prompts, with greedy or beam search."""

    size: Size
    batch: int
    beams: int
    new: int

    def prompts(self) -> torch.Tensor:
        """Return reproducible random ids [batch time], without special tokens."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(3, self.size.vocab_size, (self.batch, PROMPT), generator=generator)


Peer = Callable[[Work], Call | None]  # a call of another library; None if it does not support the task


@dataclass(frozen=True)
class Timed:
    """Seconds that one method needed in each round, or None if it does not support the task."""

    work: Work
    way: str
    seconds: tuple[float, ...] | None


def chosen(names: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """Return the names. Raise UsageError for unknown names."""
    for name in names:
        if name not in known:
            hint = nearest(name, list(known))
            hint_text = f"did you mean '{hint}'?" if hint else f"available: {', '.join(known)}"
            raise UsageError(f"unknown {what} '{name}'; {hint_text}")
    return list(names)


def measure(works: Sequence[Work], peers: Mapping[str, Peer], rounds: int) -> Iterator[Timed]:
    """Time all methods for each task. Methods alternate within a round, so that disturbances affect all of them."""
    for work in works:
        calls = ways(work, peers)
        supported = {name: call for name, call in calls.items() if call is not None}
        seconds: dict[str, list[float]] = {name: [] for name in supported}
        for number in range(rounds + 1):
            for name, call in supported.items():
                elapsed = _seconds(call)
                if number:  # the first round is a warm-up
                    seconds[name].append(elapsed)
        for name in calls:
            yield Timed(work, name, tuple(seconds[name]) if name in seconds else None)


def ways(work: Work, peers: Mapping[str, Peer]) -> dict[str, Call | None]:
    """Return the call for tfkit, quantized tfkit and each peer; None if a method does not support the task.

    A multiplication by the weights alone is included as a lower bound. Raise UsageError if a library is missing.
    """
    model = build_model(load_recipe({"tfkit": 1, "model": recipe(work.size)}).blueprint(), seed=0).eval()
    own: dict[str, Call | None] = {OWN: _own(model, work, None)}
    own |= {f"{OWN} {name}": _own(model, work, name) for name in get_args(Quantize)}
    return own | {FLOOR: _floor(model, work)} | {name: peer(work) for name, peer in peers.items()}


def recipe(size: Size) -> Tree:
    """Return the `model:` section for a model of this size."""
    layer = {
        "residual": "post_norm" if size.pair else "pre_norm",
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": size.num_heads},
        "feedforward": {"type": "mlp", "d_ff": size.d_ff, "activation": "relu" if size.pair else "gelu_tanh"},
    }
    common = {
        "d_model": size.d_model,
        "vocab_size": size.vocab_size,
        "layer": layer,
        "head": {"type": "language_model", "tied": True},
    }
    if not size.pair:
        own = {"type": "decoder", "embedding": "tokens", "position": "learned", "max_length": 1024}
        return common | own | {"num_layers": size.num_layers}
    stack = {"num_layers": size.num_layers}
    embedding = {"type": "tokens", "scale": "sqrt_d_model", "shared": True}
    own = {"type": "encoder_decoder", "embedding": embedding, "position": "sinusoidal"}
    return common | own | {"encoder": stack, "decoder": stack}


def _own(model: Model, work: Work, quantize: Quantize | None) -> Call:
    part: object = "greedy" if work.beams == 1 else {"type": "beam", "num_beams": work.beams}
    strategy: Any = Slot("strategy").validate(part).build()
    read = work.prompts().tolist()
    prompts = [[1]] * work.batch if work.size.pair else read
    decoder = StepDecoder(model, quantize)

    def call() -> None:
        sources = read if work.size.pair else None
        find(strategy, prepare(model, prompts, work.new, sources=sources, decoder=decoder), work.batch)

    return call


def _floor(model: Model, work: Work) -> Call:
    """Return a call that multiplies each weight by one vector per step: a lower bound for float32 weights."""
    layers = model.stack(model.blueprint.last.side).layers
    named = [*layers.named_parameters(), *(model.head.named_parameters() if model.head is not None else ())]
    weights = [weight.detach() for name, weight in named if weight.dim() == 2 and not name.endswith(OF_SOURCES)]
    products = [(weight, weight.new_ones(weight.shape[1])) for weight in weights]

    def call() -> None:
        for _ in range(work.new):
            for weight, vector in products:
                torch.mv(weight, vector)

    return call


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def as_data(timings: Sequence[Timed]) -> list[JsonObject]:
    """Return the measurements as data; `ratio` is the median over rounds of the time relative to tfkit's."""
    own = {timed.work: timed.seconds for timed in timings if timed.way == OWN}
    return [_row(timed, own[timed.work] or ()) for timed in timings]


def _row(timed: Timed, own: Sequence[float]) -> dict[str, object]:
    work = timed.work
    row: dict[str, object] = {
        "model": work.size.name,
        "batch": work.batch,
        "beams": work.beams,
        "new_tokens": work.new,
        "way": timed.way,
    }
    if timed.seconds is None:
        return {**row, "step_ms": None, "tokens_per_second": None, "ratio": None, "ratios": None}
    median = statistics.median(timed.seconds)
    ratios = sorted(seconds / own_seconds for seconds, own_seconds in zip(timed.seconds, own, strict=True))
    return {
        **row,
        "step_ms": 1000 * median / work.new,
        "tokens_per_second": work.batch * work.new / median,
        "ratio": statistics.median(ratios),
        "ratios": [ratios[0], ratios[-1]],
    }


def render(rows: Sequence[JsonObject], console: Console) -> None:
    """Print the measurements."""
    new = rows[0]["new_tokens"]
    console.print(
        f"{new} tokens after {PROMPT}, random weights, float32, {torch.get_num_threads()} CPU threads; medians of "
        "alternating rounds.",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for title in ("model", "batch", "beams", "way"):
        table.add_column(title, no_wrap=True)
    for title in ("step ms", "tokens/s", "x tfkit", "range"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row[name]) for name in ("model", "batch", "beams", "way")]
        if row["ratio"] is None:
            table.add_row(*cells, "-", "-", "-", "-")
            continue
        least, most = row["ratios"]
        figures = [f"{row['step_ms']:.2f}", f"{row['tokens_per_second']:,.0f}", f"{row['ratio']:.2f}x"]
        table.add_row(*cells, *figures, f"{least:.2f}-{most:.2f}")
    console.print(table)
    console.print(
        f"\n{FLOOR}: one matrix-vector product per weight with torch's Linear. "
        "-: the method does not support this model or search.",
        style="dim",
    )
