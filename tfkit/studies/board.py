"""State of the runs of a study, read from their folders, and measures by probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from tfkit.core.errors import Fault, RecipeError, RunError
from tfkit.core.registry import REGISTRY
from tfkit.core.synonyms import nearest
from tfkit.data.corpus import Probe
from tfkit.recipe.load import Recipe
from tfkit.runs.folder import EVALUATION, METRICS, RUN, WEIGHTS, RunFolder
from tfkit.runs.history import History, good_lines, read_history, step_in
from tfkit.runs.record import changed
from tfkit.storage.files import read_bytes, read_json
from tfkit.studies.arms import Arm
from tfkit.studies.plan import EXACT, RUNS, SCREEN, Plan, PlannedRun, runs_of
from tfkit.studies.run_list import is_score, scores_of
from tfkit.studies.settings import MORE, STEPS, ProbeMeasure, Study

SIZES = {"valid": 100, "test": 300}  # pairs


def probes_of(recipe: Recipe, baseline: Recipe, study: Study) -> dict[str, dict[str, Any]]:
    """Return the overrides that turn the study's recipe into each of its probes, by name.

    Raise RecipeError with the faults of all probes.
    """
    overrides: dict[str, dict[str, Any]] = {}
    faults: list[Fault] = []
    known = [name for name in REGISTRY.names("corpus") if issubclass(REGISTRY.get("corpus", name), Probe)]
    for place, probe in enumerate(study.measure):
        if not isinstance(probe, ProbeMeasure):
            continue
        at = f"study.measure[{place}]"
        if probe.corpus not in known:
            fault = recipe.fault(at, f"'{probe.corpus}' is not a probe; available: {', '.join(known)}")
            faults.append(replace(fault, suggestion=nearest(probe.corpus, known)))
            continue
        values = _values(baseline, probe)
        faults += [recipe.fault(at, problem) for problem in _problems(baseline, probe, values)]
        overrides[probe.corpus] = {**values, **probe.set}
    if faults:
        raise RecipeError(faults)
    return overrides


def metric_of(probe: str) -> str:
    """Return the name of the metric that a probe is scored by."""
    part = REGISTRY.get("corpus", probe)
    return part.metric if issubclass(part, Probe) else "exact_match"


def _problems(baseline: Recipe, probe: ProbeMeasure, values: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why a recipe cannot be trained on a probe."""
    if baseline.blueprint().decoder is None:
        yield "a probe is answered by a decoder, and this model has none"
    if "split" in probe.options:
        yield "split: the study chooses it: it trains on train, and measures test"
    for key in probe.set:
        if key in values:
            yield f"set: {key}: the probe sets it itself"
        elif key.partition(".")[0] in ("study", "extends", "variants") or key == "train.seed":
            yield f"set: {key}: is no key that makes another training"


def _values(baseline: Recipe, probe: ProbeMeasure) -> dict[str, Any]:
    """Return the overrides that train a recipe on the probe."""
    corpus = {"type": probe.corpus, **probe.options}
    splits = {f"data.{split}": {**corpus, "split": split, "count": count} for split, count in SIZES.items()}
    return {
        "study": None,
        "objective": "seq2seq" if baseline.blueprint().encoder is not None else "completion",
        "model.vocab_size": "tokenizer",
        "data.tokenizer": "word",
        "data.train": corpus,
        **splits,
        "train.metrics": [metric_of(probe.corpus)],
        "train.validate.metrics": [],
        "train.validate.samples": 0,
        "train.validate.best": "loss",
        "train.samples": 0,
        "train.evaluations": None,
        "train.generation_rate": None,
        **({STEPS: probe.steps} if probe.steps is not None else {}),
    }


State = Literal["waiting", "done", "diverged"]


