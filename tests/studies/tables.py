"""The tables in recipes/studies/README.md, made from the files of the shipped studies: NAME.csv and NAME.jsonl.

`python -m tests.studies.tables` writes them between the marks of each study that has these files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tfkit.recipe.text.node import inline
from tfkit.reports.formats import markdown, markdown_table
from tfkit.studies.again import read_rows, results_in
from tfkit.studies.arms import Arm, StudySource, arms_of, study_of
from tfkit.studies.design_section import BASELINE, parts_of
from tfkit.studies.plan import CONFIRM, EXACT, SCREEN, DesignPlan
from tfkit.studies.report import CLAIM_COLUMNS, COLUMNS, StudyReport
from tfkit.studies.results import CHANGED, EARLY, ArmResult, Results, StudyContext, results_of
from tfkit.studies.settings import STEPS, rises, tuned_by

from ..documents import ROOT, between, rewrite

FOLDER = ROOT / "recipes" / "studies"
TEXTBOOK = {  # what textbooks say: study and number of the claim
    "One head is worse than eight": ("heads", 1),
    "More than eight heads gain nothing": ("heads", 2),
    "Of equal parameters, deep and narrow is better than shallow and wide": ("depth-width", 1),
    "More layers are better": ("depth-width", 2),
    "Through a last state, translation falls off on long sources; with attention it does not": ("last-state", 1),
    "No recurrence is needed": ("last-state", 3),
    "A student learns more from soft targets than from the data alone": ("distillation", 1),
    "A student that starts from its teacher's layers learns more": ("distillation", 2),
    "Scores must be divided by the root of the size of a head": ("root-scale", 1),
    "In a text of twice the length, attention costs more for each token": ("attention-cost", 1),
}
BECAME = {"held": "holds here", "not held": "does not hold here", "open": "open"}
SHOWN = ("arm", "n", "mean", "sd", "difference", "p", "verdict")


@dataclass(frozen=True)
class Shipped:
    """A study with its files: NAME.yaml, NAME.csv and NAME.jsonl."""

    name: str
    folder: Path = FOLDER

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The rows of the csv."""
        return read_rows(self.folder / f"{self.name}.csv")

    @cached_property
    def findings(self) -> list[dict[str, Any]]:
        """The rows of the jsonl."""
        text = (self.folder / f"{self.name}.jsonl").read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]

    @cached_property
    def results(self) -> Results:
        """The results of the study, from the csv and the recipe alone but for the reservations about the plan."""
        source = StudySource(str(self.folder / f"{self.name}.yaml")).remembering()
        recipe = source.recipe()
        study, train = study_of(recipe), source.base(study_of(recipe), {}).train
        tuned = tuned_by(study.names[0], recipe.data, train)
        rising = [name for name in (*study.names, tuned) if rises(name, train)]
        found = list(dict.fromkeys(row["variant"] for row in self.lines))
        if study.design is None:
            planned = arms_of(source, study, recipe.variant_entries)
            assert found == [arm.name for arm in planned if not arm.same_as], f"{self.name}: the csv has other variants"
        else:
            planned = [Arm(name) for name in found]
        steps = {size: int(values.get(STEPS, recipe.train.steps or 0)) for size, values in study.at_sizes.items()}
        known = {arm.name: arm for arm in results_in(self.lines)}
        arms = [self._arm(known[arm.same_as or arm.name], arm, steps[arm.size]) for arm in planned]
        design = None
        if study.design is not None:
            arms = [arms[0], *map(_in_stage, arms[1:])]
            seen = {option for arm in arms if arm.stage == CONFIRM for option in arm.options}
            few = tuple(option for option in study.design.options if option in seen)
            design = DesignPlan(**study.design.model_dump(), chosen=few)
        claims = [one.model_copy(update={"on": one.on or study.names[0]}) for one in study.claims]
        verdicts = " ".join(row["verdict"] for row in self.findings)
        context = StudyContext(
            *(self.name, study.about, claims, study.equal_within),
            changed=(CHANGED,) * (CHANGED in verdicts),
            planned=True,
            tune=study.grids,
            tuned_by=tuned,
        )
        return results_of(context, arms, study.names, rising, design)

    def _arm(self, arm: ArmResult, of: Arm, steps: int) -> ArmResult:
        early = any(EARLY in row["verdict"] and of.name in (row["variant"], row["against"]) for row in self.findings)
        return replace(arm, name=of.name, same_as=of.same_as, size=of.size, early=early, steps=steps)


def _in_stage(arm: ArmResult) -> ArmResult:
    """A cell of a design with its options and stage."""
    options, _, stage = arm.name.partition("@")
    return replace(arm, options=() if options == BASELINE else parts_of(options), stage=stage or SCREEN)


