"""Time and memory on this machine: `python -m tests.benchmarks decoding --models gpt2`, in a clone of tfkit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.benchmarks import attention, coordinates, decoding, models, products
from tests.benchmarks.decoders import DECODERS
from tests.benchmarks.peers import READERS, TRAINERS
from tfkit.core.errors import TfkitError
from tfkit.core.figures import Console
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.runs.history import choose_device

Value = TypeVar("Value")
DEFAULTS = argparse.ArgumentDefaultsHelpFormatter
MODELS = (
    "gpt (10M parameters), gpt50257 (30M, for its vocabulary of 50,257 tokens), bert (23M), bert-base (110M), "
    "gpt2 (124M, 16 rows of 1,024 tokens in training, 512 in a forward pass), pair (an encoder-decoder, 8M)"
)


def count(text: str) -> int:
    """Parse a positive number."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def written(text: str) -> int:
    """Parse a number of new tokens, for which the models have positions."""
    most = decoding.LENGTH - decoding.PROMPT
    if count(text) > most:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {most}, got {text!r}")
    return int(text)


def rate(text: str) -> float:
    """Parse a dropout rate."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a rate from 0 to below 1, got {text!r}")
    return value


def shape(text: str) -> tuple[int, int]:
    """Parse the shape of a weight, such as 768x3072."""
    width, _, out = text.partition("x")
    return count(width), count(out)


def several(one: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Return a parser of comma-separated values."""
    return lambda text: list(dict.fromkeys(one(part.strip()) for part in text.split(",") if part.strip()))


