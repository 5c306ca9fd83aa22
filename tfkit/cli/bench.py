"""`tfkit bench`: time and memory on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfkit.cli.options import DEVICE, EXACT_JSON, Finite, ParamType, ReadOptions, Whole, reads_recipe
from tfkit.cli.terminal import echo, echo_json
from tfkit.core.bounds import COUNT, HEADS, ROWS, TEXTS, WIDTH, WRITTEN
from tfkit.core.trees import JsonObject

if TYPE_CHECKING:
    from tfkit.interop.bench.cases import BenchCase, Peer
    from tfkit.recipe.load import Recipe

MODELS = (
    "Models, comma-separated: gpt (10M parameters), gpt50257 (30M, for its vocabulary of 50,257 tokens), bert (23M), "
    "bert-base (110M), gpt2 (124M, 16 rows of 1,024 tokens in training), pair (an encoder-decoder, 8M)."
)
ROUNDS = "Repetitions of each measurement."
LENGTHS = "512,1024,2048,4096,8192,16384"


class Several(ParamType):
    """Comma-separated values."""

    def __init__(self, one: ParamType) -> None:
        self.one = one
        self.name = f"{one.name},..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[object]:
        """Convert each value and drop duplicates."""
        values = [self.one.convert(part.strip(), param, ctx) for part in str(value).split(",") if part.strip()]
        return list(dict.fromkeys(values)) or self.fail("expected at least one value", param, ctx)


@click.group("bench")
def command() -> None:
    """Measure time and memory on this machine."""


@command.command("attention")
@click.option(
    "--lengths",
    type=Several(Whole(COUNT)),
    default=LENGTHS,
    show_default=True,
    help="Lengths in tokens, comma-separated.",
)
@click.option(
    "--attentions",
    type=Several(click.STRING),
    help="Attentions and mixers, comma-separated.  [default: full,window,chunk,longformer,performer,linear]",
)
@click.option("--d-model", type=Whole(WIDTH), default=256, show_default=True, help="Width of the layer.")
@click.option("--heads", type=Whole(HEADS), default=4, show_default=True, help="Heads of the attentions.")
@click.option("--window", type=Whole(COUNT, 2), default=256, show_default=True, help="Keys per window or chunk.")
@click.option("--causal", is_flag=True, help="Measure causal layers.")
@click.option("--backward", is_flag=True, help="Include the backward pass.")
@DEVICE
@EXACT_JSON
def attention(
    lengths: list[int],
    attentions: list[str] | None,
    d_model: int,
    heads: int,
    window: int,
    causal: bool,
    backward: bool,
    device: str,
    as_json: bool,
) -> None:
    """Measure time and peak memory of attentions and mixers by sequence length."""
    from tfkit.core.console import Console
    from tfkit.reports import bench

    setting = bench.BenchSetting(d_model, heads, window, causal, backward, _device(device))
    names = bench.attentions(attentions, setting)
    measured = []
    with Console(stderr=True).status("measuring") as status:
        for one in bench.measure(names, lengths, setting):
            status.update(f"measured {one.attention} at {one.length:,} tokens")
            measured.append(one)
    data = bench.as_data(measured, setting)
    if as_json:
        echo_json(data)
    else:
        bench.render(data, Console())


@command.command("decoding")
@click.option(
    "--models",
    type=Several(click.STRING),
    default="small,gpt2,pair",
    show_default=True,
    help="Model sizes, comma-separated.",
)
@click.option(
    "--batches", type=Several(Whole(ROWS)), default="1,8", show_default=True, help="Batch sizes, comma-separated."
)
@click.option(
    "--beams",
    type=Several(Whole(TEXTS)),
    default="1",
    show_default=True,
    help="Numbers of beams, comma-separated; 1: greedy search.",
)
@click.option("--new", type=Whole(WRITTEN), default=128, show_default=True, help="New tokens, after 32 prompt tokens.")
@click.option("--rounds", type=Whole(COUNT), default=10, show_default=True, help="Repetitions of each measurement.")
@click.option(
    "--against",
    type=Several(click.STRING),
    help="Libraries to compare tfkit with, comma-separated: transformers, transformers-static, x-transformers, litgpt, "
    "ctranslate2, ctranslate2-int8.",
)
@DEVICE
@EXACT_JSON
def decoding(
    models: list[str],
    batches: list[int],
    beams: list[int],
    new: int,
    rounds: int,
    against: list[str] | None,
    device: str,
    as_json: bool,
) -> None:
    """Measure generation speed: small (a GPT of 10M parameters), gpt2 (124M), pair (an encoder-decoder)."""
    from tfkit.core.console import Console
    from tfkit.interop.bench.decoders import DECODERS
    from tfkit.reports.bench_decoding import SIZES, Work, as_data, measure, render
    from tfkit.reports.rounds import chosen

    sizes = [SIZES[name] for name in chosen(models, list(SIZES), "model")]
    peers = {name: DECODERS[name] for name in chosen(against or [], list(DECODERS), "library")}
    device = _device(device)
    works = [Work(size, batch, count, new, device) for size in sizes for batch in batches for count in beams]
    measurements = []
    with Console(stderr=True).status("measuring") as status:
        for timed in measure(works, peers, rounds):
            status.update(f"measured {timed.way} with {timed.work.size.name}, {timed.work.batch} at once")
            measurements.append(timed)
    rows = as_data(measurements)
    if as_json:
        echo_json(rows)
    else:
        render(rows, Console(), device)


def _models_options(default: str, libraries: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that `bench training` and `bench forward` share."""
    options = (
        click.option("--models", type=Several(click.STRING), default=default, show_default=True, help=MODELS),
        click.option("--rounds", type=Whole(COUNT), default=10, show_default=True, help=ROUNDS),
        click.option(
            "--against",
            type=Several(click.STRING),
            help=f"Libraries to compare tfkit with, comma-separated: {libraries}.",
        ),
        DEVICE,
        click.option("--precision", type=click.Choice(("float32", "bfloat16")), default="float32", show_default=True),
        EXACT_JSON,
    )
    return lambda function: reduce(lambda inner, option: option(inner), reversed(options), function)


