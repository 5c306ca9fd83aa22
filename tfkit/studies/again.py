"""Results read again: findings tested by fresh runs, several results.csv judged as one study, runs evaluated again."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from random import Random

from pydantic import TypeAdapter

from tfkit.core.bounds import SEEDS, JsonObject
from tfkit.core.errors import Place, RunError, UsageError
from tfkit.core.output import json_line
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.sections import Train
from tfkit.recipe.text.source import parse_value
from tfkit.runs.folder import WEIGHTS
from tfkit.runs.record import changed
from tfkit.storage.files import read_text, write_text
from tfkit.studies.arms import Arm, StudySource, study_of
from tfkit.studies.board import Board
from tfkit.studies.compare import study_report
from tfkit.studies.design_section import BASELINE
from tfkit.studies.findings import END, FINDINGS, HEADS, LINES, findings
from tfkit.studies.plan import EXACT, Plan, identity
from tfkit.studies.plan_file import read_plan
from tfkit.studies.report import StudyReport
from tfkit.studies.results import REFUTED, WITHOUT, ArmResult, Cell, ClaimResult, StudyContext, results_of
from tfkit.studies.run_list import scores_of
from tfkit.studies.settings import GENERATION_RATE, PaperClaim, Study, arms_in, at_size, rises
from tfkit.studies.statistics import LEVEL, POWER, Comparison, power
from tfkit.studies.wording import difference

FINAL = REPLICATED, REVERSED, MISSED = "replicated", *REFUTED[1:]
STATES = ("done", "diverged", "failed", "altered", "waiting", "stopped")
CLOSE = 1e-4  # relative difference of scores that count as equal
APART = "other baseline scores"  # reservation about verdicts
Rows = Sequence[JsonObject]  # of results.csv
Finding = tuple[JsonObject, ClaimResult]  # a row of findings.jsonl, and what it says


@dataclass(frozen=True)
class Again(StudySource):
    """A study whose findings are tested with fresh seeds, and with the tuned values that its results.csv has."""

    found: Sequence[Finding] = ()
    tuned: Mapping[str, JsonObject] = field(default_factory=dict)  # by variant
    seeds: tuple[int, ...] = ()

    @classmethod
    def of(cls, source: StudySource, recipe: Recipe, claims: str | None, runs: int | None) -> Again:
        """Read the files next to a recipe. Raise RunError unless they belong to it, UsageError for unknown claims."""
        study, file = study_of(recipe), Path(recipe.file or recipe.name)
        arms = {at_size(name, size) for size in study.at_sizes for name in arms_in(study, recipe.variant_entries)}
        tuned, used = _tuned(file.with_suffix(".csv"), arms, study)
        found = _asked([*_findings(file.with_suffix(".jsonl"), arms, study, recipe.train)], study, claims)
        counts = (one.comparison.n if study.design else one.comparison.runs for _, one in found)
        number = runs or min(max(2, *counts), SEEDS.most)
        seeds = tuple(seed for seed in range(len(used) + number) if seed not in used)[:number]
        return cls(source.file, source.sets, source.imports, source.trust, None, found, tuned, seeds)

    def study(self, study: Study) -> Study:
        """Return the study of the findings alone, without tuning."""
        claims = tuple(one.claim for _, one in self.found)
        sides = [side if "" in study.at_sizes else side.rpartition("@")[0] for one in claims for side in one.sides]
        asked = {claim.on for claim in claims}
        measure = tuple(one for one, name in zip(study.measure, study.names, strict=True) if name in asked)
        alone = {"measure": measure, "claims": claims, "seeds": self.seeds, "compare": tuple(dict.fromkeys(sides))}
        return study.model_copy(update={"design": None, "tune": {}, "cross": (), **alone})

    def plan(self, plan: Plan) -> Plan:
        """Return the plan with the variants of the findings alone, at their tuned values."""
        sides = {side for claim in plan.claims for side in claim.sides}
        arms = [arm for arm in plan.arms if arm.name in sides | {plan.arm(side).name for side in sides}]
        if gone := [arm.name for arm in arms if not arm.same_as and arm.name not in self.tuned]:
            raise RunError(f"the results of the study have no runs of '{gone[0]}'")
        arms = [replace(arm, values={**arm.values, **self.tuned.get(arm.name, {})}) for arm in arms]
        return replace(plan, name=f"{plan.name}-reproduced", arms=tuple(arms))

    def report(self, plan: Plan, folder: Path, failed: Mapping[str, str]) -> StudyReport:
        """Judge the findings by the fresh runs alone, and write findings.jsonl."""
        whole = study_report(plan, folder, failed)
        context = {one.name: getattr(whole.results, one.name) for one in fields(StudyContext)}
        context["tune"] = {key: [value] for own in self.tuned.values() for key, value in own.items()}
        results = results_of(StudyContext(**context), whole.results.arms, (), whole.results.rising)
        rows = [json.loads(line) for line in findings(results, plan, folder, dict(whole.environment)).splitlines()]
        level, claims = LEVEL / max(1, results.tested), list[ClaimResult]()
        for (old, one), row, fresh in zip(self.found, rows, results.claims, strict=True):
            now, effect = fresh.comparison, one.comparison.mean
            is_known = effect is not None and now.p is not None and not now.by_rank
            odds = power(effect or 0.0, now.error or 1.0, now.freedom, level) if is_known else None
            verdict, reported = judged(one, now, odds or 0.0), f"reported {difference(one.comparison)}"
            digests = {self.digest(plan.arm(side)) for side in fresh.claim.sides}
            marks = [now.mark] * bool(now.mark) + ["other recipe"] * (old["hashes"]["recipe"] not in digests)
            marks += ["other data"] * (old["hashes"]["data"] != row["hashes"]["data"])
            marks += ["at the baseline, not on average"] * (WITHOUT in (old["variant"], old["against"]))
            claim = fresh.claim.model_copy(update={"paper": reported + ("" if odds is None else f"; power {odds:.0%}")})
            claims.append(ClaimResult(claim, replace(now, mark="; ".join(marks)), verdict))
            row |= {"verdict": "; ".join([verdict, *marks]), "power": odds}
            row |= {"status": verdict if verdict in FINAL else old["status"], "reported": old}
        write_text(folder / FINDINGS, "".join(json_line(row) + "\n" for row in rows))
        return StudyReport(replace(results, claims=tuple(claims)))

    def digest(self, arm: Arm) -> str:
        """Return the hash of an arm's recipe without the tuned values."""
        values = {key: one for key, one in arm.all_values().items() if key not in self.tuned[arm.name]}
        return identity(self.recipe(arm.variants, values))


