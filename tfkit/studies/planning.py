"""Planning of a study from its recipe: the arms, equal budgets, and time estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from tfkit.core.errors import Fault, RecipeError, UsageError, by_place
from tfkit.recipe.load import Recipe
from tfkit.studies.arms import Arm, StudySource, arms_of, changes_of, matched, study_of
from tfkit.studies.board import probes_of
from tfkit.studies.plan import Plan, identity
from tfkit.studies.plan_file import begun, check_free
from tfkit.studies.process import trial
from tfkit.studies.settings import BASELINE, STEPS, Match, Study, rises
from tfkit.training.splits import first_examples


def make_plan(
    source: StudySource, out: Path, timed: bool = True, report: Callable[[str], None] = lambda text: None
) -> Plan:
    """Plan the study of a recipe; `timed` trains the baseline for some steps to estimate the time.

    `report` receives progress messages. Raise RecipeError with the faults of all arms, and UsageError for a budget that
    cannot be matched.
    """
    planner = _planner(source, report)
    arms, probes = planner.checked()
    if timed:
        planner.check_files(arms)
    study, baseline = planner.study, planner.baseline
    plan = Plan(
        name=planner.recipe.name,
        identity=identity(baseline, study.match),
        arms=tuple(planner.counted(arms)),
        seeds=study.seed_list,
        grid=planner.grid,
        measure=study.names,
        probes=probes,
        rising=tuple(name for name in study.names if rises(name, baseline.train)),
        steps=planner.source.steps(baseline),
        about=study.about,
        claims=study.claims,
        equal_within=study.equal_within,
        keep=study.keep,
        text=planner.recipe.text or "",
    )
    names = [run.name for arm in plan.trained for run in plan.tuning(arm)]
    if len(set(names)) < len(names):
        raise UsageError("study.tune: two values have the same folder name; write them differently")
    check_free(out, plan)
    return planner.described(planner.budgeted(plan, out, timed))


def check_study(source: StudySource) -> int:
    """Return the number of variants of a recipe's study; raise RecipeError with the faults of all variants.

    Also read the first examples of data that only a variant uses.
    """
    planner = _planner(source, lambda text: None)
    arms, _ = planner.checked()
    planner.check_data(arms)
    return len(arms)


def _planner(source: StudySource, report: Callable[[str], None]) -> _Planner:
    source = source.remembering()
    recipe = source.recipe()
    study = study_of(recipe)
    if recipe.data is None or recipe.objective is None:
        raise UsageError(f"{recipe.name}: a study requires data and an objective")
    _check_sets(source, study)
    return _Planner(source, study, recipe, source.base(study, {}), report)


@dataclass(frozen=True)
class _Planner:
    """State shared by the steps of planning."""

    source: StudySource
    study: Study
    recipe: Recipe
    baseline: Recipe
    report: Callable[[str], None]

    @property
    def grid(self) -> tuple[Mapping[str, Any], ...]:
        """Combinations of tuned values by key; one empty mapping without tuning."""
        tuned = self.study.tune
        return tuple({**dict(zip(tuned, values, strict=True))} for values in product(*tuned.values()))

    def start(self, arm: Arm) -> dict[str, int]:
        """Start value of the key to solve for; empty without such a key."""
        return self.source.start(self.study, self.study.at_sizes[arm.size])

    def checked(self) -> tuple[list[Arm], dict[str, dict[str, Any]]]:
        """Return the arms and the overrides of each probe. Raise RecipeError with the faults of all of them."""
        faults: list[Fault] = []
        first, values = next(iter(self.study.at_sizes.items()))
        arms = [Arm(BASELINE, self.study.base_variants, {**self.study.base_values, **values}, size=first)]
        probes: dict[str, dict[str, Any]] = {}
        try:
            arms = arms_of(self.source, self.study, self.recipe.variant_entries)
        except RecipeError as error:
            faults += error.faults
        try:
            probes = probes_of(self.recipe, self.baseline, self.study)
        except RecipeError as error:
            faults += error.faults
        for place, arm in enumerate(arms, start=1):
            self.report(f"checking variant {place:,} of {len(arms):,}")
            for values in self.grid if self.study.tune else ():
                faults += self._faults(arm, {**self.start(arm), **values}, "study.tune")
            for name, values in probes.items() if not arm.same_as else ():
                at = f"study.measure[{self.study.names.index(f'probe.{name}')}]"
                faults += self._faults(arm, {**self.start(arm), **values}, at)
        if faults:
            raise RecipeError(by_place(faults))
        return arms, probes

    def check_files(self, arms: Sequence[Arm]) -> None:
        """Raise RecipeError if a file or run that a variant reads is missing."""
        missing: dict[str, Fault] = {}
        for arm in arms:
            for fault in self.source.recipe(arm.variants, arm.all_values(self.start(arm))).missing_files():
                hint = "; make it first, or name another in the recipe" if arm is not arms[0] else ""
                text = f"variant '{arm.name}': {fault.message.partition(';')[0]}{hint}" if hint else fault.message
                missing.setdefault(f"{fault.place} {fault.path}", replace(fault, message=text))
        if missing:
            raise RecipeError(by_place(missing.values()))

    def check_data(self, arms: Sequence[Arm]) -> None:
        """Raise RecipeError for faults in the first examples of data that only variants read."""
        known, faults = {repr(self.recipe.data)}, []
        for arm in arms:
            recipe = self.source.recipe(arm.variants, arm.all_values(self.start(arm)))
            if repr(recipe.data) in known:
                continue
            known.add(repr(recipe.data))
            _, problems = first_examples(recipe)
            faults += [replace(fault, message=f"variant '{arm.name}': {fault.message}") for fault in problems]
        if faults:
            raise RecipeError(by_place(faults))

    def counted(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the arms with their parameters, FLOPs and, if matched, the solved value."""
        match, counted = self.study.match, list[Arm]()
        for place, arm in enumerate(arms, start=1):
            if place > 1:
                self.report(f"counting variant {place:,} of {len(arms):,}")
            base, start = next((one for one in counted if one.size == arm.size), None), self.start(arm)
            if base is None or match is None or not start or arm.same_as:
                counted.append(arm.counted(self.source))
            else:
                counted.append(matched(self.source, arm, match, base, start[match.key]))
        return counted

    def _faults(self, arm: Arm, values: Mapping[str, Any], at: str) -> list[Fault]:
        """Return the faults of an arm with these values, located at key `at` of the study."""
        try:
            self.source.recipe(arm.variants, arm.all_values(values))
        except RecipeError as error:
            texts = dict.fromkeys(f"'{arm.name}': {fault.path}: {fault.message}" for fault in error.faults)
            return [self.recipe.fault(at, text) for text in texts]
        return []

    def budgeted(self, plan: Plan, out: Path, timed: bool) -> Plan:
        """Return the plan with its timing, and with solved steps if tokens or seconds are matched."""
        match = self.study.match
        needed = match is not None and match.what in ("tokens", "seconds")
        before = begun(out, plan)
        if before is not None and (before.timing.seconds_per_step or not (timed or needed)):
            plan = replace(plan, timing=before.timing)
        elif timed or needed:
            self.report("a trial of some steps")
            plan = replace(plan, timing=trial(self.source, plan.arms[0], out))
        return self._with_budget(plan, match, out, before) if match is not None and needed else plan

    def _with_budget(self, plan: Plan, match: Match, out: Path, before: Plan | None) -> Plan:
        """Solve for the steps of every arm, including the baseline, that match tokens or seconds.

        Values solved in `before` are kept, so that its runs continue with the same steps.
        """
        known = {arm.name: arm.solved for arm in before.arms} if before is not None else {}
        arms = []
        for arm in plan.arms:
            if arm.name in known:
                solved = known[arm.name]
                arms.append(replace(arm, solved=solved, steps=int(solved.get(STEPS, arm.steps))))
                continue
            self.report(f"a trial of {arm.name}")
            timing = plan.timing if arm.same_as or arm is plan.arms[0] else trial(self.source, arm, out)
            each = timing.tokens_per_step if match.what == "tokens" else timing.seconds_per_step
            steps = max(1, round((match.tokens or match.seconds or 0) / each))
            arms.append(replace(arm, solved={STEPS: steps}, steps=steps))
        return replace(plan, arms=tuple(arms))

    def described(self, plan: Plan) -> Plan:
        """Return the plan with each arm's digest and its differences."""
        digests, changes = {}, {}
        for place, arm in enumerate(plan.arms, start=1):
            self.report(f"comparing variant {place:,} of {len(plan.arms):,}")
            recipe = self.source.recipe(arm.variants, arm.all_values())
            digests[arm.name] = identity(recipe)
            if not arm.same_as and plan.base(arm) is not arm:
                changes[arm.name] = changes_of(self.source.base(self.study, self.study.at_sizes[arm.size]), recipe)
        return replace(plan, digests=digests, changes=changes)


def _check_sets(source: StudySource, study: Study) -> None:
    """Raise UsageError if --set names a key that the study sets."""
    solved = [study.match.key] if study.match is not None else []
    for text in source.sets:
        key = text.partition("=")[0].strip()
        sized = [name for values in study.sizes.values() for name in values]
        if key in ("train.seed", *study.tune, *solved, *study.base_values, *sized):
            raise UsageError(f"--set {text}: the study sets {key} itself; change it in the study")