def shipped(folder: Path = FOLDER) -> list[Shipped]:
    """The studies that have both files."""
    names = [file.stem for file in sorted(folder.glob("*.yaml"))]
    return [
        Shipped(name, folder) for name in names if all((folder / f"{name}.{end}").is_file() for end in ("csv", "jsonl"))
    ]


def section(study: Shipped) -> str:
    """The section of a study."""
    results = study.results
    report = StudyReport(results)
    lines = [*([markdown(results.about), ""] if results.about else []), markdown(counts(study)), ""]
    claims = [[row[key] for key in CLAIM_COLUMNS] for row in report.claim_rows()]
    if claims:
        lines += [*markdown_table(list(CLAIM_COLUMNS.values()), claims), ""]
    if report.trends:
        lines += [*markdown_table(*report.trend_rows()), ""]
    for measure in results.measure:
        if measure not in EXACT:
            rows = [[row[key] for key in SHOWN] for row in report.rows(measure)]
            better = "more" if measure in results.rising else "less"
            lines += [f"`{measure}` ({better} is better):", ""]
            lines += [*markdown_table([COLUMNS[key] for key in SHOWN], rows), ""]
    for one in report.screen():
        table = list(markdown_table(one.heads, one.rows)) if one.rows else []
        lines += [
            f"{markdown(one.title)}:",
            "",
            *(text for line in one.lines for text in (markdown(line), "")),
            *table,
            "",
        ]
    return "\n".join(lines[:-1])


def textbook() -> str:
    """What became of the claims of textbooks, each with the command that tests it."""
    known, rows = {study.name: study for study in shipped()}, list[list[str]]()
    for text, (name, number) in TEXTBOOK.items():
        says = study_of(StudySource(str(FOLDER / f"{name}.yaml")).recipe()).claims[number - 1].says
        row = next(row for row in known[name].findings if row["claim"] == says) if name in known else None
        verdict, _, doubt = row["verdict"].partition("; ") if row else ("not run", "", "")
        rows.append([text, BECAME.get(verdict, verdict), doubt, row["finding"] if row else "", f"tfkit study {name}"])
    return "\n".join(markdown_table(["claim", "here", "reservation", "found", "command"], rows))


def counts(study: Shipped) -> str:
    """What was trained: runs, variants, seeds, values tried, steps, parameters and data."""
    results, runs = study.results, {(row["run"], row["seed"]): row["state"] for row in study.lines}
    lost = {state: list(runs.values()).count(state) for state in dict.fromkeys(runs.values()) if state != "done"}
    text = f"{len(runs):,} runs of {len(results.own)} variants"
    text += "".join(f", {count} {state}" for state, count in lost.items())
    seeds = results.seeds
    text += f"; seeds {', '.join(map(str, seeds)) if len(seeds) <= 10 else f'{min(seeds)} to {max(seeds)}'}"
    tries = sum(len({cell.folder for cell in arm.tries} - {cell.folder for cell in arm.cells}) for arm in results.own)
    tried: dict[str, dict[Any, None]] = {}
    for arm in results.own:
        for key, values in arm.tried.items():
            tried.setdefault(key, {}).update(dict.fromkeys(values))
    for key, values in tried.items():
        text += f"; {key} of {', '.join(map(inline, sorted(values, key=lambda one: (isinstance(one, str), one))))}"
    text += f", by {results.tuned_by} in {tries} of the runs" if tried else "; nothing was tuned"
    scopes = [row["scope"] for row in study.findings]
    text += _range("steps", [scope["steps"] for scope in scopes])
    text += _range("parameters", [arm.parameters for arm in results.own])
    data = dict.fromkeys(f"{scope['data']}, tokenizer {scope['tokenizer']}" for scope in scopes)
    return f"{text}{'; ' * bool(data)}{', '.join(data)}."


def _range(what: str, values: list[int]) -> str:
    ends = dict.fromkeys([min(values, default=0), max(values, default=0)])
    return f"; {' to '.join(f'{end:,}' for end in ends)} {what}" if any(ends) else ""


def prose(document: str, study: Shipped) -> str:
    """The text of a study's section that is written by hand."""
    before, _, after = between(document, study.name)
    return before.rpartition("\n## ")[2] + after.partition("\n## ")[0]


if __name__ == "__main__":
    page = FOLDER / "README.md"
    for one in shipped():
        if not re.search(f"<!-- {one.name} -->\n(.*\n)?<!-- end of {one.name} -->", page.read_text("utf-8"), re.DOTALL):
            raise SystemExit(f"{page}: {one.name}: write the lines <!-- {one.name} --> and <!-- end of {one.name} -->")
        rewrite(page, one.name, section(one))
    if "<!-- textbook -->" in page.read_text("utf-8"):
        rewrite(page, "textbook", textbook())
