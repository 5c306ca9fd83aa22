"""The report of a study: report.html (one file that opens offline), report.md, and results.csv, .json and .tex."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from tfkit.core.errors import RunError, UsageError, installing
from tfkit.core.figures import drawn
from tfkit.reports.formats import csv_text, html_page, markdown, markdown_table
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import read_history
from tfkit.storage.files import write_json, write_text
from tfkit.studies.pictures import costs, curves, forest
from tfkit.studies.plan import EXACT
from tfkit.studies.results import LOST, RESULTS, ArmResult, Results
from tfkit.studies.settings import BASELINE
from tfkit.studies.statistics import LEVEL, MOST_SEEDS, Comparison
from tfkit.studies.wording import (
    COSTS,
    HELP,
    KINDS,
    Trend,
    answer,
    cost_of,
    difference,
    latex_table,
    meaning,
    number,
    trends,
    with_spread,
)
from tfkit.training.progress import duration


@dataclass(frozen=True)
class PageSection:
    """Section of a page: lines, captioned pictures, a table, and code. `kinds` style the last cell of each row."""

    title: str
    lines: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    kinds: Sequence[str] = ()
    pictures: Sequence[Callable[[], str]] = ()  # HTML or SVG; empty if it could not be drawn
    caption: str = ""
    code: str = ""

    def markdown_lines(self) -> Iterator[str]:
        """Yield the section as Markdown, without its pictures and code; nothing if it has only these."""
        if (self.pictures or self.code) and not self.rows:
            return
        yield from [f"## {markdown(self.title)}", ""]
        for line in self.lines:
            yield from [markdown(line), ""]
        if self.rows:
            yield from [*markdown_table(self.heads, self.rows), ""]


def check_packages() -> None:
    """Raise UsageError if a package that reports need is missing."""
    missing = [name for name in ("scipy", "matplotlib", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"a study needs the packages {', '.join(missing)}: {installing('study')}")


def environment_of(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Return the distinct versions, machines, devices and threads of the runs, and their total time."""
    table: dict[str, dict[str, None]] = {}
    seconds = 0.0
    for folder in folders:
        try:
            history = read_history(folder)
        except RunError:
            continue
        for start in history.starts if history is not None else ():
            facts = {**start.versions, **{key: str(value) for key, value in start.machine.items() if key != "memory"}}
            for name, value in {**facts, "device": start.device, "threads": str(start.threads)}.items():
                table.setdefault(name, {})[value] = None
        seconds += history.seconds if history is not None else 0.0
    rows = [(name, ", ".join(values)) for name, values in table.items()]
    return [*rows, ("time of all runs", duration(seconds))] if rows else []


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
FIXED = (
    "Its variance is pooled over the variants, about additive effects of variant and seed, where their spreads agree "
    "(F tests), and is the pair's own otherwise. With fewer than 5 seeds the F tests miss a spread that is several "
    "times that of the others, and such a variant is called different in more than "
    f"{LEVEL:.0%} of studies where its mean is equal: give it 5 seeds. p is that of the t test"
)
POWERED = (
    "80 % power from: the smallest difference that would be found with a probability of 80 %; seeds needed: the number "
    "of seeds that gives the observed difference this power. "
)
RANKED = (
    "Identical differences give no verdict. A run that diverged or failed ranks last, and a variant with such runs is "
    "compared by the exact rank sum test (Wilcoxon 1945). "
)
FOREST = (
    "A diamond is the mean difference from {baseline}, the bar its interval, a dot the difference of one seed. The "
    "grey band is one standard deviation of the runs of {baseline} to both sides; its own dots are its runs about "
    "their mean. An arrow points to a difference outside the picture."
)
CURVES = (
    "A line is the mean over seeds, its band reaches from the least to the most of them. Differences far outside those "
    "of most variants are cut."
)
FRONT = (
    "Means, or an arrow to one outside the picture, with a standard deviation over seeds to each side. A ring marks "
    "the Pareto front: no other variant is at least as good in both means, and beyond the noise better in one (paired "
    "t test of the two at 5 %, uncorrected)."
)
LATEX = "results.tex"
PAGE, SCRIPT = (Path(__file__).with_name(f"page.{kind}") for kind in ("html", "js"))
WORDS = (
    *("", "size", "state", "measure", "variant", "verdict", "paper", "claim", "on", "made of", "solved or tuned"),
    *("differs in", "differences"),
)  # headers of left-aligned columns
CLAIM_COLUMNS = {
    "paper": "paper",
    "says": "claim",
    "on": "on",
    "n": "n",
    "difference": COLUMNS["difference"],
    "verdict": "verdict",
}


