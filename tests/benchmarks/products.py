"""Benchmark of products: the time of each way, the way that the rule chooses, and the rate of a large product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from tests.benchmarks.rounds import Call, print_wide, quickest, say, timed, where
from tfkit.core.bounds import JsonObject
from tfkit.functional.linear import DIRECT, FEW, WAYS, Way, fastest, forced, product, rule_name, suits

LARGE, LARGE_ON_GPU = 2048, 8192  # sides of the matrices whose product has about the highest rate
REPEATED = 5
STREAMED = 32 << 20  # minimum bytes of each way's weights for few rows, so that processor caches do not hold them
COPIES = 64  # maximum number of weights for few rows
MOST_BYTES = 64 << 20  # maximum bytes of a measured weight; larger ones behave alike
MOST_PRODUCTS = 1 << 31  # maximum multiplications per measured product, about 40 ms


class Shape(NamedTuple):
    """A product of [rows width] and a weight [out width], which is stored as [width out] if `transposed`."""

    rows: int
    width: int
    out: int
    transposed: bool = False

    def measured(self) -> Shape:
        """Return the shape to measure, in which large products are reduced."""
        limit = MOST_BYTES // 4
        width, out = min(self.width, limit), min(self.out, limit)
        if width * out > limit:
            width, out = (limit // out, out) if width > out else (width, limit // width)
        rows = max(1, min(self.rows, MOST_PRODUCTS // (width * out)))
        return Shape(rows, max(1, width), max(1, out), self.transposed)


def measure(weights: Sequence[tuple[int, int]], rows: Sequence[int]) -> Iterator[JsonObject]:
    """Yield the seconds of each way, and the way that is used, by weight [width, out], number of rows and product.

    Raise UsageError if TFKIT_PRODUCTS has an unknown value.
    """
    forced()
    for width, out in weights:
        for count in rows:
            yield _row("forward", width, out, Shape(count, width, out))
            if count > FEW:
                yield _row("gradient", width, out, Shape(count, out, width, transposed=True))


def _row(name: str, width: int, out: int, shape: Shape) -> JsonObject:
    measured = shape.measured()
    seconds, used = seconds_of(measured), fastest(*shape, copies=not shape.transposed)
    row = {"product": name, "width": width, "out": out, "rows": shape.rows, "measured": measured._asdict()}
    return {**row, "seconds": seconds, "fastest": min(seconds, key=seconds.__getitem__), "used": used}


def seconds_of(shape: Shape) -> dict[str, float]:
    """Return the minimum seconds per product for each way that this build of torch has."""
    few = shape.rows <= FEW and not shape.transposed
    copies = min(COPIES, math.ceil(STREAMED / (4 * shape.width * shape.out))) if few else 1
    ways = WAYS if few else DIRECT if shape.transposed else (*DIRECT, "reordered")
    names = [name for name in ways if suits(name, shape.width, shape.out)]
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        seconds = quickest({name: _products(WAYS[name], shape, copies) for name in names})
    return {name: one / copies for name, one in seconds.items()}


def _products(way: Way, shape: Shape, copies: int) -> Call:
    """Return a call that multiplies by each of some equal weights."""

    def half(*sizes: int) -> torch.Tensor:
        return torch.full(sizes, 0.5, dtype=torch.float32)

    x = half(shape.rows, shape.width)
    if shape.transposed:
        made = [way(half(shape.width, shape.out).t(), None) for _ in range(copies)]
    else:
        made = [way(half(shape.out, shape.width), half(shape.out)) for _ in range(copies)]

    def call() -> None:
        for each in made:
            each(x, shape.rows)

    return call


def product_rate(device: str, precision: str, _: object = None) -> float:
    """Return the FLOPs per second of a large product in float32 or bfloat16."""
    size, kind = LARGE if device == "cpu" else LARGE_ON_GPU, getattr(torch, precision)
    matrix = torch.full((size, size), 0.5, dtype=kind, device=device)
    with torch.inference_mode():
        return float(2 * size**3 / min(timed(partial(product, matrix, matrix)) for _ in range(REPEATED)))


def render(rows: Sequence[JsonObject]) -> None:
    """Print the rate of torch's product, the other ways relative to it, and the way that the rule chooses."""
    say(
        f"Products of float32 with a weight, {where('cpu')}, torch {torch.__version__}, rule {rule_name()}: GFLOP/s "
        "of torch (mkl), and multiples of that rate."
    )
    cells = []
    for row in rows:
        seconds = row["seconds"]
        shape = Shape(**row["measured"])
        rate = 2 * shape.rows * shape.width * shape.out / seconds["mkl"] / 1e9
        others = [f"{seconds['mkl'] / seconds[name]:.2f}x" if name in seconds else "-" for name in list(WAYS)[1:]]
        sizes = [f"{row[name]}" for name in ("width", "out", "rows")]
        cells.append([row["product"], *sizes, f"{rate:.0f}", *others, row["fastest"], row["used"]])
    texts = ("product", "fastest", "used")
    print_wide(cells, [texts[0], "width", "out", "rows", *WAYS, *texts[1:]], texts)
    say("\ngradient: product for the gradient of a layer's input. used: where copies of weights are made.", style="dim")
