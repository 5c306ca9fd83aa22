"""The report of a ladder: ladder.html (one file that opens offline), ladder.md, ladder.csv and ladder.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tfkit.core.figures import COLOURS, drawn, finished, matplotlib_figure, svg
from tfkit.reports.formats import csv_text
from tfkit.studies.ladder import LOSS
from tfkit.studies.ladder_results import LadderResults
from tfkit.studies.page import PageSection, ReportFiles, lists

COLUMNS = ("size", "parameters", "tokens", "flops", "seed", "state", "loss")
TABLE = ["size", "N", "D", "FLOPs", "n", "loss", "sd", "law"]
METHOD = (
    "L = E + A / N^a + B / D^b (Hoffmann et al. 2022, arXiv 2203.15556): N are the parameters of the layers, without "
    "embeddings, positions and heads, D the tokens read, L the validation loss. Each budget is a training of its own, "
    "with a schedule that ends with it. The law is fitted to the mean over seeds of each size on each budget, by least "
    "squares of log losses from several starts. An interval holds the values that an F test does not reject at 95 %, "
    "by the variance of the means about the law: the noise of seeds and what the law does not describe both enter it. "
    "The prediction interval is that of a mean of as many seeds of a new size. It assumes that the law holds as far as "
    "the largest size, and that one learning rate suits all sizes equally well."
)

ADVANTAGE = (
    "With N parameters and D tokens the recipe has the loss L(N, D) of its law, a variant L(N sqrt(g), D sqrt(g)): it "
    "is worth g times the compute 6 N D, divided by the ratio of its own FLOPs to the recipe's. log g is linear in "
    "log N, and is fitted together with the law to the means and differences of log losses, over the seeds that both "
    "have. The largest size is not fitted: it is predicted before it is trained."
)


@dataclass(frozen=True)
class LadderReport(ReportFiles):
    """Results of a ladder as files."""

    results: LadderResults

    CSV, JSON, MARKDOWN, HTML, OF = "ladder.csv", "ladder.json", "ladder.md", "ladder.html", "The recipe"

    @property
    def title(self) -> str:
        """Name of the recipe and the number of its sizes."""
        return f"{self.results.plan.name}: a ladder of {len(self.results.plan.sizes)} sizes"

    def lead(self) -> Iterator[str]:
        """Yield the verdict, if any, and the dates of the plan and the forecast."""
        made, forecast = self.results.plan.made, self.results.forecast
        if forecast is not None:
            yield f"{forecast.size}: {self.results.verdict}"
        if made:
            yield f"The plan was made at {made}."
        if forecast is not None:
            yield f"Predicted at {forecast.made_at}, before the largest size was trained."

    def sections(self) -> Iterator[PageSection]:
        """Yield the sections of the page: the law, its pictures, and tables of the sizes and runs."""
        results = self.results
        yield PageSection("The law", [*(f"No law: {reason}." for reason in results.reasons), *results.law_lines()])
        about = "A point is the mean over seeds, a line the law. The bar is the prediction with its 95 % interval, "
        about += "a cross a run of the largest size."
        for title, draw in {"Loss by parameters": by_parameters, "Loss by tokens": by_tokens}.items():
            if results.points:
                yield PageSection(
                    title, pictures=[partial(drawn, title.lower(), partial(draw, results))], caption=about
                )
        if rows := [row for one in results.variants for row in one.rows()]:
            heads = ["variant", "size", "N", f"worth, times the FLOPs of {results.plan.name}"]
            yield PageSection("The advantage of each variant by size", [ADVANTAGE], heads, rows)
        yield PageSection("All sizes", (), TABLE, list(results.rows()))
        yield PageSection("All runs", (), ["size", "D", "seed", "state", "loss"], list(self._runs()))
        yield PageSection("How it was fitted", [METHOD, *results.plan.notes])
        altered = {"Altered runs, which are not counted": results.altered.items()}
        yield from lists({**altered, "Failed runs": results.failed.items(), "Made with": results.environment})

    def _runs(self) -> Iterator[list[str]]:
        for arm, result in zip(self.results.plan.arms, self.results.arms, strict=True):
            for cell in result.cells:
                loss = f"{cell.scores[LOSS]:.4f}" if LOSS in cell.scores else ""
                tokens = f"{cell.tokens:,}" if cell.tokens else ""
                yield [self.results.plan.size(arm).name, tokens, str(cell.seed), cell.state, loss]

    @property
    def text(self) -> str:
        """Text of the recipe."""
        return self.results.plan.text

    def as_data(self) -> dict[str, object]:
        """Return the contents of ladder.json."""
        return self.results.as_data()

    def csv(self) -> str:
        """Format a line for each run."""
        return csv_text(COLUMNS, ([run[name] for name in COLUMNS] for run in self.results.runs))


def by_parameters(results: LadderResults) -> str:
    """Plot the loss by N with one curve per token budget; the forecast is a bar, the measured loss a cross."""
    budgets = sorted({one.tokens for one in results.points})
    figure, axes = _empty("parameters of the layers (N)")
    most = results.plan.sizes[-1].parameters
    for colour, tokens in zip(_colours(budgets), budgets, strict=True):
        own = [one for one in results.points if one.tokens == tokens]
        axes.scatter([one.parameters for one in own], [one.loss for one in own], color=colour, s=22)
        if results.fit is not None:
            xs = np.geomspace(min(one.parameters for one in own), most, 80)
            ys = [results.fit.law.loss(float(x), tokens) for x in xs]
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=f"D = {tokens:,.0f}")
    _forecast(axes, results, most)
    finished(axes)
    return svg(figure, "ladder-parameters")


def by_tokens(results: LadderResults) -> str:
    """Plot the loss by D with one curve per size."""
    figure, axes = _empty("tokens read (D)")
    sizes = [size for size in results.plan.sizes if any(one.parameters == size.parameters for one in results.points)]
    for colour, size in zip(_colours(sizes), sizes, strict=True):
        own = [one for one in results.points if one.parameters == size.parameters]
        axes.scatter([one.tokens for one in own], [one.loss for one in own], color=colour, s=22)
        if results.fit is not None:
            xs = np.geomspace(min(one.tokens for one in own), max(one.tokens for one in own), 80)
            ys = [results.fit.law.loss(size.parameters, float(x)) for x in xs]
            axes.plot(xs, ys, color=colour, linewidth=1.4, label=size.name)
    if results.forecast is not None:
        _forecast(axes, results, results.forecast.tokens)
    finished(axes)
    return svg(figure, "ladder-tokens")


def _empty(label: str) -> tuple[Any, Any]:
    figure = matplotlib_figure()(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("validation loss")
    return figure, axes


def _colours(values: Sequence[object]) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(values))]


def _forecast(axes: Any, results: LadderResults, x: float) -> None:
    """Plot the interval of the forecast and the measured losses at `x`."""
    if results.forecast is None:
        return
    one = results.forecast.predicted
    low, high = one.low or 0.0, one.high or one.value
    axes.errorbar([x], [one.value], [[one.value - low], [high - one.value]], color="#222", capsize=5, label="predicted")
    if results.losses:
        axes.scatter(
            [x] * len(results.losses), list(results.losses.values()), marker="x", color="#d44c47", label="measured"
        )