@dataclass(frozen=True)
class StudyReport:
    """Results of a study, with what differs in each arm, the environment, the recipe's text and the plan's date."""

    results: Results
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Sequence[tuple[str, str]] = ()
    text: str = ""
    planned: str = ""

    HTML: ClassVar[str] = "report.html"

    def write(self, folder: Path) -> None:
        """Write all files, the page last. Raise UsageError for a missing package before anything is written."""
        check_packages()
        write_text(folder / LATEX, self.latex())
        write_text(folder / "results.csv", csv_text(*self.runs()))
        write_json(folder / RESULTS, self.as_data())
        write_text(folder / "report.md", self.markdown())
        write_text(folder / self.HTML, self.html())

    def html(self) -> str:
        """Render the page."""
        code = [PageSection("The study", code=self.text)] if self.text else []
        sections = [(one, [draw() for draw in one.pictures]) for one in (*self.sections(), *code)]
        script = SCRIPT.read_text(encoding="utf-8")
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        words = {"title": self.results.name, "lead": list(self.lead()), "words": WORDS}
        return html_page(PAGE, sections=sections, script=script, allowed=allowed, **words)

    def markdown(self) -> str:
        """Render the page in Markdown, without the pictures and the recipe."""
        lines = [f"# {markdown(self.results.name)}", ""]
        lines += [text for line in self.lead() for text in (markdown(line), "")]
        lines += [line for one in self.sections() for line in one.markdown_lines()]
        return "\n".join(lines)

    @cached_property
    def by_size(self) -> list[StudyReport]:
        """The report of each size, or this one without sizes."""
        return [replace(self, results=self.results.at(size)) for size in self.results.sizes] or [self]

    @cached_property
    def trends(self) -> list[Trend]:
        """Changes of the differences with the size."""
        return trends(self.results)

    def lead(self) -> Iterator[str]:
        """Yield the question, the answer, the meaning of its verdicts, and a summary."""
        if self.results.about:
            yield self.results.about
        noisy = self._noisy
        yield from (answer(one.results, measure) for measure in noisy[:1] for one in self.by_size)
        words = [f"{one.arm} {one.verdict}" for one in self.trends if one.change.measure == noisy[0]]
        if words:
            yield f"From the smallest size to the largest, on {noisy[0]}: {'; '.join(words)}."
        yield from [meaning(self.results)] * bool(noisy)
        yield self.summary()

    def sections(self) -> Iterator[PageSection]:
        """Yield the sections of the page: a forest plot and table for each measure, then what explains them."""
        baseline = BASELINE if self.results.sizes else self.results.arms[0].name
        measures = [[one._measure(measure) for one in self.by_size] for measure in self._noisy]
        yield from (section for sections in measures[:1] for section in sections)
        if self.trends:
            heads, rows = self.trend_rows()
            yield PageSection("Differences by size", [HELP], heads, rows)
        claims = list(self.claim_rows())
        if claims:
            rows = [[row[key] for key in CLAIM_COLUMNS] for row in claims]
            yield PageSection("Claims", (), list(CLAIM_COLUMNS.values()), rows, [row["kind"] for row in claims])
        yield from (section for sections in measures[1:] for section in sections)
        noise = f"The spread of the runs of {baseline}, which differ only in the seed."
        yield PageSection("Noise floor", [noise], ["measure", "n", "mean", "sd", "range"], list(self.noise_rows()))
        for one in self.by_size:
            yield from one._curves()
        yield from (one._costs() for one in self.by_size)
        heads = ["variant", "made of", "solved or tuned", "differs in"]
        yield PageSection(f"The variants, and what differs from {baseline}", (), heads, list(self.variants()))
        yield PageSection("How it was compared", [*([self.tuning()] if self.planned else []), self.method()])
        groups = {**self.lists(), "Made with": self.environment}
        yield from (PageSection(title, heads=["", ""], rows=pairs) for title, pairs in groups.items() if pairs)
        yield PageSection("Table in LaTeX", code=self.latex())

    @property
    def _noisy(self) -> list[str]:
        return [measure for measure in self.results.measure if measure not in EXACT]

    def _measure(self, measure: str) -> PageSection:
        """Return the section of a measure: differences from the baseline as a forest plot, and the table."""
        rows = list(self.rows(measure))
        return PageSection(
            f"{measure}{self._at} ({'more' if measure in self.results.rising else 'less'} is better)",
            (),
            list(COLUMNS.values()),
            [[row[key] for key in COLUMNS] for row in rows],
            [row["kind"] for row in rows],
            [partial(drawn, measure, partial(forest, self.results, measure))],
            FOREST.format(baseline=self.results.arms[0].name),
        )

    def _curves(self) -> Iterator[PageSection]:
        for measure in self.results.measure:
            if any(measure in point for arm in self.results.own for cell in arm.cells for point in cell.curve):
                draw = partial(drawn, measure, partial(curves, self.results, measure))
                yield PageSection(f"{measure}{self._at} while training", pictures=[draw], caption=CURVES)

    def _costs(self) -> PageSection:
        """Return the section of costs: plots of the first measure against each cost, and a table of costs."""
        known = [name for name in COSTS if any(cost_of(arm, name) for arm in self.results.own)]
        rows = [[arm.name, *(with_spread(name, cost_of(arm, name)) for name in known)] for arm in self.results.own]
        title = f"{self.results.measure[0]}{self._at} against its cost"
        draw = partial(drawn, title, partial(costs, self.results, self.results.measure[0]))
        heads = ["variant", *(COSTS[name].removesuffix(", bytes") for name in known)]
        return PageSection(title, (), heads, rows, (), [draw], FRONT)

    @property
    def _at(self) -> str:
        sizes = self.results.sizes
        return f" at {sizes[0]}" if len(sizes) == 1 else ""

    def trend_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and a row for each variant and measure: its differences by size, and their change."""
        rows = []
        for one in self.trends:
            differences = [f"{size}: {difference(found)}" for size, found in one.by_size.items()]
            rows.append([one.change.measure, one.arm, ";\n".join(differences), difference(one.change), one.verdict])
        return ["measure", "variant", "differences", "change [95 % interval]", "verdict"], rows

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
        """Return the reservations about the verdicts by title: changed plans, altered and failed runs."""
        changed = [tuple(text.split(": ", 1)) for text in self.results.changed]
        groups = {
            "The plan was changed after results were seen": [(key, text) for key, text in changed],
            "Altered runs, which are not counted": list(self.results.altered.items()),
            "Failed runs": list(self.results.failed.items()),
            "Best at the edge of the values tried": list(self.results.at_the_edge.items()),
        }
        return {title: rows for title, rows in groups.items() if rows}

    def tuning(self) -> str:
        """Describe what was tuned for each variant, or that nothing was."""
        tried = [f"{key} ({', '.join(map(str, values))})" for key, values in self.results.tune.items()]
        if not tried:
            return (
                "Nothing was tuned: each variant was trained with the values of its recipe, such as one learning rate "
                "for all. One that is worse here may be better at a rate of its own: study.tune tries several."
            )
        return (
            f"Tuned for each variant: {' and '.join(tried)}, by the best {self.results.measure[0]} of seed "
            f"{self.results.seeds[0]}."
        )

    def method(self) -> str:
        """Describe the statistics."""
        holm = f"after Holm's correction over all {self.results.tested} comparisons here (Holm 1979). "
        return (
            "Each variant is compared with the baseline run by run: the same seed has the same order of data. The "
            f"difference is the mean over pairs. {FIXED} {holm}Better or "
            f"worse: p is below {LEVEL}. Within the noise: it is not. Equal: the whole interval lies within the margin "
            "that the study sets. The intervals hold at once with 95 % (Bonferroni), and end "
            "at 0 where a later step of Holm's procedure excludes it. The standard deviation of the differences is at "
            "least a step of the measure: one example of an accuracy, or half a unit of the last printed digit. "
            f"{POWERED}{RANKED}Verdicts are given when all planned runs have "
            "ended, and not on runs whose files were altered. A claim is held or not held where its comparison is "
            "beyond the noise, and open otherwise."
        )

    def noise_rows(self) -> Iterator[list[str]]:
        """Yield a row with the noise floor of each measure."""
        rows = [(one._at, *row) for one in self.by_size for row in one.results.noise.items()]
        for at, measure, noise in rows:
            if noise is not None:
                mean, sd, least, most = (
                    number(measure, one) for one in (noise.mean, noise.sd, noise.least, noise.most)
                )
                yield [f"{measure}{at}", str(noise.n), mean, sd, f"{least} to {most}"]

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

    def variants(self) -> Iterator[list[str]]:
        """Yield a description of each variant."""
        for arm in self.results.arms:
            solved = ", ".join(f"{key}={value}" for key, value in {**arm.solved, **arm.tuned}.items())
            changes = [f"is {arm.same_as}"] if arm.same_as else self.changes.get(arm.name, ())
            yield [arm.name, arm.made_of, solved, ";\n".join(changes)]

    def rows(self, measure: str) -> Iterator[dict[str, str]]:
        """Yield a row per arm for one measure, compared with the baseline."""
        known = {one.arm: one for one in self.results.comparisons if one.measure == measure}
        for arm in self.results.own:
            comparison = known.get(arm.name)
            row = _row(arm, measure, comparison)
            yield row if comparison is None else row | {"verdict": row["verdict"] + self._ending}

    def latex(self) -> str:
        """Return the tables in LaTeX, one for each size."""
        return "\n".join(latex_table(one.results) for one in self.by_size)

    def as_data(self) -> dict[str, object]:
        """Return the contents of results.json."""
        return {
            **self.results.as_data(),
            **({"by_size": [one.as_data() for one in self.trends]} if self.trends else {}),
        }

    def runs(self) -> tuple[list[str], list[list[object]]]:
        """Return the header and a row per run: its arm, seed, state, folder and scores."""
        cells = [(arm, cell) for arm in self.results.own for cell in arm.cells]
        names = list(dict.fromkeys(name for _, cell in cells for name in cell.scores))
        rows: list[list[object]] = [
            [arm.name, cell.seed, cell.state, cell.folder, *(cell.scores.get(name) for name in names)]
            for arm, cell in cells
        ]
        return ["variant", "seed", "state", "run", *names], rows


def _row(arm: ArmResult, measure: str, comparison: Comparison | None) -> dict[str, str]:
    spread = arm.spread(measure)
    row = dict.fromkeys((*COLUMNS, "kind"), "") | {
        "arm": arm.name,
        "n": "0" if spread is None else str(spread.n),
        "mean": "" if spread is None else number(measure, spread.mean),
        "sd": "" if spread is None else number(measure, spread.sd),
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
