"""Start, resumption and completion of a run, from the first file to the final weights."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from tfkit.core.errors import RunError, TfkitError
from tfkit.data.corpus.division import table
from tfkit.data.tokenizer import Tokenizer
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.runs.checkpoint import Checkpoints, read_progress, seeded, step_of
from tfkit.runs.claim import Claim, changed_keys, check_nothing_is_lost, check_same, check_steps
from tfkit.runs.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    EVALUATION,
    LOG,
    RECIPE,
    RESOLVED,
    SPLITS,
    WEIGHTS,
    RunFolder,
    load_tokenizer,
    read_labels,
    save_labels,
    save_tokenizer,
)
from tfkit.runs.history import HistoryFile, environment, other_products, read_history, resumption
from tfkit.runs.kept import keep_from
from tfkit.runs.record import DATA, TEACHER, Hashes, differences, file_hashes, teacher_hashes
from tfkit.runs.supply import NEEDS, changes, needs_of, recorded
from tfkit.storage.checksums import write_json, write_text
from tfkit.storage.files import read_text
from tfkit.storage.folders import old_name
from tfkit.training.loop import Measure, Trainer
from tfkit.training.processes import Interrupted, is_lost, team
from tfkit.training.progress import Reporter, Silence
from tfkit.training.setup import Task, prepare


def train_in(
    claim: Claim,
    recipe: Recipe,
    reporter: Reporter,
    measure: Measure | None = None,
    callbacks: Sequence[object] = (),
    begun: Callable[[], None] = lambda: None,
) -> bool:
    """Train to the end. Return False if train.max_time is reached. Raise Interrupted on a signal.

    `measure` computes validation metrics other than the loss. `begun` is called when all files have been read. Resuming
    a run without a checkpoint restarts it. Raise RunError if this would lose results.
    """
    folder, began = claim.folder, time.monotonic()
    checkpoint = Checkpoints(folder / CHECKPOINTS).sound(reporter.say) if claim.resume else None
    if claim.resume and checkpoint is None:
        check_nothing_is_lost(folder)
    with seeded(recipe.train.seed):
        if checkpoint is None:
            trainer = _begun(claim, recipe, reporter, callbacks)
        else:
            trainer = _resumed(claim, recipe, reporter, checkpoint, callbacks)
        begun()
        trainer.measure = measure
        trainer.deadline -= time.monotonic() - began
        team().shared(lambda: (str(folder.path.absolute()), True))
        if _ran(trainer, reporter):
            return True
    progress = trainer.progress
    imports = "".join(f" --import {name}" for name in recipe.imports)
    again = f"tfkit train {_source(recipe, folder)} --out {folder} --resume{imports}"
    message = f"stopped at step {progress.step:,} of {trainer.task.steps:,}; to resume: {again}"
    if trainer.is_late:
        reporter.say(f"train.max_time: {recipe.train.max_time} has passed; {message}")
        return False
    reporter.log(message)
    raise Interrupted(message)


def _ran(trainer: Trainer, reporter: Reporter) -> bool:
    """Run the trainer. Raise RunError with the step to resume from if another process has ended."""
    try:
        return trainer.run()
    except RuntimeError as error:
        last = trainer.checkpoints.last()
        if not is_lost(error) or last is None:
            raise
        resume = f"training stopped. --resume continues from step {step_of(last):,}"
        message = f"after step {trainer.progress.step:,}: another process of this run has ended; {resume}"
        reporter.log(message)
        raise RunError(message) from None


def follow(recipe: Recipe, callbacks: Sequence[object] = ()) -> RunFolder:
    """Train alongside process 0, starting from its checkpoint and writing nothing. Return the run folder."""
    place, goes_on = team().shared(lambda: ("", False))
    folder = RunFolder(Path(place))
    if not goes_on:  # already finished
        return folder
    with seeded(recipe.train.seed), Silence() as silent, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # process 0 issues the warnings
        labels, tokenizer = read_labels(folder), _saved_tokenizer(folder, recipe)
        task = prepare(recipe, silent, tokenizer, initial=False, labels=labels)
        trainer = Trainer(task, folder, silent, callbacks=callbacks)
        checkpoint = trainer.checkpoints.last()
        if checkpoint is None:
            raise RunError(f"{folder}: contains no checkpoint on this machine; all processes need a shared file system")
        trainer.restore(checkpoint)
        trainer.run()
    return folder


def _source(recipe: Recipe, folder: RunFolder) -> str:
    """Return the recipe argument of a command that resumes this run: its name or file, else its resolved.yaml."""
    target = yaml.safe_load(recipe.resolved())
    for source in (recipe.name, recipe.file):
        with contextlib.suppress(TfkitError):
            if source is not None and yaml.safe_load(load_recipe(source, imports=recipe.imports).resolved()) == target:
                return str(source)
    return str(folder / RESOLVED)


def restore_history(folder: RunFolder, recipe: Recipe) -> None:
    """Rebuild a missing run.json of a finished run from its last checkpoint."""
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    if checkpoint is None or read_history(folder) is not None:
        return
    progress = read_progress(checkpoint)
    history = HistoryFile(recipe, folder, torch.device("cpu"), 0)
    history.start(progress.step)
    history.reached(progress)


def is_finished(folder: RunFolder, recipe: Recipe, say: Callable[[str], None]) -> bool:
    """True if the run in `folder` has completed `recipe`; report unused changes. Raise RunError for another recipe."""
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    removed = folder.removed if folder.holds_run else ()
    if not (folder / ENVIRONMENT).is_file() or (checkpoint is None and CHECKPOINTS not in removed):
        return False
    recipe = recipe.labelled(len(read_labels(folder)))
    resolved = recipe.resolved(_saved_tokenizer(folder, recipe).sizes)
    check_same(folder, resolved, recipe.data)
    finished = folder.known.get("finished")
    whole = all((folder / name).is_file() or name in removed for name in (WEIGHTS, RESOLVED, RECIPE))
    if not (whole and isinstance(finished, dict)):
        return False
    ended = finished == _ending(recipe, finished.get("step", 0) if checkpoint is None else step_of(checkpoint))
    for line in changed_keys(folder, resolved, recipe.data) if ended else ():
        say(f"{line}; nothing of it is used, because training has ended")
    return bool(ended)


def mark_finished(folder: RunFolder, recipe: Recipe) -> None:
    """Mark the run as complete, so that repeating the command is a no-op."""
    checkpoint = Checkpoints(folder / CHECKPOINTS).last()
    step = 0 if checkpoint is None else step_of(checkpoint)
    write_json(folder / ENVIRONMENT, {**folder.known, "finished": _ending(recipe, step)})


def _ending(recipe: Recipe, step: int) -> dict[str, Any]:
    length = "steps" if recipe.train.epochs is None else "epochs"
    settings = recipe.train.model_dump(mode="json", include={length, "patience", "keep"})
    return {"step": step, **settings}


def _begun(claim: Claim, recipe: Recipe, reporter: Reporter, callbacks: Sequence[object]) -> Trainer:
    """Start a new run. Nothing is written until all checks pass.

    A checkpoint at step 0 makes the run resumable from the start.
    """
    hashes = _hashes(recipe)
    task = prepare(recipe, reporter)
    known = environment(task.settings.seed, task.train.device) | _needs(claim.folder, task)
    known |= {DATA: hashes | task.hashes, "recipe": recipe.name} | _baseline(task)
    beside = _beside(known, reporter)
    trainer = Trainer(task, claim.folder, reporter, beside, callbacks)
    trainer.history.start(0)
    with claim.beginning() as new:
        write_json(
            new / ENVIRONMENT, known
        )  # written first, so that the folder is recognized as a run even if the process is killed
        if task.tokenizer.vocab_size:
            save_tokenizer(task.tokenizer, new)
        if kept := keep_from(task.settings.initial, new):
            write_json(new / ENVIRONMENT, known | kept)
        _describe(new, task)
        save_labels(new, task.objective.rows.labels)
        Checkpoints(new / CHECKPOINTS).save(task.model, trainer.optimizer, trainer.progress, task.beside)
        trainer.history.write(new)
    reporter.open(claim.folder / LOG)
    reporter.say(f"training {recipe.name} in {claim.folder}")
    if claim.replaces:
        reporter.say(f"the previous run is now {old_name(claim.place).name}")
    return trainer


def _resumed(
    claim: Claim, recipe: Recipe, reporter: Reporter, checkpoint: Path, callbacks: Sequence[object]
) -> Trainer:
    folder, before = claim.folder, claim.folder.known
    hashes = _hashes(recipe)
    changed = _accepted(folder, recipe, differences(before.get(DATA), hashes))
    tokenizer = _saved_tokenizer(folder, recipe)
    task = prepare(recipe, reporter, tokenizer, initial=False, labels=read_labels(folder))
    check_steps(folder, step_of(checkpoint), recipe, task.steps)
    changed |= _accepted(folder, recipe, differences(before.get(DATA), task.hashes))
    history = read_history(folder)
    others = [*changed_keys(folder, _resolved(task), recipe.data), *other_products(history)]
    trainer = Trainer(task, folder, reporter, _beside(before, reporter), callbacks)
    for message in (*others, *(_change_line(*one) for one in changed.items()), *changes(needs_of(folder))):
        reporter.say(message)
    trainer.restore(checkpoint)
    claim.changing()
    if any("valid" in splits for splits in changed.values()) and not trainer.progress.finished:
        trainer.progress.best = None  # the score was measured on other examples
        trainer.save()
    kept = {key: value for key, value in before.items() if key not in ("finished", NEEDS)}
    again = resumption(before, environment(task.settings.seed, task.train.device), trainer.progress.step)
    trainer.history.start(trainer.progress.step, history)
    write_json(folder / ENVIRONMENT, kept | again | {DATA: hashes | task.hashes} | _needs(folder, task))
    _describe(folder, task)
    reporter.open(folder / LOG)
    ended = trainer.progress.finished
    scores = folder / EVALUATION
    if not ended and scores.exists():  # of weights that training replaces
        reporter.say(f"{scores}: has the scores of earlier weights; moved to {LOG}")
        reporter.log(read_text(scores))
        scores.unlink()
    left = f": training has ended ({ended}), so no step is trained" if ended else ""
    reporter.say(f"resuming {folder} from step {trainer.progress.step:,}{left}")
    return trainer


def _hashes(recipe: Recipe) -> Hashes:
    """Return the SHA-256 of the data files and of the teacher."""
    return ({} if recipe.data is None else file_hashes(recipe.data)) | teacher_hashes(recipe.train)


def _saved_tokenizer(folder: RunFolder, recipe: Recipe) -> Tokenizer:
    """Load the tokenizer of a run, or an empty one if the recipe has none. Raise RunError if it is missing."""
    reads_texts = recipe.data is None or recipe.data.tokenizer is not None
    return load_tokenizer(folder) if reads_texts else Tokenizer.empty()


def _accepted(folder: RunFolder, recipe: Recipe, changed: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the changed data files. Raise RunError unless the recipe accepts changes."""
    if changed and recipe.train.changed_data == "refuse":
        lines = "".join(f"\n  {_change_line(*one)}" for one in changed.items())
        go_on = "to resume anyway, add --set train.changed_data=accept"
        raise RunError(f"{folder}: cannot be resumed with changed data; {go_on}{lines}")
    return changed


