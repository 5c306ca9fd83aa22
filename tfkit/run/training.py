"""Training of a recipe, and saving of models trained by custom loops."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Unpack

from tfkit.core.blame import parts_named
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.texts import generation_rate
from tfkit.models import Model
from tfkit.recipe.load import ReadingOptions, Recipe, read_for
from tfkit.recipe.settings.sections import GenerationRate
from tfkit.run.run import Run, load_run
from tfkit.runs import record
from tfkit.runs.card import write_card
from tfkit.runs.checkpoint import Checkpoints
from tfkit.runs.claim import claim_folder, one_training
from tfkit.runs.folder import CHECKPOINTS, ENVIRONMENT, EVALUATION, LABELS, TOKENIZERS, WEIGHTS, RunFolder, run_name
from tfkit.runs.record import mend
from tfkit.training.lifecycle import follow, is_finished, mark_finished, restore_history, train_in
from tfkit.training.objective.base import predicts
from tfkit.training.processes import joined, team
from tfkit.training.progress import Reporter
from tfkit.training.saving import save_run
from tfkit.training.scoring import ValidationScores, keep_scores, print_samples
from tfkit.training.setup import Task


@parts_named()
def train(
    recipe: str | Path | Mapping[str, object] | Recipe,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: bool = True,
    accept_changes: bool = False,
    callbacks: Sequence[object] = (),
    **reading: Unpack[ReadingOptions],
) -> Run:
    """Train the model of a recipe (a name, a path, a mapping or a Recipe) in the folder `out`.

    The default folder is runs/NAME, where NAME includes variants and overrides (`names-rotary-s3`) and, if the name is
    taken, a number.

    `resume` continues the run in the folder, or starts a new one; `force` renames an existing run to NAME.old. Ctrl-C
    saves a checkpoint and raises Interrupted; at train.max_time, the unfinished run is returned. `accept_changes`
    records the current files of the resumed run, the initial run and the teacher, as in load_run. `callbacks` are
    functions (training, record) or objects with hooks (training/callback.py), in addition to train.callbacks. Other
    keywords are those of load_recipe. Raise RunError, UsageError or DataError before training starts if arguments are
    invalid.
    """
    named = ("out", "resume", "force", "progress", "accept_changes", "callbacks")
    loaded = read_for("train", named, recipe, reading)
    with joined() as processes:
        if not processes.leads:
            return Run(follow(loaded, callbacks).path, loaded, loaded.train.device)  # writes nothing
        loaded.tell_warnings()
        again = processes.restarts > 0  # torchrun restarts all processes after one has failed
        return _led(loaded, out, resume or again, force and not again, progress, accept_changes, callbacks)


def _led(
    loaded: Recipe,
    out: str | Path | None,
    resume: bool,
    force: bool,
    progress: bool,
    accept_changes: bool,
    callbacks: Sequence[object],
) -> Run:
    """Train in process 0, which writes the run."""
    with (
        one_training(),
        claim_folder(run_name(loaded), out, resume, force) as claim,
        Reporter(progress) as reporter,
        ExitStack() as accepted,
    ):
        folder = claim.folder
        run = Run(folder.path, loaded, loaded.train.device)
        accepted.enter_context(record.accepting(*(_changeable(folder, loaded, resume) if accept_changes else ())))
        if resume:
            record.check(folder, (*TOKENIZERS, LABELS, ENVIRONMENT))
            record.check_existing(folder, WEIGHTS)  # missing weights are written again
            for message in mend(folder):
                reporter.say(message)
        if resume and is_finished(folder, loaded, reporter.say):
            accepted.close()
            team().shared(lambda: (str(folder.path.absolute()), False))
            restore_history(folder, loaded)
            reporter.conclude()
            reporter.say(f"{folder}: already finished\n{_next_commands(run)}")
        else:
            measure = partial(_validation_scores, run)
            if train_in(claim, loaded, reporter, measure, callbacks, accepted.close):
                _conclude(run, loaded, reporter)
    return run


@parts_named()
def save(
    model: Model,
    recipe: str | Path | Mapping[str, object] | Recipe,
    tokenizer: Tokenizer | None,
    out: str | Path,
    labels: Sequence[str] = (),
    force: bool = False,
    **reading: Unpack[ReadingOptions],
) -> Run:
    """Save a model from a custom training loop as a run in the folder `out`.

    `tokenizer` may be None if the recipe has no `data:`; the run then works on ids. `labels` are the class names of a
    classifier in the order of the logits. `force` renames an existing run to NAME.old. Other keyword arguments are
    those of load_recipe. Write nothing and raise UsageError if the model does not match the recipe, or RunError if the
    folder is occupied.
    """
    loaded = read_for("save", ("labels", "force"), recipe, reading)
    run = load_run(save_run(model, loaded, tokenizer, out, labels, force))
    write_card(RunFolder(run.folder), run.recipe.name, run.summary)
    return run


def _changeable(folder: RunFolder, recipe: Recipe, resume: bool) -> list[Path]:
    """Return the folders of the initial run, the teacher, the resumed run and its newest checkpoint."""
    named = [source.run for source in (recipe.train.initial, recipe.train.teacher) if source is not None]
    folders = [Path(run) for run in dict.fromkeys(named) if record.has_record(RunFolder(Path(run)))]
    if not (resume and folder.holds_run):
        return folders
    last = Checkpoints(folder / CHECKPOINTS).last()
    return [*folders, folder.path, *([] if last is None else [last])]


def _conclude(run: Run, recipe: Recipe, reporter: Reporter) -> None:
    """Compute and report the final scores, write the card, and mark the run as finished."""
    settings, data = run.recipe.train, run.recipe.data
    split = "valid" if data is None else run.final_split
    reporter.conclude()
    for measured in data.measured() if settings.metrics and data is not None else []:
        reporter.say(_scores_line(measured, _final_scores(run, measured)))
    for name in settings.evaluations:
        reporter.say(_scores_line(name, run._evaluate_named(name)))
    if settings.generation_rate is not None:
        reporter.say(f"generation: {_generation_rate(run, settings.generation_rate):,.0f} tokens/s")
    samples = run.samples(settings.samples, split)
    for sample in samples:
        reporter.log(sample.line())
    if samples:
        reporter.draw(lambda stream: print_samples(samples, stream))
    reporter.say(_next_commands(run, *(sample.source for sample in samples[:1])))
    folder = RunFolder(run.folder)
    write_card(folder, recipe.name, run.summary)
    mark_finished(folder, recipe)


def _scores_line(split: str, scores: Mapping[str, float]) -> str:
    return f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


def _next_commands(run: Run, prompt: str = "TEXT") -> str:
    """Format suggestions for the next commands."""
    if not (Path(run.folder) / WEIGHTS).is_file():  # a study deleted them
        return f"next: tfkit show {run.folder}"
    lines = [f"tfkit evaluate {run.folder}", f"tfkit show {run.folder}"]
    if predicts(run.objective) or run.objective.reads != "bidirectional":
        argument = "--input FILE.npy" if run.reads_vectors else shlex.quote(prompt)
        lines.insert(0, f"tfkit {'predict' if predicts(run.objective) else 'generate'} {run.folder} {argument}")
    return "next: " + "\n      ".join(lines)


def _validation_scores(run: Run, task: Task) -> ValidationScores:
    """Compute the metrics and samples of a validation on a copy of the model that shares its weights.

    The copy keeps cached generation state out of the trained model.
    """
    shared: dict[int, object] = {id(weight): weight for weight in task.model.parameters()}
    other = copy.copy(run)
    other.recipe, other.tokenizer, other.objective = task.recipe, task.tokenizer, task.objective
    other.model = copy.deepcopy(task.model, shared).eval()
    options = run.recipe.train.validate
    examples = other._examples("valid")
    scores = other._scorer.scores(examples[: options.limit], options.metrics) if options.metrics else {}
    return ValidationScores({name: scores[name] for name in options.names}, other.samples(options.samples))


def _final_scores(run: Run, split: str) -> dict[str, float]:
    """Compute and save the final scores of a split. The run stays unfinished if saving raises RunError."""
    examples = run._examples(split)
    scores = run._scorer.scores(examples, run.recipe.train.metrics)
    keep_scores(run.folder / EVALUATION, split, {"examples": len(examples), **scores})
    return scores


def _generation_rate(run: Run, settings: GenerationRate) -> float:
    """Measure the number of tokens generated per second, and save it in evaluation.json."""
    start = run._start if run.blueprint.encoder is not None else None
    rate = generation_rate(run.decoder(), start, settings.batch, settings.prompt, settings.new)
    keep_scores(run.folder / EVALUATION, "generation", {"tokens_per_second": rate})
    return rate
