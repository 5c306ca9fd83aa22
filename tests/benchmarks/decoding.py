"""Benchmark of decoding speed for models of common sizes, with other libraries for comparison."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import get_args

import torch

from tests.benchmarks.rounds import OWN, Call, Make, alternate, compared, measured_calls, print_table, say, timed, where
from tfkit.core.bounds import JsonObject, Tree
from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.generation.decoder import Quantize, StepDecoder
from tfkit.generation.layers import check_quantized
from tfkit.generation.search import Candidate, prepare
from tfkit.generation.texts import find
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

PROMPT, LENGTH = 32, 1024  # tokens of a prompt, positions of a decoder
PIXELS, PATCH = 224, 16  # height and width of a picture and of its patches
START = 1  # first token of a target
# as in GPT-2, BERT, ViT and Marian
ACTIVATIONS = {"decoder": "gelu_tanh", "encoder": "gelu", "pictures": "gelu", "encoder_decoder": "relu"}
FLOOR = "weights alone"
NARROW = {"int8": 1, "bfloat16": 2}  # bytes per weight of ways with these names; others have 4
READ_BYTES = 1 << 28  # bytes that are read to measure the bandwidth
OF_SOURCES = ("cross_attention.key.weight", "cross_attention.value.weight")  # used once per source, not per step


@dataclass(frozen=True)
class Size:
    """A randomly initialized model: a GPT, a BERT, a ViT, or an encoder-decoder with `num_layers` on each side.

    A ViT ("pictures") has `vocab_size` classes.
    """

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocab_size: int
    type: str = "decoder"

    @property
    def pair(self) -> bool:
        """True for an encoder-decoder."""
        return self.type == "encoder_decoder"


SIZES = {
    size.name: size
    for size in (
        Size("small", 6, 384, 6, 1536, 256),
        Size("gpt2", 12, 768, 12, 3072, 50257),
        Size("pair", 3, 256, 4, 1024, 8000, "encoder_decoder"),
    )
}


@dataclass(frozen=True)
class Work:
    """A decoding task: `new` tokens for each of `batch` prompts, with greedy or beam search, on CPU `threads`."""

    size: Size
    batch: int
    beams: int
    new: int
    device: str = "cpu"
    threads: int = field(default_factory=torch.get_num_threads)

    def prompts(self) -> torch.Tensor:
        """Return reproducible random ids [batch time], without special tokens."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(3, self.size.vocab_size, (self.batch, PROMPT), generator=generator).to(self.device)


# a call of another library; None if the library does not support the task
Decoder = Callable[[Work, Model], Call | None]


def measure(works: Sequence[Work], peers: Mapping[str, Decoder], rounds: int) -> Iterator[JsonObject]:
    """Time tfkit, quantized tfkit, the products alone and the peers in alternating rounds.

    Raise UsageError if a library is missing.
    """
    for work in works:
        makes: dict[str, Make] = {OWN: partial(_own, work, None)}
        makes |= {f"{OWN} {name}": partial(_own, work, name) for name in get_args(Quantize)}
        makes |= {f"{OWN} invariant": partial(_invariant, work)} if work.batch > 1 and work.device == "cpu" else {}
        makes |= {FLOOR: partial(_floor, work)} | {name: partial(_peer, work, peer) for name, peer in peers.items()}
        with measured_calls(makes) as calls:
            times = alternate(calls, rounds)
            rate = calls[FLOOR].ask(partial(_read_rate, work.device))
        own = times[OWN] or ()
        yield from (_row(work, name, seconds, own, rate) for name, seconds in times.items())


def build(work: Work) -> Model:
    """Return the model of a task in eval mode, with reproducible random weights."""
    model = _build(work.size, work.device).eval()
    if work.size.pair:
        with torch.no_grad():
            model.get_parameter("decoder.embedding.tokens.weight")[START] = 0  # as in Marian
    return model


def _build(size: Size, device: str) -> Model:
    return build_model(load_recipe({"tfkit": 1, "model": recipe(size)}).blueprint(), device=device, seed=0)


def _own(work: Work, quantize: Quantize | None) -> Call | None:
    model = build(work)
    if quantize is not None:
        try:
            check_quantized(next(model.parameters()), quantize)
        except UsageError:
            return None
    return decoding(model, work, quantize)


def _invariant(work: Work) -> Call | None:
    return decoding(build(work), work, invariant=True)


def _peer(work: Work, peer: Decoder) -> Call | None:
    return peer(work, build(work))


