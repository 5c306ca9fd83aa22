"""Benchmark of products: the stored times of each way, measured if there are none, and the rate of a large product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from rich.console import Console
from rich.table import Table

from tfkit.core.trees import JsonObject
from tfkit.functional.fastest import FEW, ProductShape, fastest, forced, remembered
from tfkit.functional.linear import product
from tfkit.functional.ways import WAYS
from tfkit.reports.rounds import cpu_threads, print_wide, timed

LARGE, LARGE_ON_GPU = 2048, 8192  # sides of the matrices whose product has about the highest rate
REPEATED = 5


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
    seconds = remembered(measured, torch.get_num_threads())
    width, out = (shape.out, shape.width) if shape.transposed else (shape.width, shape.out)
    row = {"product": name, "width": width, "out": out, "rows": shape.rows, "measured": measured._asdict()}
    used = fastest(*shape, copies=shape.rows <= FEW, threads=torch.get_num_threads())
    return {**row, "seconds": seconds, "fastest": used}


def render(rows: Sequence[JsonObject], console: Console) -> None:
    """Print the rate of torch's product, and the other ways relative to it."""
    console.print(
        f"Products of float32 with a weight, {cpu_threads()}, torch {torch.__version__}: GFLOP/s of torch (mkl), and "
        "multiples of that rate.",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("product", no_wrap=True)
    for title in ("width", "out", "rows", *WAYS):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fastest", no_wrap=True)
    for row in rows:
        seconds = row["seconds"]
        shape = ProductShape(**row["measured"])
        rate = 2 * shape.rows * shape.width * shape.out / seconds["mkl"] / 1e9
        others = [f"{seconds['mkl'] / seconds[name]:.2f}x" if name in seconds else "-" for name in list(WAYS)[1:]]
        sizes = [f"{row[name]}" for name in ("width", "out", "rows")]
        table.add_row(row["product"], *sizes, f"{rate:.0f}", *others, row["fastest"])
    print_wide(table, console)
    console.print("\ngradient: product for the gradient of a layer's input.", style="dim")
