"""Benchmark of products: the time of each way, the way that the rule chooses, and the rate of a large product."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from tfkit.core.trees import JsonObject
from tfkit.functional.linear import product
from tfkit.functional.rule import DIRECT, FEW, fastest, forced, rule_name
from tfkit.functional.ways import WAYS, Product, Way, suits
from tfkit.reports.rounds import cpu_threads, print_wide, timed

LARGE, LARGE_ON_GPU = 2048, 8192  # sides of the matrices whose product has about the highest rate
REPEATED = 5
STREAMED = 32 << 20  # minimum bytes of each way's weights for few rows, so that processor caches do not hold them
COPIES = 64  # maximum number of weights for few rows
MOST_BYTES = 64 << 20  # maximum bytes of a measured weight; larger ones behave alike
MOST_PRODUCTS = 1 << 31  # maximum multiplications per measured product, about 40 ms
PASSES, ENOUGH = 3, 0.1  # minimum number of timed rounds, and their minimum total seconds
LONGEST = 3.0  # maximum seconds per shape, if other programs are running


class ProductShape(NamedTuple):
    """A product of [rows width] and a weight [out width], which is stored as [width out] if `transposed`."""

    rows: int
    width: int
    out: int
    transposed: bool = False

    def measured(self) -> ProductShape:
        """Return the shape to measure, in which large products are reduced."""
        limit = MOST_BYTES // 4
        width, out = min(self.width, limit), min(self.out, limit)
        if width * out > limit:
            width, out = (limit // out, out) if width > out else (width, limit // width)
        rows = max(1, min(self.rows, MOST_PRODUCTS // (width * out)))
        return ProductShape(rows, max(1, width), max(1, out), self.transposed)

    def names(self) -> list[str]:
        """Return the ways to measure that this build of torch has."""
        few = self.rows <= FEW and not self.transposed
        return [name for name in (WAYS if few else DIRECT) if suits(name, self.width, self.out)]


def measure(weights: Sequence[tuple[int, int]], rows: Sequence[int]) -> Iterator[JsonObject]:
    """Yield the seconds of each way, and the way that is used, by weight [width, out], number of rows and product.

    Raise UsageError if TFKIT_PRODUCTS has an unknown value.
    """
    forced()
    for width, out in weights:
        for count in rows:
            yield _row("forward", ProductShape(count, width, out))
            if count > FEW:
                yield _row("gradient", ProductShape(count, out, width, transposed=True))


def product_rate(device: str, precision: str, _: object = None) -> float:
    """Return the FLOPs per second of a large product in float32 or bfloat16."""
    size, kind = LARGE if torch.device(device).type == "cpu" else LARGE_ON_GPU, getattr(torch, precision)
    matrix = torch.full((size, size), 0.5, dtype=kind, device=device)
    with torch.inference_mode():
        return float(2 * size**3 / min(timed(lambda: product(matrix, matrix)) for _ in range(REPEATED)))


def _row(name: str, shape: ProductShape) -> JsonObject:
    measured = shape.measured()
    width, out = (shape.out, shape.width) if shape.transposed else (shape.width, shape.out)
    row = {"product": name, "width": width, "out": out, "rows": shape.rows, "measured": measured._asdict()}
    seconds, used = seconds_of(measured), fastest(*shape, copies=shape.rows <= FEW)
    return {**row, "seconds": seconds, "fastest": min(seconds, key=seconds.__getitem__), "used": used}


def seconds_of(shape: ProductShape) -> dict[str, float]:
    """Return the minimum seconds per product for each way, in alternating rounds after a warm-up round."""
    x = torch.full((shape.rows, shape.width), 0.5, dtype=torch.float32, device="cpu")
    count = min(COPIES, math.ceil(STREAMED / (4 * shape.width * shape.out))) if shape.rows <= FEW else 1
    products = {name: [_made(WAYS[name], shape) for _ in range(count)] for name in shape.names()}
    times: dict[str, list[float]] = {name: [] for name in products}
    end = time.perf_counter() + LONGEST
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        while len(times["mkl"]) <= PASSES or count * sum(map(sum, times.values())) < ENOUGH:
            if len(times["mkl"]) > 1 and time.perf_counter() > end:
                break  # the machine is busy
            for name, own in products.items():
                start = time.perf_counter()
                for each in own:
                    each(x, shape.rows)
                times[name].append((time.perf_counter() - start) / count)
    return {name: min(seconds[1:]) for name, seconds in times.items()}


def _made(way: Way, shape: ProductShape) -> Product:
    rows, columns = (shape.width, shape.out) if shape.transposed else (shape.out, shape.width)
    weight = torch.full((rows, columns), 0.5, dtype=torch.float32, device="cpu")
    if shape.transposed:
        return way(weight.t(), None)
    return way(weight, torch.full((shape.out,), 0.5, dtype=torch.float32, device="cpu"))


def render(rows: Sequence[JsonObject], console: Console) -> None:
    """Print the rate of torch's product, the other ways relative to it, and the way that the rule chooses."""
    console.print(
        f"Products of float32 with a weight, {cpu_threads()}, torch {torch.__version__}, rule {rule_name()}: GFLOP/s "
        "of torch (mkl), and multiples of that rate.",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("product", no_wrap=True)
    for title in ("width", "out", "rows", *WAYS):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fastest", no_wrap=True)
    table.add_column("used", no_wrap=True)
    for row in rows:
        seconds = row["seconds"]
        shape = ProductShape(**row["measured"])
        rate = 2 * shape.rows * shape.width * shape.out / seconds["mkl"] / 1e9
        others = [f"{seconds['mkl'] / seconds[name]:.2f}x" if name in seconds else "-" for name in list(WAYS)[1:]]
        sizes = [f"{row[name]}" for name in ("width", "out", "rows")]
        table.add_row(row["product"], *sizes, f"{rate:.0f}", *others, row["fastest"], row["used"])
    print_wide(table, console)
    console.print("\ngradient: product for the gradient of a layer's input.", style="dim")