def judged(reported: ClaimResult, now: Comparison, odds: float) -> str:
    """Return the verdict of fresh runs on a finding; `odds` is their power for its effect."""
    better, effect = reported.comparison.better, reported.comparison.mean or 0.0
    if (better is not None and now.better == better) or reported.verdict == "equal" == now.verdict:
        return REPLICATED
    if better is None:
        is_apart = reported.verdict == "equal" and now.better is not None and abs(now.mean or 0.0) > (now.margin or 0.0)
        return MISSED if is_apart else f"was {reported.verdict}, now {now.verdict}"
    if now.better is not None:
        return REVERSED
    return MISSED if odds >= POWER and not (now.low or 0.0) <= effect <= (now.high or 0.0) else "cannot tell"


def _check_there(file: Path, name: str) -> None:
    if not file.is_file():
        raise UsageError(f"{file}: is missing, the results to reproduce: cp studies/{file.stem}/{name} {file}")


def _tuned(file: Path, arms: set[str], study: Study) -> tuple[dict[str, JsonObject], set[int]]:
    """Return the tuned values of each variant in results.csv, those of most seeds, and all seeds.

    In a design they are the baseline's, which the screen has too.
    """
    seeds: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    tuned = dict[str, JsonObject]()
    _check_there(file, LINES)
    for row in read_rows(file):
        name = row["variant"]
        if name not in arms and not (study.design and {*name.partition("@")[0].split("+")} <= arms):
            raise RunError(f"{file}:{row['line']}: '{name}' is not a variant of this study")
        seeds["" if study.design else name][row["tuned"]].add(row["seed"])
    for name, tried in seeds.items():
        text = max(tried, key=lambda one: len(tried[one]))
        if len(tried[text]) == 1 < len(tried):
            raise RunError(f"{file}: '{name}' has no values that were trained with several seeds")
        values = _values(text)
        if values.keys() != study.tune.keys():
            raise RunError(f"{file}: '{name or BASELINE}' has other values than those of study.tune: {text or 'none'}")
        tuned |= dict.fromkeys([name] if name else arms, values)
    return tuned, {seed for tried in seeds.values() for own in tried.values() for seed in own}


