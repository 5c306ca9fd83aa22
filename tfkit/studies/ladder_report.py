"""The report of a ladder: ladder.html (one file that opens offline), ladder.md, ladder.csv and ladder.json."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.extras import optional
from tfkit.core.files import write_json, write_text
from tfkit.studies.ladder_pictures import by_parameters, by_tokens
from tfkit.studies.ladder_results import LadderResults
from tfkit.studies.report import markdown_table

HTML, MARKDOWN, CSV, JSON = "ladder.html", "ladder.md", "ladder.csv", "ladder.json"
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


@dataclass(frozen=True)
class LadderReport:
    """Results as files."""

    results: LadderResults

    def write(self, folder: Path) -> None:
        """Write all four files; raises UsageError where a package is missing, before any of them."""
        page, results = self.html(), self.results
        write_text(folder / HTML, page)
        write_text(folder / MARKDOWN, self.markdown())
        write_text(folder / CSV, self.csv())
        write_json(folder / JSON, results.as_data())

    def html(self) -> str:
        """The page."""
        jinja2 = optional("jinja2", "study", "the page needs")
        results = self.results
        template = jinja2.Environment(autoescape=True).from_string(
            Path(__file__).with_name("ladder.html").read_text(encoding="utf-8")
        )
        pictures = (by_parameters(results), by_tokens(results)) if results.points else ()
        page: str = template.render(
            report=results,
            lines=list(results.law_lines()),
            table=list(results.rows()),
            pictures=pictures,
            method=METHOD,
        )
        return page

    def markdown(self) -> str:
        """The same in Markdown, without the pictures."""
        results = self.results
        lines = [f"# {results.plan.name}: a ladder of {len(results.plan.sizes)} sizes", ""]
        lines += [f"**{results.verdict}**", ""] if results.verdict else []
        lines += [*(f"No law: {reason}." for reason in results.reasons), *results.law_lines(), ""]
        lines += markdown_table(TABLE, iter(results.rows()))
        lines += ["", METHOD]
        lines += ["", "## Failed runs", "", *(f"- {name}: {why}" for name, why in results.failed.items())] * bool(
            results.failed
        )
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """A line for each run."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(["" if run[name] is None else run[name] for name in COLUMNS] for run in self.results.runs)
        return text.getvalue()