def recipe(size: Size, dropout: float = 0.0) -> Tree:
    """Return the model section for this size."""
    layer = {
        "residual": "pre_norm" if size.type in ("decoder", "pictures") else "post_norm",
        "norm": "layer_norm",
        "dropout": dropout,
        "attention": {"type": "multi_head", "num_heads": size.num_heads, "dropout": dropout},
        "feedforward": {"type": "mlp", "d_ff": size.d_ff, "activation": ACTIVATIONS[size.type]},
    }
    common = {
        "type": size.type,
        "d_model": size.d_model,
        "vocab_size": size.vocab_size,
        "layer": layer,
        "head": {"type": "masked_lm" if size.type == "encoder" else "language_model", "tied": True},
    }
    if size.type == "pictures":
        embedding = {"type": "patches", "size": PATCH, "class_token": True, "dropout": dropout}
        own = {"type": "encoder", "embedding": embedding, "position": "learned", "num_layers": size.num_layers}
        more = {
            "max_length": (PIXELS // PATCH) ** 2 + 1,
            "head": {"type": "classifier", "num_classes": size.vocab_size},
        }
        return {name: part for name, part in common.items() if name != "vocab_size"} | own | more
    if not size.pair:
        own = {"embedding": {"type": "tokens", "dropout": dropout}, "position": "learned", "max_length": LENGTH}
        return common | own | {"num_layers": size.num_layers}
    stack = {"num_layers": size.num_layers}
    embedding = {"type": "tokens", "scale": "sqrt_d_model", "shared": True, "dropout": dropout}
    position = {"type": "sinusoidal", "layout": "halves"}  # as in Marian
    return common | {"embedding": embedding, "position": position, "encoder": stack, "decoder": stack}


def decoding(
    model: Model, work: Work, quantize: Quantize | None = None, **how: bool
) -> Callable[[], list[list[Candidate]]]:
    """Return a call that decodes with tfkit: the candidates of each prompt, of a search as described by `how`."""
    part: object = "greedy" if work.beams == 1 else {"type": "beam", "num_beams": work.beams}
    strategy = Slot("strategy").validate(part).build()
    read = work.prompts().tolist()
    prompts = [[START]] * work.batch if work.size.pair else read
    decoder = StepDecoder(model, quantize)

    def call() -> list[list[Candidate]]:
        sources = read if work.size.pair else None
        search = prepare(model, prompts, work.new, sources=sources, decoder=decoder, **how)
        return find(strategy, search, work.batch)

    return call


def _floor(work: Work) -> Call:
    """Return a call that multiplies each weight matrix by one vector per step, a lower bound with float32 weights."""
    products = [(weight, weight.new_ones(weight.shape[1])) for weight in _matrices(build(work))]

    def call() -> None:
        for _ in range(work.new):
            for weight, vector in products:
                torch.mv(weight, vector)

    return call


def _matrices(model: Model) -> list[torch.Tensor]:
    """Return the matrices that each step reads."""
    layers = model.stack(model.blueprint.last.side).layers
    named = [*layers.named_parameters(), *(model.head.named_parameters() if model.head is not None else ())]
    return [weight.detach() for name, weight in named if weight.dim() == 2 and not name.endswith(OF_SOURCES)]


def step_bytes(size: Size, way: str) -> int:
    """Return the bytes of the weights that a method reads per step."""
    each = next((count for name, count in NARROW.items() if name in way), 4)
    return each * sum(weight.numel() for weight in _matrices(_build(size, "meta")))


def _read_rate(device: str, _: Call) -> float:
    """Return the bytes per second at which a large tensor is read."""
    large = torch.ones(READ_BYTES // 4, device=device)
    return READ_BYTES / min(timed(large.sum) for _ in range(5))


def _row(work: Work, way: str, seconds: Sequence[float] | None, own: Sequence[float], read_rate: float) -> JsonObject:
    """Return a measurement as data; `ratio` is the median over rounds of the time relative to tfkit's.

    `read_rate` is the memory bandwidth of the device in bytes per second.
    """
    task = {"model": work.size.name, "batch": work.batch, "beams": work.beams, "new_tokens": work.new, "way": way}
    times = compared(seconds, own)
    middle = times.pop("seconds")
    speed = dict.fromkeys(("step_ms", "tokens_per_second", "bandwidth"))
    if middle is not None:
        speed = {
            "step_ms": 1000 * middle / work.new,
            "tokens_per_second": work.batch * work.new / middle,
            "bandwidth": step_bytes(work.size, way) * work.new / middle / read_rate,
        }
    return {**task, **speed, "bytes_per_second": read_rate, **times}


def render(rows: Sequence[JsonObject], device: str) -> None:
    """Print the results."""
    say(
        f"{rows[0]['new_tokens']} tokens after {PROMPT}, random weights, float32, {where(device)}; medians of "
        "alternating rounds, each method in a process of its own."
    )
    figures = {"step ms": "{step_ms:.2f}", "tokens/s": "{tokens_per_second:,.0f}", "bandwidth": "{bandwidth:.0%}"}
    print_table(rows, ("model", "batch", "beams", "way"), figures)
    rate = statistics.median(row["bytes_per_second"] for row in rows)
    say(
        f"\nbandwidth: bytes of weights per second, as a share of the rate at which memory is read (here "
        f"{rate / 1e9:,.0f} GB/s). {FLOOR}: one product of each weight with a vector by torch's plain layer. "
        "-: the method does not support this model or search.",
        style="dim",
    )
