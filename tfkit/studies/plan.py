"""The plan of a study: its arms with equal budgets, its runs, and what each of them will take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.core.files import read_json, write_json
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.study import STEPS, Match, PaperClaim, Study, rises
from tfkit.studies.arms import Arm, StudySource, arms_of, changes_of, plain, slug, study_of, without_seed
from tfkit.studies.match import matched, start_value
from tfkit.studies.probing import probe_values
from tfkit.studies.trial import Timing, trial
from tfkit.training.run_name import value_word

PLAN = "study.json"
RUNS = "runs"
FORMAT = 1


@dataclass(frozen=True)
class PlannedRun:
    """One training: an arm, a seed, and the tuned values by key."""

    arm: str
    seed: int
    tuned: Mapping[str, Any] = field(default_factory=dict, hash=False)
    probe: str = ""  # the corpus that it is probed with; empty: it is trained on the study's own data

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "-".join(
            [
                slug(self.arm),
                *(value_word(key, value) for key, value in self.tuned.items()),
                f"s{self.seed}",
                *([f"probe-{self.probe}"] if self.probe else []),
            ]
        )


@dataclass(frozen=True)
class Plan:
    """A study that is ready to be run; what study.json holds.

    `identity` is a hash of the baseline's recipe: a folder holds the runs of one study.
    """

    name: str
    identity: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    grid: tuple[Mapping[str, Any], ...]  # the values that are tried of what is tuned; one empty mapping: nothing is
    measure: tuple[str, ...]
    steps: int
    probes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the values by key that make each of them
    rising: tuple[str, ...] = ()  # the measures of which more is better
    timing: Timing = field(default_factory=Timing)
    digests: Mapping[str, str] = field(default_factory=dict)  # of each arm's recipe
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # how each differs from the baseline
    about: str = ""
    claims: tuple[PaperClaim, ...] = ()
    text: str = ""  # of the study's file
    format: int = FORMAT

    def arm(self, name: str) -> Arm:
        """The arm of that name, or the one that it equals."""
        found = next(arm for arm in self.arms if arm.name == name)
        return self.arm(found.same_as) if found.same_as else found

    @property
    def trained(self) -> list[Arm]:
        """The arms that have runs of their own."""
        return [arm for arm in self.arms if not arm.same_as]

    def tuning(self, arm: Arm) -> list[PlannedRun]:
        """The runs that choose an arm's tuned values, on the first seed."""
        return [PlannedRun(arm.name, self.seeds[0], values) for values in self.grid]

    @property
    def runs_each(self) -> int:
        """How many trainings an arm has."""
        return len(self.grid) + len(self.seeds) - 1 + len(self.probes) * len(self.seeds)

    @property
    def most_runs(self) -> int:
        """How many trainings there are in all."""
        return len(self.trained) * self.runs_each

    def seconds(self, arm: Arm) -> float | None:
        """What one run of an arm will take, by its FLOPs and steps; None where nothing was timed."""
        if not self.timing.seconds_per_step:
            return None
        baseline = self.arms[0]
        work = arm.flops / baseline.flops if baseline.flops else 1.0
        return self.timing.overhead + self.timing.seconds_per_step * work * self.steps_of(arm)

    def higher_is_better(self, measure: str) -> bool:
        """Whether more of a measure is better."""
        return measure in self.rising

    def steps_of(self, arm: Arm) -> int:
        """The optimizer steps of a run on the study's own data."""
        return arm.steps or self.steps

    def values(self, run: PlannedRun) -> dict[str, Any]:
        """What is laid over the recipe for a run, by key."""
        probe = self.probes[run.probe] if run.probe else {}
        return self.arm(run.arm).all_values({**run.tuned, **probe, "train.seed": run.seed})

    def run_steps(self, run: PlannedRun) -> int:
        """The optimizer steps of a run."""
        return int(self.values(run).get(STEPS, self.steps_of(self.arm(run.arm))))


