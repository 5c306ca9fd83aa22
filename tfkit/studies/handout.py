"""The page to hand in of a study: its report, and drawing, costs, samples and attention of a run of its baseline."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tfkit.core.errors import RunError, TfkitError
from tfkit.reports.page import Page, PageSection
from tfkit.run import Run
from tfkit.run.handout import LEFT_OUT, architecture, outputs
from tfkit.runs.folder import RunFolder
from tfkit.studies.compare import study_report
from tfkit.studies.plan import PLAN, RUNS
from tfkit.studies.plan_file import read_plan
from tfkit.studies.report import check_packages


def handout(folder: Path, load: Callable[[Path], Run], text: str | None) -> Page | None:
    """Return the page of the study in a folder, or None if it contains no study."""
    if not (folder / PLAN).is_file():
        return None
    check_packages()
    plan = read_plan(folder)
    report, file, digest = (
        study_report(plan, folder),
        f"{plan.name}.yaml",
        hashlib.sha256(plan.text.encode()).hexdigest(),
    )
    words = ["tfkit", "study", file, "--out", folder.resolve().name]
    again = {"commands": [shlex.join([*words, *more]) for more in ([], ["--recheck", "2"])], "study": plan.text}
    facts = {"sha256": digest, "seeds": list(plan.seeds), "made_with": dict(report.environment)}
    lines = [f"Seeds: {', '.join(map(str, plan.seeds))}", f"SHA-256 of the study's file ({file}): {digest}"]
    data = {"results": report.as_data(), "again": {**again, **facts}}
    last = PageSection("How to do it again", lines, code="\n".join(again["commands"]), data=data)
    runs = [folder / RUNS / cell.folder for cell in report.results.own[0].cells if cell.folder]
    first, page = next((run for run in runs if RunFolder(run).holds_run), None), report.page()
    return replace(
        page, sections=[*page.sections[:-1], *_baseline(first, load, text), last, page.sections[-1]], whole=True
    )


def _baseline(folder: Path | None, load: Callable[[Path], Run], text: str | None) -> Iterator[PageSection]:
    """Yield the sections of a run of the baseline, or the reason why they are left out."""
    try:
        if folder is None:
            raise RunError("no run of the baseline has begun")
        run = load(folder)
        for one in (*architecture(run), *outputs(run, text)):
            yield replace(one, title=f"{one.title} ({folder.name})")
    except TfkitError as error:
        yield PageSection("The baseline", [LEFT_OUT.format(error)])