def measured(history: History, folder: RunFolder) -> dict[str, float]:
    """Return the scores and costs of a run by name, without unknown, unreadable and non-finite values."""
    try:
        evaluated = scores_of(folder)
    except RunError:
        evaluated = {}
    scores = {**{f"valid.{name}": value for name, value in history.best.items()}, **evaluated}
    rate = history.tokens / history.seconds if history.seconds else 0.0
    scores |= {"seconds": history.seconds, "tokens_per_second": rate, "peak_memory": history.peak_memory}
    return {name: float(value) for name, value in scores.items() if is_score(value)}


def altered(folder: RunFolder) -> str:
    """Explain which result file differs from the manifest; return an empty string if all agree."""
    return next(changed(folder, (RUN, EVALUATION, METRICS)), "") if folder.holds_run else ""


def examples_of(folder: RunFolder) -> dict[str, int]:
    """Return the number of examples in each evaluated split."""
    try:
        evaluation = read_json(folder / EVALUATION) if (folder / EVALUATION).is_file() else {}
    except RunError:
        return {}
    splits = evaluation.items() if isinstance(evaluation, dict) else ()
    counts = {name: one.get("examples") for name, one in splits if isinstance(one, dict)}
    return {name: count for name, count in counts.items() if type(count) is int and count > 0}


def count_in(examples: Mapping[str, int], measure: str) -> int:
    """Return the number of examples that a measure was computed on; 0 if unknown."""
    return examples.get(measure, examples.get(measure.partition(".")[0], 0))