def make_plan(source: StudySource, out: Path, timed: bool = True) -> Plan:
    """The plan of the study in a recipe; `timed` trains the baseline for some steps, to predict how long it will take.

    Raises RecipeError with all faults of all arms, UsageError for a budget that no value matches.
    """
    recipe = source.recipe()
    study = study_of(recipe)
    if recipe.data is None or recipe.objective is None:
        raise UsageError(f"{recipe.name}: a study trains its variants, and this recipe has no data or no objective")
    _check_sets(source, study)
    baseline = source.recipe(study.base_variants, study.base_values)
    start = _start(baseline, study.match)
    arms = arms_of(source, study, recipe.variant_entries, start if study.match is not None else {})
    grid = tuple({**dict(zip(study.tune, values, strict=True))} for values in product(*study.tune.values()))
    _check_tuned(source, arms, start, grid)
    arms = _counted(source, arms, study.match, start)
    plan = Plan(
        name=recipe.name,
        identity=_identity(baseline, study.match),
        arms=tuple(arms),
        seeds=study.seed_list,
        grid=grid,
        measure=study.names,
        probes={probe.probe: probe_values(baseline, probe) for probe in study.probes},
        rising=tuple(name for name in study.names if rises(name, baseline.train)),
        steps=baseline.train.steps,
        about=study.about,
        claims=study.claims,
        text=recipe.text or "",
    )
    needed = study.match is not None and study.match.what in ("tokens", "seconds")
    _check_probes(source, plan)
    before = _begun(out, plan)
    if before is not None and (before.timing.seconds_per_step or not (timed or needed)):
        plan = replace(plan, timing=before.timing)
    elif timed or needed:
        plan = replace(plan, timing=trial(source, arms[0], out))
    if study.match is not None and needed:
        plan = _with_budget(plan, source, study.match, out, before)
    recipes = {arm.name: _recipe(source, arm) for arm in plan.arms}
    digests = {name: _identity(one) for name, one in recipes.items()}
    changes = {arm.name: changes_of(baseline, recipes[arm.name]) for arm in plan.arms[1:] if not arm.same_as}
    plan = replace(plan, digests=digests, changes=changes)
    names = [run.name for arm in plan.trained for run in plan.tuning(arm)]
    if len(set(names)) < len(names):
        raise UsageError("study.tune: two of its values would have folders of one name; write them in another way")
    return plan


def _start(baseline: Recipe, match: Match | None) -> dict[str, Any]:
    """The value of the key that is solved for, where a counter solves for it."""
    if match is None or match.what in ("tokens", "seconds"):
        return {}
    return {match.key: start_value(baseline, match)}


def _recipe(source: StudySource, arm: Arm, more: Mapping[str, Any] | None = None) -> Recipe:
    return source.recipe(arm.variants, arm.all_values(more))


def _check_sets(source: StudySource, study: Study) -> None:
    """Raise UsageError for a --set of what the study itself sets."""
    solved = [study.match.key] if study.match is not None else []
    for text in source.sets:
        key = text.partition("=")[0].strip()
        if key in ("train.seed", *study.tune, *solved, *study.base_values):
            raise UsageError(f"--set {text}: the study sets {key} itself; change it in the study")


def _check_tuned(
    source: StudySource, arms: Sequence[Arm], start: Mapping[str, Any], grid: Sequence[Mapping[str, Any]]
) -> None:
    """Raise RecipeError for a tuned value that an arm cannot have, at its place in the study."""
    recipe = source.recipe()
    for arm in arms:
        for values in grid if grid != ({},) else ():
            try:
                _recipe(source, arm, {**start, **values})
            except RecipeError as error:
                raise RecipeError(
                    [
                        recipe.fault("study.tune", f"'{arm.name}': {fault.path}: {fault.message}")
                        for fault in error.faults
                    ]
                ) from None


def _check_probes(source: StudySource, plan: Plan) -> None:
    """Raise RecipeError for a probe that an arm cannot be trained on."""
    for arm in plan.trained:
        for values in plan.probes.values():
            _recipe(source, arm, values)


def _counted(source: StudySource, arms: Sequence[Arm], match: Match | None, start: Mapping[str, Any]) -> list[Arm]:
    """The arms with their parameters and FLOPs, and where a counter matches them, with the value that does."""
    first = arms[0].counted(source)
    if match is None or not start:
        return [first, *(arm.counted(source) for arm in arms[1:])]
    others = []
    for arm in arms[1:]:
        if arm.same_as:
            others.append(arm.counted(source))
        elif match.key == STEPS:
            others.append(matched(source, arm.counted(source), match, first, start[match.key]))
        else:
            others.append(matched(source, arm, match, first, start[match.key]))
    return [first, *others]


def _begun(folder: Path, plan: Plan) -> Plan | None:
    """The plan by which the study was begun, None where it has not been."""
    if not (folder / PLAN).is_file():
        return None
    there = read_plan(folder)
    return there if there.identity == plan.identity else None


