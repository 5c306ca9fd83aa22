"""The report of a ladder: ladder.html (one file that opens offline), ladder.md, ladder.csv and ladder.json."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tfkit.core.figures import drawn
from tfkit.reports.formats import csv_text, html_page, markdown, markdown_table
from tfkit.storage.files import write_json, write_text
from tfkit.studies.ladder_pictures import by_parameters, by_tokens
from tfkit.studies.ladder_results import LadderResults
from tfkit.studies.report import check_packages, failed_lines

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
    """Results of a ladder as files."""

    results: LadderResults

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
        draw = {"loss by parameters": by_parameters, "loss by tokens": by_tokens} if results.points else {}
        pictures = [drawn(what, partial(one, results)) for what, one in draw.items()]
        return html_page(
            Path(__file__).with_name("ladder.html"),
            report=results,
            lines=list(results.law_lines()),
            table=list(results.rows()),
            pictures=pictures,
            method=METHOD,
        )

    def markdown(self) -> str:
        """Render the report in Markdown, without the pictures."""
        results = self.results
        lines = [f"# {markdown(results.plan.name)}: a ladder of {len(results.plan.sizes)} sizes", ""]
        lines += [f"**{markdown(results.verdict)}**", ""] if results.verdict else []
        lines += [*(f"No law: {reason}." for reason in results.reasons), *map(markdown, results.law_lines()), ""]
        lines += markdown_table(TABLE, iter(results.rows()))
        lines += ["", METHOD]
        lines += ["", "## Failed runs", "", *failed_lines(results.failed)] if results.failed else []
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Format a line for each run."""
        return csv_text(COLUMNS, ([run[name] for name in COLUMNS] for run in self.results.runs))