def read_rows(file: Path) -> list[JsonObject]:
    """Parse results.csv; rows have their `line`, and inf as a lost value. Raise RunError if it is another file."""
    text, rows, line, seen = read_text(file, None).removeprefix("\ufeff"), list[JsonObject](), 1, set[object]()
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        if next(reader, []) != HEADS:
            raise RunError(f"{file}:1: is not the results.csv of a study, which begins with {','.join(HEADS)}")
        for line, cells in enumerate(reader, 2):
            row = dict(zip(HEADS, (cell.removeprefix("'") for cell in cells), strict=True))  # ': before a formula
            measured = tuple(row[name] for name in HEADS if name not in ("state", "value"))
            rows.append({**row, "seed": int(row["seed"]), "value": _value(row), "line": line})
            if row["state"] not in STATES or measured in seen:
                raise ValueError
            seen.add(measured)
    except (ValueError, csv.Error):
        text = "is not a row of results.csv, which has a state, numbers, and each measure of a run once"
        raise RunError(f"{file}:{line}: {text}") from None
    return rows


def _value(row: Mapping[str, str]) -> float:
    """Return the value of a row, inf if it was lost. Raise ValueError for other values."""
    value = float(row["value"] or "inf")
    if math.isfinite(value) == (not row["value"]) or (row["measure"].endswith(END) and not value.is_integer()):
        raise ValueError
    return value


def _values(text: str) -> JsonObject:
    """Parse the tuned values of a row."""
    pairs = re.findall(r"(\S+?)=(.*?)(?= \S+=|$)", text)
    return {key: parse_value(value, Place(LINES), key)[0].plain() for key, value in pairs}


