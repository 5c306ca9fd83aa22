"""The report of a study: report.html (one file that opens offline), report.md, results.csv and results.json."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError, UsageError
from tfkit.core.extras import installing
from tfkit.core.figures import drawn
from tfkit.reports.formats import csv_text, html_page, markdown, markdown_table
from tfkit.reports.table import size
from tfkit.storage.files import write_json, write_text
from tfkit.studies.pictures import costs, curves
from tfkit.studies.results import EXACT, ArmResult, Results
from tfkit.studies.statistics import LEVEL, RESAMPLES, Comparison
from tfkit.training.folder import RunFolder
from tfkit.training.history import read_history
from tfkit.training.progress import duration

HTML, MARKDOWN, CSV, JSON = "report.html", "report.md", "results.csv", "results.json"
KINDS = {"within the noise": "noise", "not held": "not-held"}


@dataclass(frozen=True)
class StudyReport:
    """Results with context: the differences of each arm, the environment, and the text of the study."""

    results: Results
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Sequence[tuple[str, str]] = ()
    text: str = ""

    def write(self, folder: Path) -> None:
        """Write all four files, the page last. Raises UsageError for a missing package before writing any."""
        check_packages()
        write_text(folder / CSV, self.csv())
        write_json(folder / JSON, self.results.as_data())
        write_text(folder / MARKDOWN, self.markdown())
        write_text(folder / HTML, self.html())

    def html(self) -> str:
        """Render the page."""
        results = self.results
        return html_page(
            Path(__file__).with_name("page.html"),
            results=results,
            summary=self.summary(),
            noise=list(self.noise_rows()),
            claims=list(self.claim_rows()),
            tables=[self._table(measure) for measure in results.measure if measure not in EXACT],
            pictures=list(self._pictures()),
            variants=list(self.variant_rows()),
            method=self.method(),
            failed=list(results.failed.items()),
            environment=self.environment,
            text=self.text,
        )

    def summary(self) -> str:
        """Summarize the completed runs in a sentence."""
        cells = [cell for arm in self.results.own for cell in arm.cells]
        done = sum(cell.state == "done" for cell in cells)
        diverged = sum(cell.state == "diverged" for cell in cells)
        seeds = ", ".join(map(str, self.results.seeds))
        text = f"{done} of {len(cells)} runs are done, of {len(self.results.own)} variants with seeds {seeds}"
        return text + (f"; {diverged} diverged" if diverged else "") + "."

    def method(self) -> str:
        """Describe the statistics."""
        return (
            "Each variant is compared with the baseline run by run: the same seed has the same order of data. "
            "The difference is the mean over pairs; its 95 % interval is Student's t, beside it the percentile "
            f"bootstrap ({RESAMPLES:,} resamples). p is that of the paired t test after Holm's correction over all "
            f"{self.results.tested} comparisons here (Holm 1979). Better or worse: p below {LEVEL}, by the measure's "
            "own direction; within the noise: not so. The standard deviation of the differences is at least half a "
            "step of the measure: half a test example of an accuracy, or half a unit of the last printed digit. "
            "Identical differences give no verdict. A run that diverged has no value, and is counted. A claim is "
            "held or not held where its comparison is beyond the noise, and open otherwise. Student's t assumes normal "
            "differences; with few seeds only large effects can be seen."
        )

    def noise_rows(self) -> Iterator[dict[str, str]]:
        """Yield the noise floor, a row for each measure."""
        for measure, found in self.results.noise.items():
            if found is not None:
                shown = [number(measure, value) for value in (found.least, found.most)]
                yield {
                    "measure": measure,
                    "n": str(found.n),
                    "mean": number(measure, found.mean),
                    "sd": number(measure, found.sd),
                    "range": " to ".join(shown),
                }

    def claim_rows(self) -> Iterator[dict[str, str]]:
        """Yield the claims with their verdicts."""
        for one in self.results.claims:
            comparison = one.comparison
            diverged = comparison.diverged or comparison.diverged_against
            same = " (identical differences)" if one.verdict == "open" and comparison.is_identical else ""
            ending = f" (diverged: {comparison.diverged} and {comparison.diverged_against} of {comparison.runs})"
            yield {
                "paper": one.claim.paper,
                "says": one.claim.says,
                "on": one.claim.on,
                "n": str(comparison.n),
                "difference": difference(comparison),
                "verdict": one.verdict + (ending if diverged else same),
                "kind": KINDS.get(one.verdict, one.verdict),
            }

    def variant_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a description of each variant."""
        for arm in self.results.arms:
            solved = [f"{key}={value}" for key, value in {**arm.solved, **arm.tuned}.items()]
            yield {
                "arm": arm.name,
                "made_of": arm.made_of,
                "solved": ", ".join(solved),
                "parameters": f"{arm.parameters:,}" if arm.parameters else "",
                "flops": f"{arm.flops:,}" if arm.flops else "",
                "cache": f"{arm.cache_bytes:,}" if arm.cache_bytes else "",
                "changes": [f"is {arm.same_as}"] if arm.same_as else list(self.changes.get(arm.name, ())),
            }

    def rows(self, measure: str) -> Iterator[dict[str, str]]:
        """Yield a row per arm for one measure, compared with the baseline."""
        known = {one.arm: one for one in self.results.comparisons if one.measure == measure}
        for arm in self.results.own:
            yield _row(arm, measure, known.get(arm.name))

    def _table(self, measure: str) -> dict[str, Any]:
        direction = "more is better" if measure in self.results.rising else "less is better"
        return {"measure": measure, "direction": direction, "rows": list(self.rows(measure))}

    def _pictures(self) -> Iterator[dict[str, str]]:
        for measure in self.results.measure:
            if any(measure in point for arm in self.results.own for cell in arm.cells for point in cell.curve):
                about = "A line is the mean over seeds, its band reaches from the least to the most of them."
                svg = drawn(measure, partial(curves, self.results, measure))
                yield {"title": f"{measure} while training", "about": about, "svg": svg}
        first = self.results.measure[0]
        about = "Means over seeds. A ring marks the Pareto front: no other variant is better without costing more."
        svg = drawn(f"{first} against its cost", partial(costs, self.results, first))
        yield {"title": f"{first} against its cost", "about": about, "svg": svg}

    def markdown(self) -> str:
        """Render the report in Markdown, without the pictures."""
        return "\n".join(self._markdown_lines()) + "\n"

    def _markdown_lines(self) -> Iterator[str]:
        results = self.results
        yield f"# {markdown(results.name)}"
        yield from ["", *([markdown(results.about), ""] if results.about else []), self.summary(), ""]
        yield from ["## Noise floor", ""]
        heads = ["measure", "n", "mean", "sd", "range"]
        yield from markdown_table(heads, ([row[key] for key in heads] for row in self.noise_rows()))
        if results.claims:
            heads = ["paper", "says", "on", "n", "difference", "verdict"]
            yield from ["", "## Claims", ""]
            yield from markdown_table(heads, ([row[key] for key in heads] for row in self.claim_rows()))
        heads = ["arm", "n", "mean", "sd", "difference", "bootstrap", "p", "verdict"]
        for measure in results.measure:
            if measure not in EXACT:
                yield from ["", f"## {markdown(measure)}", ""]
                yield from markdown_table(heads, ([row[key] for key in heads] for row in self.rows(measure)))
        heads = ["arm", "made_of", "solved", "parameters", "flops", "cache", "changes"]
        rows = [{**row, "changes": "; ".join(row["changes"])} for row in self.variant_rows()]
        yield from ["", "## The variants", ""]
        yield from markdown_table(heads, ([row[key] for key in heads] for row in rows))
        yield from ["", "## How it was compared", "", self.method()]
        if results.failed:
            yield from ["", "## Failed runs", "", *failed_lines(results.failed)]

    def csv(self) -> str:
        """Format a line for each run: arm, seed, state, and all its scores."""
        cells = [(arm, cell) for arm in self.results.own for cell in arm.cells]
        names = list(dict.fromkeys(name for _, cell in cells for name in cell.scores))
        rows = (
            [arm.name, cell.seed, cell.state, cell.folder, *(cell.scores.get(name) for name in names)]
            for arm, cell in cells
        )
        return csv_text(["variant", "seed", "state", "run", *names], rows)


