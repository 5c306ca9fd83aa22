"""Files that outlive the runs of a study: results.csv, a row for each run and measure, and findings.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfkit.core.output import json_line
from tfkit.studies.arms import texts_of
from tfkit.studies.plan import CONFIRM, EXACT, RUNS, Plan
from tfkit.studies.results import WITHOUT, ArmResult, ClaimResult, Results
from tfkit.studies.run_list import RunRow
from tfkit.studies.settings import COSTS, PaperClaim
from tfkit.studies.statistics import Comparison
from tfkit.studies.wording import difference

FINDINGS, LINES = "findings.jsonl", "results.csv"
HEADS, END = ["variant", "seed", "state", "run", "tuned", "measure", "value"], ".examples"
UNITS = {"tokens_per_second": "tokens per second", "seconds": "seconds", "peak_memory": "bytes"}
LOSSES = {"classification": "nats per example", "regression": ""}  # by objective; of the others: nats per token


def run_lines(results: Results) -> Iterator[list[object]]:
    """Yield the rows of results.csv. Tuning runs have the score that they are chosen by, lost runs no measure.

    Costs that are equal for all seeds are written once for each variant.
    """
    judged = {*results.measure, *(name.partition(".")[0] for name in results.measure)}
    noisy = dict.fromkeys((*results.measure, results.tuned_by, *(cost for cost in COSTS if cost not in EXACT)))
    for arm in results.own:
        first = next((cell for cell in arm.cells if cell.state == "done"), None)
        for cell in {(cell.folder, cell.seed): cell for cell in (*arm.tries, *arm.cells)}.values():
            examples = {f"{name}{END}": count for name, count in cell.examples.items() if name in judged}
            names = [*noisy, *(EXACT if cell is first else ()), *examples] if cell in arm.cells else [results.tuned_by]
            known = {**examples, **cell.scores, **dict.fromkeys(cell.lost, "")} if cell.state == "done" else {}
            head = [arm.name, cell.seed, cell.state, cell.folder, " ".join(texts_of(cell.tuned))]
            for name in [name for name in dict.fromkeys(names) if name in known] or [""]:
                yield [*head, name, known.get(name, "")]


def findings(results: Results, plan: Plan, folder: Path, made_with: Mapping[str, str]) -> str:
    """Return the contents of findings.jsonl: each claim, then each decided comparison that no claim is about."""
    decided = [one for one in results.comparisons if one.better is not None or one.verdict == "equal"]
    seen = [one.comparison for one in results.claims] + decided
    asked = [{one.arm, one.against, one.measure} for one in seen[: len(results.claims)]]
    others = (one for one in decided if {one.arm, one.against, one.measure} not in asked)
    unclaimed = (ClaimResult(PaperClaim.model_construct(says=""), one, one.verdict) for one in others)
    lines, known = list[str](), {name: "several" if ", " in text else text for name, text in made_with.items()}
    for claim in (*results.claims, *unclaimed):
        one = claim.comparison
        sides = [arm for name in (one.arm, one.against) for arm in results.arms if arm.name == name]
        if results.design is not None:  # options, not variants
            sides = [results.arms[0], *(arm for arm in results.arms if arm.stage == CONFIRM)]
        arm, cells = sides[0], [cell for side in sides for cell in side.cells]
        run = RunRow(folder / RUNS / next((cell.folder for cell in cells if cell.folder), ""), {})
        budgets = _budgets(one, arm, seen, {arm.name: arm for arm in results.arms})
        loss = LOSSES.get(run.shown("objective"), "nats per token") if one.measure.endswith(".loss") else ""
        numbers = {"effect": one.mean, "low": one.low, "high": one.high, "n": one.n, "p": one.p_holm}
        doubt = one.ending + f"; give it {one.give} seeds" * bool(one.give)
        scope: dict[str, object] = {"data": run.shown("data.train"), "tokenizer": run.shown("data.tokenizer")}
        scope |= {"size": arm.parameters, "steps": arm.steps, "budgets": budgets}
        scope |= {"seeds": list(dict.fromkeys(cell.seed for cell in cells))}
        row: dict[str, object] = {"question": results.about, "finding": _sentence(one, budgets), "study": results.name}
        row |= {"variant": one.arm, "against": one.against, "measure": one.measure}
        row |= {key: value if value is None or math.isfinite(value) else None for key, value in numbers.items()}
        row |= {"unit": UNITS.get(one.measure.rpartition(".")[2], loss or "percent" * (one.bounds == [-100.0, 100.0]))}
        row |= {"verdict": claim.verdict + doubt, "claim": claim.claim.says, "paper": claim.claim.paper, "scope": scope}
        row |= {"tuned": _tuned(arm, results.tuned_by)}
        row |= {"hashes": {"recipe": plan.digests.get(arm.name), "data": known.get("data"), "code": known.get("code")}}
        row |= {"versions": {name: known.get(name) for name in ("tfkit", "torch", "numpy", "python")}}
        lines.append(json_line({**row, "status": "one study", "made": plan.made[:10]}) + "\n")
    return "".join(lines)


def _budgets(one: Comparison, arm: ArmResult, seen: Sequence[Comparison], arms: Mapping[str, ArmResult]) -> list[int]:
    """Return the numbers of steps after which a finding was seen, in the same direction and at the same size."""

    def about(other: Comparison) -> tuple[object, ...]:
        sides = [arms[name] for name in (other.arm, other.against) if name in arms]
        names = [side.name.removesuffix(f"@{side.size}") for side in sides]
        return {*names}, {side.parameters for side in sides}, other.measure, names[other.better is False :][:1]

    alike = [other.arm for other in seen if None not in (one.better, other.better) and about(other) == about(one)]
    return sorted({arm.steps, *(arms[name].steps for name in alike if name in arms)})


def _sentence(one: Comparison, budgets: Sequence[int]) -> str:
    """Say what was found. Only what a second budget confirms is called better or worse."""
    if one.better is None:
        words = f"is within {one.margin or 0:g} of" if one.verdict == "equal" else "cannot be told from"
    elif one.measure in COSTS:
        words = f"has {'more' if (one.mean or 0.0) > 0 else 'less'} {one.measure} than"
    elif len(budgets) > 1:
        words = f"is {'better' if one.better else 'worse'} than"
    else:
        words = f"learns {'faster' if one.better else 'more slowly'} than"
    after = " and ".join(f"{steps:,}" for steps in budgets)
    against = one.against + " it" * (one.against == WITHOUT)
    return f"{one.arm} {words} {against}: {one.measure} {difference(one)} after {after} steps"


def _tuned(arm: ArmResult, measure: str) -> str:
    words = [f"{key}={arm.tuned.get(key)} of {', '.join(map(str, values))}" for key, values in arm.tried.items()]
    return f"{' and '.join(words)} by {measure}{'; at the edge' * bool(arm.edge)}" if words else "untuned"