def _with_budget(plan: Plan, source: StudySource, match: Match, out: Path, before: Plan | None) -> Plan:
    """Every arm, the baseline too, with the steps in which it reads so many tokens, or trains so many seconds.

    What was solved for `before` stays: its runs go on with the same steps.
    """
    known = {arm.name: arm.solved for arm in before.arms} if before is not None else {}
    arms = []
    for arm in plan.arms:
        if arm.name in known:
            solved = known[arm.name]
            arms.append(replace(arm, solved=solved, steps=int(solved.get(STEPS, arm.steps))))
            continue
        timing = plan.timing if arm.same_as or arm is plan.arms[0] else trial(source, arm, out)
        each = timing.tokens_per_step if match.what == "tokens" else timing.seconds_per_step
        steps = max(1, round((match.tokens or match.seconds or 0) / each))
        arms.append(replace(arm, solved={STEPS: steps}, steps=steps))
    return replace(plan, arms=tuple(arms))


def _identity(recipe: Recipe, match: Match | None = None) -> str:
    """A hash of what a recipe says, wherever its folder is, and of the budget that its runs are held to."""
    home = str(Path.cwd() if recipe.file is None else recipe.file.resolve().parent)
    budget = None if match is None else match.model_dump()
    text = json.dumps([without_seed(plain(recipe)), budget], sort_keys=True, default=str)
    return hashlib.sha256(text.replace(json.dumps(home)[1:-1], ".").encode()).hexdigest()


def read_plan(folder: Path) -> Plan:
    """The plan in a study's folder; raises RunError where there is none that can be read."""
    file = folder / PLAN
    if not file.is_file():
        raise RunError(f"{file}: is missing: {folder} holds no study")
    data = read_json(file)
    if not isinstance(data, dict):
        raise RunError(f"{file}: holds no plan of a study")
    try:
        plan = TypeAdapter(Plan).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{file}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    problem = _plan_problem(plan)
    if problem:
        raise RunError(f"{file}: {problem}")
    return plan


def _plan_problem(plan: Plan) -> str:
    """What is wrong with a plan that somebody may have changed; empty where nothing is."""
    if plan.format != FORMAT:
        return f"format: {plan.format} is not known here, which reads {FORMAT}"
    empty = [name for name in ("arms", "seeds", "grid", "measure") if not getattr(plan, name)]
    if empty:
        return f"{' and '.join(empty)}: must not be empty"
    known: set[str] = set()
    for arm in plan.arms:
        if arm.same_as and arm.same_as not in known:
            return f"arms: '{arm.name}' is the same as '{arm.same_as}', which does not come before it"
        known.add(arm.name)
    unknown = [side for claim in plan.claims for side in claim.sides if side not in known]
    unknown += [claim.on for claim in plan.claims if claim.on not in plan.measure]
    return f"claims: '{unknown[0]}' is not compared" if unknown else ""


def keep_plan(folder: Path, plan: Plan) -> None:
    """Write the plan into the study's folder; raises RunError where that holds another study."""
    if (folder / PLAN).exists():
        _check_same(folder, read_plan(folder), plan)
    elif folder.is_dir() and any(not path.name.startswith(".") and path.name != RUNS for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and holds no study; choose another --out")
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, TypeAdapter(Plan).dump_python(plan, mode="json"))


def _check_same(folder: Path, there: Plan, here: Plan) -> None:
    other = "choose another --out"
    if there.identity != here.identity:
        raise RunError(f"{folder}: holds the runs of another study: its baseline or its budget differs; {other}")
    for arm, digest in here.digests.items():
        if there.digests.get(arm, digest) != digest:
            raise RunError(f"{folder}: holds runs of another '{arm}' than this study's; {other}")


def unchanged(source: StudySource, plan: Plan, arm: Arm) -> bool:
    """Whether the recipe of an arm still is what it was when the study was planned."""
    return digest_of(source, arm) == plan.digests.get(arm.name)


def digest_of(source: StudySource, arm: Arm) -> str:
    """A hash of the recipe of an arm."""
    return _identity(_recipe(source, arm))


def runs_of(plan: Plan, best: Mapping[str, Mapping[str, Any]]) -> Iterator[PlannedRun]:
    """The runs that are to be made, seed by seed; of an arm whose tuned values are not known yet, those that tell."""
    for arm in plan.trained:
        yield from plan.tuning(arm)
    for seed in plan.seeds:
        for arm in plan.trained:
            if arm.name in best:
                yield PlannedRun(arm.name, seed, best[arm.name])
                yield from (PlannedRun(arm.name, seed, best[arm.name], probe) for probe in plan.probes)