def check_packages() -> None:
    """Raise UsageError for packages that a report needs, before anything is trained."""
    missing = [name for name in ("scipy", "matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"a study needs the packages {', '.join(missing)}: {installing('study')}")


def _row(arm: ArmResult, measure: str, comparison: Comparison | None) -> dict[str, str]:
    found = arm.spread(measure)
    row = {
        "arm": arm.name,
        "n": "0" if found is None else str(found.n),
        "mean": "" if found is None else number(measure, found.mean),
        "sd": "" if found is None else number(measure, found.sd),
        "difference": "",
        "bootstrap": "",
        "p": "",
        "verdict": "",
        "kind": "",
    }
    if comparison is None:
        diverged = sum(cell.state == "diverged" for cell in arm.cells)
        return row | {"verdict": f"baseline, diverged in {diverged} of {len(arm.cells)}" if diverged else "baseline"}
    boot = (comparison.boot_low, comparison.boot_high)
    return row | {
        "difference": difference(comparison),
        "bootstrap": "" if None in boot else f"[{', '.join(signed(measure, value) for value in boot)}]",
        "p": "" if comparison.p_holm is None else f"{comparison.p_holm:.2g}",
        "verdict": comparison.words(),
        "kind": KINDS.get(comparison.verdict, comparison.verdict),
    }


def difference(one: Comparison) -> str:
    """Format the mean difference with its interval; empty without pairs."""
    if one.mean is None:
        return ""
    mean = signed(one.measure, one.mean)
    if one.low is None or one.high is None:
        return f"{mean} (one pair)"
    return f"{mean} [{signed(one.measure, one.low)}, {signed(one.measure, one.high)}]"


def number(measure: str, value: float | None) -> str:
    """Format a value of a measure."""
    if value is None:
        return ""
    if measure == "peak_memory":
        return size(round(value))
    if measure == "seconds":
        return f"{value:,.1f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def signed(measure: str, value: float | None) -> str:
    """Format a difference with its sign."""
    if value is None:
        return ""
    return ("-" if value < 0 else "+") + number(measure, abs(value))


def failed_lines(failed: Mapping[str, str]) -> Iterator[str]:
    """Yield the failed runs with their reasons as a Markdown list."""
    for name, why in failed.items():
        yield f"- {markdown(f'{name}: {why}')}"


def environment_of(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Return the distinct versions, machines, devices and threads of the runs, and their total time."""
    found: dict[str, dict[str, None]] = {}
    seconds = 0.0
    for folder in folders:
        try:
            history = read_history(folder)
        except RunError:
            continue
        for start in history.starts if history is not None else ():
            facts = {**start.versions, **{key: str(value) for key, value in start.machine.items() if key != "memory"}}
            for name, value in {**facts, "device": start.device, "threads": str(start.threads)}.items():
                found.setdefault(name, {})[value] = None
        seconds += history.seconds if history is not None else 0.0
    told = [(name, ", ".join(values)) for name, values in found.items()]
    return [*told, ("time of all runs", duration(seconds))] if told else []