def _change_line(what: str, splits: Sequence[str]) -> str:
    verb = "have" if what.startswith("the examples") else "has"
    places = ", ".join(f"train.{name}" if name == TEACHER else f"data.{name}" for name in splits)
    return f"{what} {verb} changed since this run started ({places})"


def _needs(folder: RunFolder, task: Task) -> dict[str, Any]:
    needs = recorded(task.recipe, folder.path, task.tokenizer.sizes)
    return {NEEDS: needs} if needs else {}


def _describe(folder: RunFolder, task: Task) -> None:
    resolved = _resolved(task)
    write_text(folder / RESOLVED, resolved)
    write_text(folder / RECIPE, resolved if task.recipe.text is None else task.recipe.text)
    data = task.recipe.data
    if data is not None and data.split is not None and data.split.cut:
        write_text(folder / SPLITS, table(data.train, data.split))


def _resolved(task: Task) -> str:
    return task.recipe.resolved(task.tokenizer.sizes)


def _baseline(task: Task) -> dict[str, Any]:
    if task.valid is None:
        return {}
    found = task.objective.baseline(task.train.items, task.valid.items)
    return {} if found is None else {"baseline": {"name": found.name, "loss": found.loss}}


def _beside(known: Mapping[str, Any], reporter: Reporter) -> str:
    """Return the baseline to show next to each validation loss, and report it."""
    baseline = known.get("baseline")
    name, loss = (baseline.get("name"), baseline.get("loss")) if isinstance(baseline, Mapping) else (None, None)
    if not isinstance(name, str) or not isinstance(loss, (int, float)):
        return ""
    reporter.say(f"for comparison: {name} reaches a validation loss of {loss:.4f}")
    return f" ({name.split(',')[0]}: {loss:.2f})"