@command.command("training")
@_models_options("gpt,bert,pair", "transformers, torch")
@click.option(
    "--dropout",
    type=Several(Finite(0, 1, max_open=True)),
    default="0,0.1",
    show_default=True,
    help="Dropout rates, comma-separated.",
)
def training(
    models: list[str],
    rounds: int,
    against: list[str] | None,
    device: str,
    precision: str,
    as_json: bool,
    dropout: list[float],
) -> None:
    """Measure training steps of a GPT, a BERT and an encoder-decoder: loss, gradients, clipping and AdamW."""
    from tfkit.interop.bench.cases import TRAINED
    from tfkit.interop.bench.peers import TRAINERS
    from tfkit.reports.rounds import chosen

    device = _device(device)
    cases = [
        replace(TRAINED[name], dropout=rate, device=device, precision=precision)
        for name in chosen(models, list(TRAINED), "model")
        for rate in dropout
    ]
    peers = {name: TRAINERS[name] for name in chosen(against or [], list(TRAINERS), "library")}
    _print_models(cases, peers, rounds, as_json)


@command.command("forward")
@_models_options("bert-base", "transformers, torch, onnxruntime, openvino")
@click.option(
    "--batches", type=Several(Whole(ROWS)), default="1,8", show_default=True, help="Batch sizes, comma-separated."
)
def forward_passes(
    models: list[str],
    rounds: int,
    against: list[str] | None,
    device: str,
    precision: str,
    as_json: bool,
    batches: list[int],
) -> None:
    """Measure forward passes over 128 tokens, with all logits."""
    from tfkit.interop.bench.cases import READ
    from tfkit.interop.bench.peers import READERS
    from tfkit.reports.rounds import chosen

    device = _device(device)
    cases = [
        replace(READ[name], rows=count, device=device, precision=precision)
        for name in chosen(models, list(READ), "model")
        for count in batches
    ]
    peers = {name: READERS[name] for name in chosen(against or [], list(READERS), "library")}
    _print_models(cases, peers, rounds, as_json)