@dataclass(frozen=True)
class Board:
    """Runs in the folder of a study."""

    plan: Plan
    folder: Path

    def run_folder(self, run: PlannedRun) -> RunFolder:
        return RunFolder(self.folder / RUNS / run.name)

    def history(self, run: PlannedRun) -> History | None:
        """Return the contents of run.json, or None if it is missing or unreadable."""
        try:
            return read_history(self.run_folder(run))
        except RunError:
            return None

    def stranger(self, run: PlannedRun) -> str:
        """Return an error if the folder holds a different run, else an empty string."""
        history = self.history(run)
        if history is None:
            return ""
        arm, values = self.plan.arm(run.arm), self.plan.values(run)
        other = [key for key, value in values.items() if key != "study" and history.set.get(key) != value]
        if history.seed != run.seed or tuple(history.variants) != arm.variants or other:
            return f"{self.run_folder(run)}: holds another run than the study's; move it away"
        return ""

    def altered(self, run: PlannedRun) -> str:
        """Return an error if the folder holds a different run or modified files, else an empty string."""
        return self.stranger(run) or altered(self.run_folder(run))

    def early(self, run: PlannedRun) -> str:
        """Return the time at which a run began if that was before the plan was made, else an empty string."""
        history = self.history(run)
        at = history.starts[0].at if history is not None and history.starts else ""
        if not self.plan.made:
            return ""
        try:
            return at if datetime.fromisoformat(at) < datetime.fromisoformat(self.plan.made) else ""
        except (ValueError, TypeError):  # it did not begin, or its time was edited
            return at

    def state(self, run: PlannedRun) -> State:
        """Return the state of a run. A diverged run is not trained again."""
        folder, history = self.run_folder(run), self.history(run)
        if history is None or self.stranger(run):
            return "waiting"
        if history.diverged is not None:
            return "diverged"
        try:
            finished = folder.holds_run and bool(folder.known.get("finished"))
            finished = finished and ((folder / WEIGHTS).is_file() or WEIGHTS in folder.removed)
        except RunError:
            finished = False
        ended = history.finished in ("patience", "callback") or history.steps >= self.plan.run_steps(run)
        return "done" if finished and ended else "waiting"

    def scores(self, run: PlannedRun) -> dict[str, float]:
        """Return all measurements of a finished run by name; empty otherwise."""
        history = self.history(run)
        if history is None or self.state(run) != "done":
            return {}
        arm = self.plan.arm(run.arm)
        exact = {name: getattr(arm, name) for name in EXACT}
        return {**measured(history, self.run_folder(run)), **exact, **self._probed(run)}

    def runs(self) -> list[PlannedRun]:
        """Return the runs known so far. Runs that depend on the result of tuning are added later."""
        return list(dict.fromkeys(runs_of(self.plan, self.best(), self.tuning)))

    def _probed(self, run: PlannedRun) -> dict[str, float]:
        """Return the test accuracies of the probes trained next to a run."""
        accuracies = {}
        for probe in self.plan.probes if not run.probe else ():
            probe_run = replace(run, probe=probe)
            history = self.history(probe_run)
            scores = {} if history is None else measured(history, self.run_folder(probe_run))
            score = scores.get(f"test.{metric_of(probe)}")
            if self.state(probe_run) == "done" and score is not None:
                accuracies[f"probe.{probe}"] = score
        return accuracies

    def examples(self, run: PlannedRun) -> dict[str, int]:
        """Return the number of evaluated examples by split, with probes as `probe.NAME`."""
        probed = {probe: examples_of(self.run_folder(replace(run, probe=probe))) for probe in self.plan.probes}
        probes = {f"probe.{probe}": counts["test"] for probe, counts in probed.items() if "test" in counts}
        return {**examples_of(self.run_folder(run)), **probes}

    def step(self, run: PlannedRun) -> int:
        file = self.run_folder(run) / METRICS
        try:
            lines, _ = good_lines(read_bytes(file))
        except RunError:
            return 0
        return step_in(lines[-1]) if lines else 0

    def best(self) -> dict[str, Mapping[str, Any]]:
        """Return the values that are best by `tuned_by` on the first seed, for each arm whose tuning is complete.

        If an arm diverged with all values, return the first values.
        """
        if len(self.plan.grid) == 1 and not self.plan.more:
            return {arm.name: self.plan.grid[0] for arm in self.plan.trained}
        tuning = {arm.name: self.tuning(arm) for arm in self.plan.trained if arm.stage != SCREEN}
        ended = {name: runs for name, runs in tuning.items() if all(self.state(run) != "waiting" for run in runs)}
        best = {name: self._best_of(runs) or self.plan.grid[0] for name, runs in ended.items()}
        base = best.get(self.plan.arms[0].name)  # the values of a screen's cells
        return best | {arm.name: base for arm in self.plan.trained if arm.stage == SCREEN and base is not None}

    def _best_of(self, runs: Sequence[PlannedRun]) -> Mapping[str, Any] | None:
        """Return the values of the best run; None if all diverged."""
        measure = self.plan.tuned_by or self.plan.measure[0]
        values = {place: scores[measure] for place, run in enumerate(runs) if measure in (scores := self.scores(run))}
        sign = -1 if measure in self.plan.rising else 1
        return runs[min(values, key=lambda place: sign * values[place])].tuned if values else None

    def tuning(self, arm: Arm) -> list[PlannedRun]:
        """Return the tuning runs of an arm known so far: the grid, and values beyond it while the best is at an end."""
        runs = self.plan.tuning(arm)
        for _ in range(MORE if self.plan.more and runs else 0):
            if any(self.state(run) == "waiting" for run in runs):
                break
            values = next(self._beyond([run.tuned for run in runs], self._best_of(runs)), None)
            if values is None:
                break
            runs.append(PlannedRun(arm.name, runs[0].seed, values))
        return runs

    def _beyond(
        self, tried: Sequence[Mapping[str, Any]], best: Mapping[str, Any] | None
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the next values of open keys that are best at an end; smaller ones if all tried values diverged."""
        for key, more in self.plan.more.items():
            low, high = (end(one[key] for one in tried) for end in (min, max))
            base = best or next(one for one in tried if one[key] == low)
            above, below = sorted(one for one in more if one > high), sorted(one for one in more if one < low)
            yield from ({**base, key: one} for one in above[:1] if best and best[key] == high)
            yield from ({**base, key: one} for one in below[-1:] if base[key] == low)
