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
from tfkit.studies.results import EXACT, LOST, RESULTS, ArmResult, Results
from tfkit.studies.statistics import LEVEL, MOST_SEEDS, Comparison
from tfkit.training.folder import RunFolder
from tfkit.training.history import read_history
from tfkit.training.progress import duration

HTML, MARKDOWN, CSV = "report.html", "report.md", "results.csv"
KINDS = {"within the noise": "noise", "equal": "noise", "not held": "not-held"}
COLUMNS = {
    "arm": "variant",
    "n": "n",
    "mean": "mean",
    "sd": "sd",
    "difference": "difference [95 % interval]",
    "seen": "80 % power from",
    "seeds": "seeds needed",
    "p": "p (Holm)",
    "verdict": "verdict",
}


@dataclass(frozen=True)
class StudyReport:
    """Results with the differences of each arm, the environment, the text of the study, and the date of its plan."""

    results: Results
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Sequence[tuple[str, str]] = ()
    text: str = ""
    planned: str = ""

    def write(self, folder: Path) -> None:
        """Write all four files, the page last. Raises UsageError for a missing package before writing any."""
        check_packages()
        write_text(folder / CSV, self.csv())
        write_json(folder / RESULTS, self.results.as_data())
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
            columns=COLUMNS,
            lists=self.lists(),
            environment=self.environment,
            text=self.text,
        )

    def summary(self) -> str:
        """Summarize the plan and the completed runs."""
        cells = [cell for arm in self.results.own for cell in arm.cells]
        counts = {state: sum(cell.state == state for cell in cells) for state in ("done", *LOST, "altered")}
        seeds = ", ".join(map(str, self.results.seeds))
        text = f"{counts.pop('done')} of {len(cells)} runs are done, of {len(self.results.own)} variants"
        text += f" with seeds {seeds}"
        text += "".join(f"; {count} {state}" for state, count in counts.items() if count)
        return text + (f". The plan was made at {self.planned}." if self.planned else ".")

    def lists(self) -> dict[str, list[tuple[str, str]]]:
        """Return what limits the verdicts, by title: changes of the plan, altered runs, failed runs."""
        changed = [tuple(text.split(": ", 1)) for text in self.results.changed]
        found = {
            "The plan was changed after results were seen": [(key, text) for key, text in changed],
            "Altered runs, which are not counted": list(self.results.altered.items()),
            "Failed runs": list(self.results.failed.items()),
        }
        return {title: rows for title, rows in found.items() if rows}

    def method(self) -> str:
        """Describe the statistics."""
        return (
            "Each variant is compared with the baseline run by run: the same seed has the same order of data. The "
            "difference is the mean over pairs. Its variance is pooled over the variants, about additive effects of "
            "variant and seed, where their spreads agree (F tests), and is the pair's own otherwise. With fewer than 5 "
            "seeds the F tests miss a spread that is several times that of the others, and such a variant is called "
            f"different in more than {LEVEL:.0%} of studies where its mean is equal: give it 5 seeds. p is that of the "
            f"t test after Holm's correction over all {self.results.tested} comparisons here (Holm 1979). Better or "
            f"worse: p below {LEVEL}, by the measure's own direction; within the noise: not so; equal within a margin "
            "that the study gives: the whole interval is. The intervals hold at once with 95 % (Bonferroni), and end "
            "at 0 where a later step of Holm's procedure excludes it. 80 % power from: the smallest difference that "
            "would be found with a probability of 80 %; seeds needed: the number of seeds that gives the observed "
            "difference this power. The standard deviation of the differences is at least a step of the measure: one "
            "example of an accuracy, or half a unit of the last printed digit. Identical differences give no verdict. "
            "A run that diverged or failed ranks last, and a variant with such runs is compared by the "
            "exact rank sum test (Wilcoxon 1945). Verdicts are given when all planned runs have ended, and not on "
            "runs whose files were altered. A claim is held or not held where its comparison is beyond the noise, and "
            "open otherwise."
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
            words = one.comparison.words()
            why = words.removeprefix("open").removeprefix(": ") if one.comparison.verdict == "open" else ""
            lost = ", ".join(words.split(", ")[1:]) if sum(one.comparison.lost) and not why else ""
            yield {
                "paper": one.claim.paper,
                "says": one.claim.says,
                "on": one.claim.on,
                "n": str(one.comparison.n),
                "difference": difference(one.comparison),
                "verdict": one.verdict + (f" ({why or lost})" if why or lost else "") + self._ending,
                "kind": KINDS.get(one.verdict, one.verdict),
            }

    @property
    def _ending(self) -> str:
        return "; plan changed" if self.results.changed else ""

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
            comparison = known.get(arm.name)
            row = _row(arm, measure, comparison)
            yield row if comparison is None else row | {"verdict": row["verdict"] + self._ending}

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
        for measure in results.measure:
            if measure not in EXACT:
                yield from ["", f"## {markdown(measure)}", ""]
                rows = ([row[key] for key in COLUMNS] for row in self.rows(measure))
                yield from markdown_table(list(COLUMNS.values()), rows)
        heads = ["arm", "made_of", "solved", "parameters", "flops", "cache", "changes"]
        variants = [{**row, "changes": "; ".join(row["changes"])} for row in self.variant_rows()]
        yield from ["", "## The variants", ""]
        yield from markdown_table(heads, ([row[key] for key in heads] for row in variants))
        yield from ["", "## How it was compared", "", self.method()]
        for title, lines in self.lists().items():
            yield from ["", f"## {title}", "", *(f"- {markdown(f'{name}: {why}')}" for name, why in lines)]

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
    row = dict.fromkeys((*COLUMNS, "kind"), "") | {
        "arm": arm.name,
        "n": "0" if found is None else str(found.n),
        "mean": "" if found is None else number(measure, found.mean),
        "sd": "" if found is None else number(measure, found.sd),
    }
    if comparison is None:
        counts = {state: sum(cell.state == state for cell in arm.cells) for state in (*LOST, "altered")}
        lost = [f"{state} in {count} of {len(arm.cells)}" for state, count in counts.items() if count]
        return row | {"verdict": ", ".join(["baseline", *lost])}
    few = comparison.seeds or (f"over {MOST_SEEDS:,}" if comparison.seen is not None else "")
    return row | {
        "difference": difference(comparison),
        "seen": number(measure, comparison.seen),
        "seeds": str(few),
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
        return f"{mean} (one pair)" if one.n == 1 else f"{mean} (of {one.n} pairs)"
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
