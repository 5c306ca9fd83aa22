"""Planning of a study from its recipe: the arms, equal budgets, and time estimates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

from tfkit.core.errors import Fault, RecipeError, RecipeWarning, RunError, UsageError, by_place
from tfkit.recipe.load import Recipe
from tfkit.reports.explain import resets
from tfkit.runs.folder import RunFolder
from tfkit.runs.supply import saved_recipe
from tfkit.studies.again import Again
from tfkit.studies.arms import Arm, StudySource, alike, arms_of, changes_of, matched, study_of
from tfkit.studies.board import Board, probes_of
from tfkit.studies.compare import study_results
from tfkit.studies.design import confirming, screening
from tfkit.studies.design_section import LEAST, DesignPlan
from tfkit.studies.effects import effects, largest
from tfkit.studies.plan import CONFIRM, RUNS, SCREEN, Plan, PlannedRun, identity
from tfkit.studies.plan_file import begun, check_free, read_plan
from tfkit.studies.process import trial
from tfkit.studies.settings import BASELINE, BEYOND, MORE, STEPS, Match, Study, rises, tuned_by
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
    design, cells = planner.screened() or (None, arms)
    study, baseline = planner.study, planner.baseline
    tuned = tuned_by(study.names[0], baseline.data, baseline.train)
    plan = Plan(
        name=planner.recipe.name,
        identity=identity(baseline, study.match),
        arms=tuple(planner.counted(cells)),
        seeds=study.seed_list,
        grid=planner.grid,
        more={key: planner.beyond(arms[0], key) for key, values in study.tune.items() if BEYOND in values},
        measure=study.names,
        probes=probes,
        rising=tuple(name for name in dict.fromkeys((*study.names, tuned)) if rises(name, baseline.train)),
        tuned_by=tuned,
        steps=planner.source.steps(baseline),
        about=study.about,
        claims=tuple(one.model_copy(update={"on": one.on or study.names[0]}) for one in study.claims),
        equal_within=study.equal_within,
        keep=study.keep,
        notes=tuple(doubt.line_as() for doubt in planner.doubts(arms)),
        text=planner.recipe.text or "",
        design=design,
    )
    plan = source.plan(plan) if isinstance(source, Again) else plan
    plan = planner.grown(plan, out)
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
    planner.screened()
    for doubt in planner.doubts(arms):
        warnings.warn(RecipeWarning(doubt), stacklevel=1)
    return len(arms)


def _planner(source: StudySource, report: Callable[[str], None]) -> _Planner:
    source = source.remembering()
    recipe = source.recipe()
    study = study_of(recipe)
    if recipe.data is None or recipe.objective is None:
        raise UsageError(f"{recipe.name}: a study requires data and an objective")
    _check_sets(source, study)
    study = source.study(study) if isinstance(source, Again) else study
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
        tuned = self.study.grids
        return tuple({**dict(zip(tuned, values, strict=True))} for values in product(*tuned.values()))

    def beyond(self, arm: Arm, key: str) -> tuple[float, ...]:
        """Return the values beyond the ends of the grid, up to the first that the recipe refuses."""
        values, found = self.study.grids[key], list[float]()
        for value, factor in ((max(values), 2), (min(values), 0.5)):
            for _ in range(MORE):
                value, exact = type(value)(value * factor), value * factor
                is_new = value == exact and value not in (*values, *found)
                if not is_new or self._faults(arm, {**self.start(arm), key: value}, "study.tune"):
                    break
                found.append(value)
        return tuple(found)

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

    @property
    def base(self) -> Arm:
        """Baseline of a study without sizes."""
        return Arm(BASELINE, self.study.base_variants, self.study.base_values)

    def laid(self, options: Sequence[str]) -> Recipe | None:
        """Return the baseline with the options of a design's cell; None if they exclude each other."""
        try:
            return self.source.recipe((*self.base.variants, *options), self.base.all_values(self.start(self.base)))
        except RecipeError:
            return None

    def screened(self) -> tuple[DesignPlan, list[Arm]] | None:
        """Return the design, and its baseline with the cells of the screen; None without a design.

        Raise RecipeError with all faults if there is no such design.
        """
        design, faults, excluded = self.study.design, list[Fault](), list[list[str]]()
        if design is None:
            return None
        for one, other in (pair for groups in combinations(design.groups, 2) for pair in product(*groups)):
            both, single = self.laid((one, other)), [self.laid((option,)) for option in (one, other)]
            excluded += [[one, other]] * (both is None)
            if both is not None and any(alike(both, recipe) for recipe in single if recipe is not None):
                text = f"{other} undoes {one}; write {one} | {other}, or list {other} first if both can be combined"
                faults.append(self.recipe.fault("study.design.screen", text))
        try:
            cells = screening(design.groups, design.runs)
            confirming([group[:1] for group in design.groups[: design.confirm.most]], design.confirm.runs)
            scores = self.noise_in(Path(design.noise)) if isinstance(design.noise, str) else {}
        except (RunError, UsageError) as error:
            faults.append(self.recipe.fault("study.design", str(error)))
        if faults:
            raise RecipeError(by_place(faults))
        plan = DesignPlan(**design.model_dump(), excluded=excluded, scores=scores)
        return plan, [replace(self.base, seeds=tuple(design.seeds[1])), *self.cells(cells, SCREEN, design.seeds[0])]

    def noise_in(self, folder: Path) -> dict[str, dict[str, float]]:
        """Return the scores of the baseline in the folder of a study by seed.

        Raise UsageError unless it holds finished, unaltered runs of this baseline, and enough.
        """
        if self.study.match is not None and self.study.match.key == STEPS:
            raise UsageError("study.match solves for the steps of the baseline; give a number of runs as noise")
        plan, names = read_plan(folder), self.study.names
        arm = study_results(plan, folder).arms[0]
        whole = [cell for cell in arm.cells if all(name in cell.scores for name in names)]
        if len(whole) < LEAST:
            text = f"{folder} holds {len(whole)} finished, unaltered runs of a baseline with these measures"
            raise UsageError(f"{text}; {LEAST} or more are needed")
        own, tuned = self.baseline, self.source.base(self.study, arm.tuned)
        if not plan.digests.get(arm.name) == identity(own) == identity(tuned):
            other = saved_recipe(RunFolder(folder / RUNS / whole[0].folder), self.source.trust, self.source.imports)
            raise UsageError(f"{folder} holds runs of another recipe: {'; '.join(changes_of(other, own)[:3])}")
        return {str(cell.seed): {name: cell.scores[name] for name in names} for cell in whole}

    def cells(self, cells: Sequence[Sequence[str]], stage: str, seeds: Sequence[int]) -> list[Arm]:
        """Return the arms of the cells. Equal cells are one arm.

        Of options that exclude each other a cell has as many as fit, drawn with its seed.
        """
        own: dict[tuple[str, ...], list[int]] = {}
        for seed, cell in zip(seeds, cells, strict=True):
            kept = tuple(cell) if self.laid(cell) is not None else ()
            for option in () if kept else Random(seed).sample(cell, len(cell)):
                more = tuple(one for one in cell if one in (*kept, option))
                kept = more if self.laid(more) is not None else kept
            own.setdefault(kept, []).append(seed)
        arms = []
        for options, some in own.items():
            name = ("+".join(options) or BASELINE) + f"@{stage}" * (stage == CONFIRM or not options)
            variants = (*self.base.variants, *options)
            arms.append(replace(self.base, name=name, variants=variants, stage=stage, seeds=tuple(some)))
        return arms

    def grown(self, plan: Plan, out: Path) -> Plan:
        """Append the cells that confirm the options chosen before, or by the screen in the folder if it has ended."""
        before, design = begun(out, plan), plan.design
        if before is None or design is None:
            return plan
        kept = before.design.chosen if before.design is not None and before.design.asked == design.asked else ()
        few = kept or chosen(Board(plan, out), design)
        cells = confirming([[option] for option in few], design.confirm.runs) if few else []
        arms = self.cells(cells, CONFIRM, design.seeds[2][: len(cells)])
        counted = self.counted((plan.arms[0], *arms))[1:]
        return replace(plan, arms=(*plan.arms, *counted), design=design.model_copy(update={"chosen": few}))

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

    def doubts(self, arms: Sequence[Arm]) -> list[Fault]:
        """Return the options that arms reset by changing the type of a part."""
        recipes = [self.source.recipe(arm.variants, arm.all_values(self.start(arm))) for arm in arms if not arm.same_as]
        return by_place(fault for recipe in recipes for fault in resets(recipe))

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
            if not arm.same_as and plan.base(arm) is not arm and not arm.stage:
                changes[arm.name] = changes_of(self.source.base(self.study, self.study.at_sizes[arm.size]), recipe)
        options = plan.design.options if plan.design else ()
        changes |= {one: changes_of(self.baseline, laid) for one in options if (laid := self.laid((one,)))}
        return replace(plan, digests=digests, changes=changes)


def chosen(board: Board, design: DesignPlan) -> tuple[str, ...]:
    """Return the options with the largest effects in the screen, if all its runs have ended and none is altered."""
    plan, best, runs = board.plan, board.best(), board.runs()
    if len(best) < len(plan.arms) or any(board.state(run) == "waiting" or board.altered(run) for run in runs):
        return ()
    screen = [(arm, PlannedRun(arm.name, seed, best[arm.name])) for arm in plan.arms[1:] for seed in arm.seeds]
    values = [board.scores(run).get(plan.measure[0]) for _, run in screen]
    found = effects([plan.options_of(arm) for arm, _ in screen], values, design.options)
    few = largest(found, design.groups, design.confirm.most)
    return tuple(option for option in design.options if option in few)


def _check_sets(source: StudySource, study: Study) -> None:
    """Raise UsageError if --set names a key that the study sets."""
    solved = [study.match.key] if study.match is not None else []
    for text in source.sets:
        key = text.partition("=")[0].strip()
        sized = [name for values in study.at_sizes.values() for name in values]
        if key in ("train.seed", *study.tune, *solved, *study.base_values, *sized):
            raise UsageError(f"--set {text}: the study sets {key} itself; change it in the study")