def among(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names."""

    def one(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown name {text!r}; available: {', '.join(known)}")
        return text

    return several(one)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description="Measure time and memory.")
    kinds = parser.add_subparsers(dest="what", required=True)

    def kind(name: str, about: str, device: bool = True) -> argparse.ArgumentParser:
        added = kinds.add_parser(name, description=about, help=about, formatter_class=DEFAULTS)
        added.add_argument("--json", action="store_true", help="print JSON with unrounded numbers")
        if device:
            added.add_argument("--device", default="auto", help="cpu, cuda, cuda:1; auto: CUDA if available")
        return added

    one = kind("attention", "Time and peak memory of attentions and mixers by sequence length.")
    one.add_argument("--lengths", type=several(count), default="512,1024,2048,4096,8192,16384", help="tokens")
    one.add_argument("--attentions", type=several(str), help=f"by default {','.join(attention.DEFAULT)}")
    one.add_argument("--d-model", type=count, default=256, help="width of the layer")
    one.add_argument("--heads", type=count, default=4, help="heads of the attentions")
    one.add_argument("--window", type=count, default=256, help="keys per window or chunk")
    one.add_argument("--causal", action="store_true", help="measure causal layers")
    one.add_argument("--backward", action="store_true", help="include the backward pass")

    one = kind("decoding", "Generation speed after 32 prompt tokens.")
    sizes = "small (a GPT of 10M parameters), gpt2 (124M), pair (an encoder-decoder)"
    one.add_argument("--models", type=among(decoding.SIZES), default="small,gpt2,pair", help=sizes)
    one.add_argument("--batches", type=several(count), default="1,8", help="batch sizes")
    one.add_argument("--beams", type=several(count), default="1", help="numbers of beams; 1: greedy search")
    one.add_argument("--new", type=written, default=128, help="new tokens")
    one.add_argument("--rounds", type=count, default=10, help="repetitions of each measurement")
    one.add_argument("--against", type=among(DECODERS), default="", help=f"libraries: {','.join(DECODERS)}")

    one = kind("training", "Training steps: loss, gradients, clipping and AdamW.")
    one.add_argument("--models", type=among(models.TRAINED), default="gpt,bert,pair", help=MODELS)
    one.add_argument("--dropout", type=several(rate), default="0,0.1", help="dropout rates")
    _compared(one, TRAINERS)

    one = kind("forward", "Forward passes over 128 tokens, with all logits.")
    one.add_argument("--models", type=among(models.READ), default="bert-base", help=MODELS)
    one.add_argument("--batches", type=several(count), default="1,8", help="batch sizes")
    _compared(one, READERS)

    one = kind("products", "Ways to multiply float32 matrices on a CPU, and the one that is used.", device=False)
    weights = "768x768,768x3072,3072x768,768x50257"
    one.add_argument("--weights", type=several(shape), default=weights, help="shapes of weights, WIDTHxOUT")
    one.add_argument("--rows", type=several(count), default="1,8,128,1024", help="rows")

    about = "Change of each part in training at several widths, with and without muP (arXiv 2203.03466)."
    one = kind("coordinates", about, device=False)
    one.add_argument("recipe", help="a recipe with a base of muP")
    one.add_argument("--variant", action="append", default=[], help="apply a variant of the recipe")
    one.add_argument("--set", action="append", default=[], help="change a value, KEY=VALUE")
    one.add_argument("--factors", type=several(count), default="1,2,4,8", help="multiples of the base width")
    one.add_argument("--steps", type=count, default=4, help="training steps")
    one.add_argument("--out", type=Path, help="write a plot of the changes as SVG")
    return parser


def _compared(one: argparse.ArgumentParser, libraries: Iterable[str]) -> None:
    one.add_argument("--rounds", type=count, default=10, help="repetitions of each measurement")
    one.add_argument("--against", type=among(libraries), default="", help=f"libraries: {','.join(libraries)}")
    one.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="dtype of products")


def measured(rows: Iterable[Value]) -> list[Value]:
    """Collect measurements, and show that they are under way."""
    found = []
    with Console(stderr=True).status("measuring") as status:
        for row in rows:
            found.append(row)
            status.update(f"measured {len(found)}")
    return found


def run(typed: Sequence[str] | None = None) -> None:
    """Measure and print. Raise TfkitError for what cannot be measured."""
    one = arguments().parse_args(typed)
    if "device" in one:
        one.device = str(choose_device(one.device, "--device"))
    if one.what == "attention":
        setting = attention.Setting(one.d_model, one.heads, one.window, one.causal, one.backward, one.device)
        names = attention.chosen(one.attentions, setting)
        data = attention.as_data(measured(attention.measure(names, one.lengths, setting)), setting)
        render = attention.render
    elif one.what == "decoding":
        works = [
            decoding.Work(decoding.SIZES[name], batch, beams, one.new, one.device)
            for name in one.models
            for batch in one.batches
            for beams in one.beams
        ]
        data = measured(decoding.measure(works, {name: DECODERS[name] for name in one.against}, one.rounds))
        render = partial(decoding.render, device=one.device)
    elif one.what in ("training", "forward"):
        trains, common = one.what == "training", {"device": one.device, "precision": one.precision}
        known, libraries = (models.TRAINED, TRAINERS) if trains else (models.READ, READERS)
        more = [{"dropout": rate} for rate in one.dropout] if trains else [{"rows": count} for count in one.batches]
        cases = [replace(known[name], **common, **each) for name in one.models for each in more]
        data = measured(models.measure(cases, {name: libraries[name] for name in one.against}, one.rounds))
        render = partial(models.render, case=cases[0])
    elif one.what == "products":
        data = measured(products.measure(one.weights, one.rows))
        render = products.render
    else:

        def read(sets: Sequence[str]) -> Recipe:
            return load_recipe(one.recipe, variant=one.variant, sets=[*one.set, *sets])

        changes = measured(coordinates.coordinate_changes(read, one.factors, one.steps))
        data, render = coordinates.growth(changes), partial(coordinates.render, factors=one.factors)
        if one.out is not None:
            coordinates.draw(changes, f"{one.recipe}: training changes by width", one.out)
    if one.json:
        print(json.dumps(data, indent=2))
    else:
        render(data)


if __name__ == "__main__":
    try:
        run()
    except TfkitError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        sys.exit(error.status)