def results_in(rows: Rows) -> Iterator[ArmResult]:
    """Yield the arms of results.csv. Tuning runs, on the first seed, have one score."""
    by_run: dict[str, dict[tuple[str, int], list[JsonObject]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_run[row["variant"]][row["run"], row["seed"]].append(row)
    for name, runs in by_run.items():
        cells = list[Cell]()
        for (run, seed), own in runs.items():
            known = {row["measure"]: row["value"] for row in own if row["measure"]}
            sizes = {key.removesuffix(END): int(known.pop(key)) for key in [*known] if key.endswith(END)}
            lost = [key for key in [*known] if known[key] == math.inf and known.pop(key)]
            cells.append(Cell(seed, own[0]["state"], run, known, (), sizes, lost, tuned=_values(own[0]["tuned"])))
        tuned = max(reversed(cells), key=lambda cell: len(cell.scores)).tuned
        tries = tuple(cell for cell in cells if cell.tuned and cell.seed == cells[0].seed)
        tried = {key: list(dict.fromkeys(cell.tuned[key] for cell in tries)) for key in tuned}
        final = tuple(cell for cell in cells if cell.tuned == tuned)
        exact: JsonObject = {key: int(value) for cell in final for key, value in cell.scores.items() if key in EXACT}
        yield ArmResult(name, final, tuned=tuned, tried=tried, tries=tries, **exact)


def joined_report(files: Sequence[Path], measure: Sequence[str]) -> StudyReport:
    """Return a report on the results.csv of several studies as if they were one. Raise UsageError if they disagree."""
    if folders := [file for file in files if file.is_dir()]:
        raise UsageError(f"{folders[0]}: is a folder; pass results.csv files, or runs, not both")
    read, first = {file: read_rows(file) for file in files}, files[0]
    for one, other in combinations(files, 2):
        if read[one] == read[other]:
            raise UsageError(f"{other}: has the same runs as {one}; pass one of them")
    arms = {file: list(results_in(rows)) for file, rows in read.items()}
    base, counts = next(iter(arms[first]), ArmResult("", ())), Counter(arm.name for own in arms.values() for arm in own)
    for file, own in arms.items():
        if len(files) < 2 or own[:1] == own or own[0].name != base.name or any("@" in arm.name for arm in own):
            raise UsageError(f"{file}: pass several files, each with the same baseline, then variants, all of one size")
    metrics = REGISTRY.names("metric")
    named = re.compile(rf"\w+$|probe|generation|.*[.](loss|{'|'.join(metrics)})")  # measures of known direction
    known = list(dict.fromkeys(name for cell in base.cells for name in cell.scores if named.match(name)))
    if lacking := [name for name in measure if name not in known] or ["scores"] * (not known):
        raise UsageError(f"{first}: '{base.name}' has no {lacking[0]}; it has {', '.join(known) or 'lost runs alone'}")
    train = Train.model_validate({"metrics": [{"type": name, "by": "any"} for name in metrics]})
    chosen, joined = measure or known[:1], [base]
    rising = [name for name in chosen if rises(re.sub(r"rouge_\d", "rouge", name), train)]
    for file, own in arms.items():
        mark = _apart(base, chosen, first, read[first], file, read[file])
        names = [f"{arm.name} ({file})" if counts[arm.name] > 1 else arm.name for arm in own]
        joined += [replace(arm, name=name, mark=mark) for arm, name in zip(own, names, strict=True)][1:]
    return StudyReport(results_of(StudyContext("comparison", planned=True, tune=base.tried), joined, chosen, rising))


def _apart(base: ArmResult, measure: Sequence[str], first: Path, rows: Rows, file: Path, own: Rows) -> str:
    """Return a reservation if the baseline's scores are others. Raise UsageError if they differ more than its seeds."""
    known, found = (
        {(row["seed"], row["tuned"], row["measure"]): row for row in lines if row["variant"] == base.name}
        for lines in (rows, own)
    )
    mark, spreads = "", {name: base.spread(name) for name in measure if "." in name}
    for key in [key for key in {**known, **found} if key[2] in ("", *measure)]:
        there, here = (lines.get(key, {"value": math.nan, "line": 2}) for lines in (known, found))
        a, b, spread = here["value"], there["value"], spreads.get(key[2])
        if a != b and not abs(a - b) <= (spread.most - spread.least if spread else math.inf):
            text = f"{file}:{here['line']}: {base.name}, seed {key[0]}: {key[2] or 'state'} {a:g}"
            raise UsageError(f"{text}, in {first}:{there['line']} {b:g}: other runs, steps or data")
        mark = APART if abs(a - b) > CLOSE * abs(b) else mark
    return mark


def _findings(file: Path, arms: set[str], study: Study, train: Train) -> Iterator[Finding]:
    """Parse findings.jsonl, without the options of a design that its screen did not choose."""
    _check_there(file, FINDINGS)
    for number, line in enumerate(read_text(file, None).splitlines(), 1):
        try:
            row = json.loads(line)
            sides = [BASELINE if one == WITHOUT else one for one in (row["variant"], row["against"])]
            says = row["claim"] or (" > " if (row["effect"] or 0.0) > 0 else " < ").join(sides)
            claim, word = PaperClaim(says=says, on=row["measure"]), row["verdict"].partition(";")[0]
            is_up = claim.is_greater == rises(claim.on, train)
            better = {"better": True, "worse": False, "diverged": False, "held": is_up, "not held": not is_up}.get(word)
            known = {"arm": row["variant"], "mean": row["effect"], "better": better, "runs": len(row["scope"]["seeds"])}
            known |= {key: row[key] for key in ("against", "measure", "n", "low", "high")}
            one = TypeAdapter(Comparison).validate_python(known)
            is_whole = "status" in row and row["hashes"].keys() >= {"recipe", "data"}
            is_whole &= all(math.isfinite(value or 0.0) for value in (one.mean, one.low, one.high))
            if not is_whole or not {*sides, *claim.sides} <= arms or claim.on not in study.names:
                raise KeyError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise RunError(f"{file}:{number}: is not a finding of this study") from None
        if one.mean is not None or study.design is None:
            yield row, ClaimResult(claim, one, word)


def _asked(found: Sequence[Finding], study: Study, claims: str | None) -> list[Finding]:
    """Return the findings about the claims of these numbers, or all if the study has no claims."""
    known = {str(place): (one.says, one.on or study.names[0]) for place, one in enumerate(study.claims, 1)}
    about = {(row["claim"], one.claim.on): (row, one) for row, one in found}
    numbers = known if claims is None else map(str.strip, claims.split(","))
    asked = [about.get(known.get(number, ("", ""))) for number in numbers] if known or claims is not None else [*found]
    if not asked or None in asked:
        named = "all" if claims is None else claims
        text = f"--claims '{named}': not among the {len(found)} findings next to the study"
        ending = "; the screen must have chosen the option" if study.design else ""
        raise UsageError(f"{text}, which has {len(known)} claims{ending}")
    return [one for one in asked if one is not None]


def rechecked(source: StudySource, folder: Path, number: int) -> Iterator[tuple[str, bool]]:
    """Evaluate runs of a study, drawn with the seed `number`, from their weights, without saving the scores.

    Yield a line about the judged scores of each run, and True if they are those on record.
    """
    from tfkit.run import load_run

    board = Board(read_plan(folder), folder)
    done = [run for run in board.runs() if board.state(run) == "done" and not run.probe]
    runs = [run for run in done if (board.run_folder(run) / WEIGHTS).is_file()]
    if not runs:
        raise UsageError(f"{folder}: none of its {len(done):,} finished runs has weights (study.keep: scores)")
    for run in Random(number).sample(runs, min(number, len(runs))):
        own, known = board.run_folder(run), board.scores(run)
        if why := board.altered(run) or next(changed(own, [WEIGHTS]), ""):
            yield f"{run.name}: {why}", False
            continue
        loaded = load_run(own.path, source.trust, "auto", source.imports)
        loaded.as_saved, train = False, loaded.recipe.train
        # valid.loss is that of the best weights, as they were in training
        saved = {*scores_of(own), *["valid.loss"] * (train.keep == "best" and train.precision == "float32")}
        names = [name for name in known if name in saved and name in board.plan.measure and name != GENERATION_RATE]
        found = dict.fromkeys(names, math.nan)
        for split in dict.fromkeys(name.partition(".")[0] for name in names):
            found |= {f"{split}.{name}": score for name, score in loaded.evaluate(split).items()}
        off = [name for name in names if not math.isclose(known[name], found[name], rel_tol=CLOSE)]
        texts = dict.fromkeys(board.plan.measure, "not of its weights") | {name: f"{known[name]:.6g}" for name in names}
        texts |= {name: f"its evaluation says {known[name]:.6g}, its weights give {found[name]:.6g}" for name in off}
        yield f"{run.name}: {'; '.join(f'{name}: {text}' for name, text in texts.items())}", bool(names) and not off
