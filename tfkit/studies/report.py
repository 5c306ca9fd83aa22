"""The report of a study: report.html (opens offline), report.md, results.csv, .json and .tex, and findings.jsonl."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from tfkit.core.errors import UsageError, installing
from tfkit.core.figures import drawn
from tfkit.reports.formats import csv_text, markdown
from tfkit.reports.page import Page, PageSection
from tfkit.storage.files import write_json, write_text
from tfkit.studies import wording
from tfkit.studies.design_section import BASELINE
from tfkit.studies.effects import Effect
from tfkit.studies.findings import FINDINGS, HEADS, LINES, findings, run_lines
from tfkit.studies.pictures import costs, curves, forest, half_normal
from tfkit.studies.plan import EXACT, Plan
from tfkit.studies.results import LOST, RESULTS, ArmResult, Results
from tfkit.studies.statistics import MOST_SEEDS, Comparison, number
from tfkit.studies.wording import COSTS, KINDS, Trend, cost_of, difference, with_spread


def check_packages() -> None:
    """Raise UsageError if a package that reports need is missing."""
    missing = [name for name in ("scipy", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"a study needs the packages {', '.join(missing)}: {installing('study')}")


COLUMNS = {"arm": "variant", "n": "n", "mean": "mean", "sd": "sd", "difference": "difference [95 % interval]"}
COLUMNS |= {"seen": "80 % power from", "seeds": "seeds needed", "p": "p (Holm)", "verdict": "verdict"}
LATEX = "results.tex"
CLAIM_COLUMNS = {"paper": "paper", "says": "claim", "on": "on", "n": "n"}
CLAIM_COLUMNS |= {key: COLUMNS[key] for key in ("difference", "verdict")}


@dataclass(frozen=True)
class StudyReport:
    """Results of a study, with what differs in each arm, the environment, the plan, and the folder of the runs."""

    results: Results
    changes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Sequence[tuple[str, str]] = ()
    plan: Plan | None = None
    folder: Path = Path()

    HTML: ClassVar[str] = "report.html"

    def write(self, folder: Path) -> None:
        """Write all files, the page last. Raise UsageError for a missing package before anything is written."""
        check_packages()
        write_text(folder / LATEX, self.latex())
        write_text(folder / LINES, csv_text(HEADS, run_lines(self.results)))
        if self.plan is not None:
            write_text(folder / FINDINGS, findings(self.results, self.plan, self.folder, dict(self.environment)))
        write_json(folder / RESULTS, self.as_data())
        write_text(folder / "report.md", self.markdown())
        write_text(folder / self.HTML, self.html())

    def html(self) -> str:
        """Render the page."""
        return self.page().html()

    def page(self) -> Page:
        """Return the page with the text of the study's file."""
        code = [PageSection("The study", code=self.plan.text)] if self.plan is not None else []
        return Page(self.results.name, list(self.lead()), [*self.sections(), *code])

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
        return wording.trends(self.results)

    def lead(self) -> Iterator[str]:
        """Yield the question, the answer, the meaning of its verdicts, and a summary."""
        if self.results.about:
            yield self.results.about
        noisy = self._noisy
        yield from (wording.answer(one.results, measure) for measure in noisy[:1] for one in self.by_size)
        yield from [wording.EFFECTS] * (self.results.design is not None)
        words = [f"{one.arm} {one.words}" for one in self.trends if one.change.measure == noisy[0]]
        if words:
            yield f"From the smallest {self.axis} to the largest, on {noisy[0]}: {'; '.join(words)}."
        yield from [wording.meaning(self.results)] * bool(noisy)
        yield self.summary()

    def sections(self) -> Iterator[PageSection]:
        """Yield the sections of the page: a forest plot and table for each measure, then what explains them."""
        baseline = BASELINE if self.results.sizes else self.results.arms[0].name
        measures = [[one._measure(measure) for one in self.by_size] for measure in self._noisy]
        yield from (section for sections in measures[:1] for section in sections)
        if self.trends:
            heads, rows = self.trend_rows()
            yield PageSection(f"Differences by {self.axis}", [wording.HELP.format(size=self.axis)], heads, rows)
        claims = list(self.claim_rows())
        if claims:
            rows = [[row[key] for key in CLAIM_COLUMNS] for row in claims]
            yield PageSection("Claims", (), list(CLAIM_COLUMNS.values()), rows, [row["kind"] for row in claims])
        yield from (section for sections in measures[1:] for section in sections)
        yield from self.screen()
        noise = f"The spread of the runs of {baseline}, which differ only in the seed."
        yield PageSection("Noise floor", [noise], ["measure", "n", "mean", "sd", "range"], list(self.noise_rows()))
        heads, rows = ["variant", "differs in"], [[name, ";\n".join(lines)] for name, lines in self.changes.items()]
        if self.results.design is None:
            for one in self.by_size:
                yield from one._curves()
            yield from (one._costs() for one in self.by_size)
            heads, rows = ["variant", "made of", "solved or tuned", "differs in"], list(self.variants())
        yield PageSection(f"The variants, and what differs from {baseline}", (), heads, rows)
        lines = [*([self.tuning()] if self.plan else []), wording.method(self.results)]
        yield PageSection("How it was compared", lines)
        groups = {**self.lists(), "Made with": self.environment}
        yield from (PageSection(title, heads=["", ""], rows=pairs) for title, pairs in groups.items() if pairs)
        yield PageSection("Table in LaTeX", code=self.latex())

    @property
    def _noisy(self) -> list[str]:
        return [measure for measure in self.results.measure if measure not in EXACT]

    def _measure(self, measure: str) -> PageSection:
        """Return the section of a measure: differences from the baseline as a forest plot, and the table."""
        rows, baseline = list(self.rows(measure)), self.results.arms[0].name
        diamond, dots = f"the mean difference from {baseline}", ", a dot the difference of one seed"
        if self.results.design is not None:
            diamond, dots = "the effect of an option", ""
        return PageSection(
            f"{measure}{self._at} ({'more' if measure in self.results.rising else 'less'} is better)",
            (),
            list(COLUMNS.values()),
            [[row[key] for key in COLUMNS] for row in rows],
            [row["kind"] for row in rows],
            [partial(drawn, measure, partial(forest, self.results, measure))],
            wording.FOREST.format(baseline=baseline, diamond=diamond, dots=dots),
        )

    def screen(self) -> Iterator[PageSection]:
        """Yield the sections of a design's screen, and of the interactions in its fresh runs."""
        design, heads = self.results.design, ["effect", "standard error"]
        if design is None:
            return
        for measure, found in design.effects.items():
            ranked = sorted(found, key=lambda one: -abs(one.mean or 0.0))
            rows = [[*_effect(measure, one), "yes" * (one.name in design.chosen)] for one in ranked]
            draw = partial(drawn, measure, partial(half_normal, found, design.chosen))
            columns = ["option", *heads, "chosen"]
            yield PageSection(f"{measure} in the screen", (), columns, rows, (), [draw], wording.HALF_NORMAL)
        if design.effects:
            rows = [[name, ", ".join(others) or "nothing"] for name, others in design.aliases.items()]
            yield PageSection("Aliases in the screen", [wording.ALIASES], ["option", "cannot be told from"], rows)
        for measure, found in design.interactions.items():
            rows, title = [_effect(measure, one) for one in found], f"Interactions on {measure} in the fresh runs"
            yield from [PageSection(title, [wording.PAIRS], ["options", *heads], rows)] * bool(rows)

    def _curves(self) -> Iterator[PageSection]:
        for measure in dict.fromkeys((*self.results.measure, self.results.tuned_by)):
            if any(measure in point for arm in self.results.own for cell in arm.cells for point in cell.curve):
                draw = partial(drawn, measure, partial(curves, self.results, measure))
                yield PageSection(f"{measure}{self._at} while training", pictures=[draw], caption=wording.CURVES)

    def _costs(self) -> PageSection:
        """Return the section of costs: plots of the first measure against each cost, and a table of costs."""
        known = [name for name in COSTS if any(cost_of(arm, name) for arm in self.results.own)]
        rows = [[arm.name, *(with_spread(name, cost_of(arm, name)) for name in known)] for arm in self.results.own]
        title = f"{self.results.measure[0]}{self._at} against its cost"
        draw = partial(drawn, title, partial(costs, self.results, self.results.measure[0]))
        heads = ["variant", *(COSTS[name].removesuffix(", bytes") for name in known)]
        return PageSection(title, (), heads, rows, (), [draw], wording.FRONT)

    @property
    def axis(self) -> str:
        """Name of the difference between the sizes: size, budget, or both."""
        base = self.results.arms[0]
        return "size" if base.place == base.size else "budget" if base.size.isdigit() else "size and budget"

    @property
    def _at(self) -> str:
        return f" at {self.results.arms[0].place}" if len(self.results.sizes) == 1 else ""

    def trend_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and a row for each variant and measure: its differences by size, and their change."""
        rows = []
        for one in self.trends:
            differences = [f"{size}: {difference(found)}" for size, found in one.by_size.items()]
            rows.append([one.change.measure, one.arm, ";\n".join(differences), difference(one.change), one.words])
        return ["measure", "variant", "differences", "change [95 % interval]", "verdict"], rows

    def summary(self) -> str:
        """Summarize the plan and the completed runs."""
        cells, design = [cell for arm in self.results.own for cell in arm.cells], self.results.design
        counts = {state: sum(cell.state == state for cell in cells) for state in ("done", *LOST, "altered")}
        seeds = ", ".join(map(str, self.results.seeds))
        of = f"of {len(self.results.own)} variants with seeds {seeds}"
        if design is not None:
            of = "; ".join(f"{stage}: {ended} of {planned} ended" for stage, (ended, planned) in design.runs.items())
        text = f"{counts.pop('done')} of {len(cells)} runs are done, {of}"
        text += "".join(f"; {count} {state}" for state, count in counts.items() if count)
        return text + (f". The plan was made at {self.plan.made}." if self.plan is not None and self.plan.made else ".")

    def lists(self) -> dict[str, list[tuple[str, str]]]:
        """Return the reservations about the verdicts by title: changed plans, altered and failed runs."""
        changed = [(key, text) for key, _, text in (one.partition(": ") for one in self.results.changed)]
        excluded, lost = ((), ()) if (of := self.results.design) is None else (of.excluded, of.diverged.items())
        early = [(name, f"began at {at}, before the plan was made") for name, at in self.results.early.items()]
        groups = {
            "Seen before the plan": early,
            "The plan was changed after results were seen": changed,
            "Options that exclude each other": [(" + ".join(one), "never in one run") for one in excluded],
            "Diverged runs by option": [
                (name, f"{a} of {b} with it, {c} of {d} without it") for name, (a, b, c, d) in lost if a + c
            ],
            "Altered runs, which are not counted": list(self.results.altered.items()),
            "Failed runs": list(self.results.failed.items()),
            "Best at the edge of the values tried": list(self.results.at_the_edge.items()),
            "Losses per token of several tokenizers, which do not compare": list(self._bits()),
        }
        return {title: rows for title, rows in groups.items() if rows}

    def _bits(self) -> Iterator[tuple[str, str]]:
        """Yield the bits per symbol or character of each variant, if losses of several tokenizers are measured."""
        changes = (line for lines in self.changes.values() for line in lines)
        if not any(line.startswith("data.tokenizer") for line in changes) or ".loss" not in str(self.results.measure):
            return
        for arm in self.results.own:
            names = dict.fromkeys(name for cell in arm.cells for name in cell.scores if ".bits_per_" in name)
            means = [(name, spread.mean) for name in names if (spread := arm.spread(name)) is not None]
            shown = ", ".join(f"{name} {number(name, mean)}" for name, mean in means)
            yield arm.name, shown or "set train.metrics: [bits_per_symbol]"

    def tuning(self) -> str:
        """Describe what was tuned for each variant, or that nothing was."""
        tunes = {key: [one for arm in self.results.own for one in arm.tried.get(key, ())] for key in self.results.tune}
        tried = [f"{key} ({', '.join(map(str, dict.fromkeys(values)))})" for key, values in tunes.items()]
        if not tried:
            return (
                "Nothing was tuned: each variant was trained with the values of its recipe, such as one learning rate "
                "for all. One that is worse here may be better at a rate of its own: study.tune tries several."
            )
        of, seed = "each variant", f"seed {self.results.seeds[0]}"
        if self.results.design is not None:
            of, seed = "the baseline, whose values the screen has, and each cell that confirms", "its first seed"
        return f"Tuned for {of}: {' and '.join(tried)}, by the best {self.results.tuned_by} of {seed}."

    def noise_rows(self) -> Iterator[list[str]]:
        """Yield a row with the noise floor of each measure."""
        rows = [(one._at, *row) for one in self.by_size for row in one.results.noise.items()]
        for at, measure, noise in rows:
            if noise is not None:
                known = (noise.mean, noise.sd, noise.least, noise.most)
                mean, sd, least, most = (number(measure, one) for one in known)
                yield [f"{measure}{at}", str(noise.n), mean, sd, f"{least} to {most}"]

    def claim_rows(self) -> Iterator[dict[str, str]]:
        """Yield the claims with their verdicts."""
        for one in self.results.claims:
            words = replace(one.comparison, mark="").words()
            why = words.removeprefix("open").removeprefix(": ") if one.comparison.verdict == "open" else ""
            lost = ", ".join(words.split(", ")[1:]) if sum(one.comparison.lost) and not why else ""
            yield {
                "paper": one.claim.paper,
                "says": one.claim.says,
                "on": one.claim.on,
                "n": str(one.comparison.n),
                "difference": difference(one.comparison),
                "verdict": one.verdict + (f" ({why or lost})" if why or lost else "") + one.comparison.ending,
                "kind": KINDS.get(one.verdict, one.verdict),
            }

    def variants(self) -> Iterator[list[str]]:
        """Yield a description of each variant."""
        for arm in self.results.arms:
            solved = ", ".join(f"{key}={value}" for key, value in {**arm.solved, **arm.tuned}.items())
            changes = [f"is {arm.same_as}"] if arm.same_as else self.changes.get(arm.name, ())
            yield [arm.name, arm.made_of, solved, ";\n".join(changes)]

    def rows(self, measure: str) -> Iterator[dict[str, str]]:
        """Yield a row per arm for one measure, compared with the baseline."""
        known = {one.arm: one for one in self.results.comparisons if one.measure == measure}
        for arm in self.results.shown:
            yield _row(arm, measure, known.get(arm.name))

    def latex(self) -> str:
        """Return the tables in LaTeX, one for each size."""
        return "\n".join(wording.latex_table(one.results) for one in self.by_size)

    def as_data(self) -> dict[str, object]:
        """Return the contents of results.json."""
        return self.results.as_data() | ({"by_size": [one.as_data() for one in self.trends]} if self.trends else {})


def _effect(measure: str, one: Effect) -> list[str]:
    return [one.name, wording.signed(measure, one.mean), number(measure, one.error)]


def _row(arm: ArmResult, measure: str, comparison: Comparison | None) -> dict[str, str]:
    spread = arm.spread(measure)
    row = dict.fromkeys((*COLUMNS, "kind"), "") | {
        "arm": arm.name,
        "n": str(0 if (known := spread or comparison) is None else known.n),
        "mean": "" if spread is None else number(measure, spread.mean),
        "sd": "" if spread is None else number(measure, spread.sd),
    }
    if comparison is None:
        counts = {state: sum(cell.state == state for cell in arm.cells) for state in (*LOST, "altered")}
        lost = [f"{state} in {count} of {len(arm.cells)}" for state, count in counts.items() if count]
        return row | {"verdict": ", ".join(["baseline", *lost])}
    p, few = comparison.p_holm, comparison.seeds or (f"over {MOST_SEEDS:,}" if comparison.seen is not None else "")
    return row | {
        "difference": difference(comparison),
        "seen": number(measure, comparison.seen),
        "seeds": str(few),
        "p": "" if p is None else f"{p:.2g}" if p >= wording.LEAST_P else f"< {wording.LEAST_P:.4f}",
        "verdict": comparison.words(),
        "kind": KINDS.get(comparison.verdict, comparison.verdict),
    }