def _print_models(cases: Sequence[BenchCase], peers: Mapping[str, Peer], rounds: int, as_json: bool) -> None:
    from tfkit.core.console import Console
    from tfkit.interop.bench.cases import measure, render

    rows = []
    with Console(stderr=True).status("measuring") as status:
        for case in cases:
            status.update(f"measuring {case.size.name}, {case.rows} rows")
            rows += measure(case, peers, rounds)
    if as_json:
        echo_json(rows)
    else:
        render(rows, cases[0])


def _device(name: str) -> str:
    from tfkit.training.device import choose_device

    return str(choose_device(name, "--device"))


class WeightShape(ParamType):
    """Shape of a weight, as WIDTHxOUT."""

    name = "WIDTHxOUT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Convert `768x3072`; click reports failures."""
        width, _, out = str(value).partition("x")
        whole = Whole(WIDTH)
        return whole.convert(width, param, ctx), whole.convert(out, param, ctx)


@command.command("products")
@click.option(
    "--weights",
    type=Several(WeightShape()),
    default="768x768,768x3072,3072x768,768x50257",
    show_default=True,
    help="Shapes of weights, comma-separated.",
)
@click.option(
    "--rows", type=Several(Whole(COUNT)), default="1,8,128,1024", show_default=True, help="Rows, comma-separated."
)
@EXACT_JSON
def products(weights: list[tuple[int, int]], rows: list[int], as_json: bool) -> None:
    """Show the speed of the ways to multiply float32 matrices on a CPU, and the one that is used for each shape."""
    from tfkit.core.console import Console
    from tfkit.reports.bench_products import measure, render

    measured = []
    with Console(stderr=True).status("measuring") as status:
        for row in measure(weights, rows):
            status.update(f"measured {row['width']} x {row['out']}, {row['rows']} rows")
            measured.append(row)
    if as_json:
        echo_json(measured)
    else:
        render(measured, Console())


@command.command("coordinates")
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "--factors",
    type=Several(Whole(TEXTS)),
    default="1,2,4,8",
    show_default=True,
    help="Widths, as multiples of the base width.",
)
@click.option("--steps", type=Whole(COUNT), default=4, show_default=True, help="Training steps.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write a plot of the changes as SVG.")
@EXACT_JSON
@reads_recipe
def coordinates(
    recipe: str, factors: list[int], steps: int, out: Path | None, as_json: bool, reading: ReadOptions
) -> None:
    """Measure how much training changes each part of RECIPE at several widths, with and without muP.

    Widths are multiples of the base width of the recipe's muP. Parts that change equally at every width train equally
    well at every width (the coordinate check of arXiv 2203.03466).
    """
    from tfkit.core.console import Console
    from tfkit.core.figures import drawn
    from tfkit.storage.files import write_text
    from tfkit.studies.coordinates import coordinate_changes, growth, picture

    def read(sets: Sequence[str]) -> Recipe:
        return replace(reading, sets=(*reading.sets, *sets)).recipe(recipe)

    changes = []
    with Console(stderr=True).status("measuring") as status:
        for change in coordinate_changes(read, factors, steps):
            status.update(f"measured {change.part} at {change.factor} times the width")
            changes.append(change)
    rows = growth(changes)
    if as_json:
        echo_json(rows)
    else:
        _print_growth(rows, factors)
    if out is not None and (svg := drawn(str(out), lambda: picture(changes, f"{recipe}: training changes by width"))):
        write_text(out, svg)


def _print_growth(changes: Sequence[JsonObject], factors: Sequence[int]) -> None:
    """Print one table per parametrization."""
    from tfkit.core.console import Console
    from tfkit.reports.parts_table import rows

    for name in dict.fromkeys(row["parametrization"] for row in changes):
        own = [row for row in changes if row["parametrization"] == name]
        cells = [[row["part"], f"{row['first']:.3g}", *(f"{one:.2f}" for one in row["ratios"].values())] for row in own]
        heads = ["muP" if name == "mup" else name, "change", *(f"x {factor}" for factor in factors)]
        rows(Console(), cells, heads)
        echo("")
