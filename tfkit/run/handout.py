"""The page to hand in of a run: drawing, costs, curve, scores, samples, attention, and how to do it again."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean

from tfkit.core.errors import RunError, TfkitError, UsageError
from tfkit.recipe.text.node import inline
from tfkit.recipe.views.resolved import notes
from tfkit.reports.page import Page, PageSection
from tfkit.run.run import Run
from tfkit.runs.card import facts, source_of
from tfkit.runs.folder import EVALUATION, IMPORTED, METRICS, RECIPE, RUN, RunFolder
from tfkit.runs.history import History, Start, good_lines, read_history
from tfkit.runs.record import DATA, check_existing
from tfkit.storage.checksums import SUMS
from tfkit.storage.files import read_bytes, read_json, read_text
from tfkit.training.objective.base import text_fields
from tfkit.training.progress import duration
from tfkit.training.scoring import cut
from tfkit.training.splits import described

KEPT = ("loss", "learning_rate")  # quantities shown besides the validation scores
PANELS = 16  # maximum number of quantities
POINTS = 400  # maximum points of a line; more are averaged in groups
SAMPLES = 5
PROMPT, NEW = 24, 40  # characters of a prompt, and tokens that continue it
LARGEST = 1_000_000  # maximum number of cells of attention maps
TEXT = 200  # maximum characters of a sample whose attention is shown
LEFT_OUT = "Left out: {}"


def environment_of(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Return the distinct versions, machines, devices and threads of the runs, and their total time."""
    table: dict[str, dict[str, None]] = {}
    seconds = 0.0
    for folder in folders:
        try:
            history, known = read_history(folder), str(folder.known.get(DATA))
        except RunError:
            continue
        hashes = re.findall("[0-9a-f]{64}", re.sub(r"'(tokenizer|teacher)': \{.*?\}", "", known))
        data = hashlib.sha256("".join(hashes).encode()).hexdigest()[:12] if hashes else "unknown"
        for start in history.starts if history is not None else ():
            facts = {**start.versions, **{key: str(value) for key, value in start.machine.items() if key != "memory"}}
            facts |= {"device": start.device, "threads": str(start.threads), "data": data}
            for name, value in facts.items():
                table.setdefault(name, {})[value] = None
        seconds += history.seconds if history is not None else 0.0
    rows = [(name, ", ".join(values)) for name, values in table.items()]
    return [*rows, ("time of all runs", duration(seconds))] if rows else []


def handout(folder: Path, load: Callable[[Path], Run], text: str | None) -> Page | None:
    """Return the page of the run in a folder, or None if it contains no run.

    `text` is the text whose attention is shown, by default the first sample. Raise RunError for changed files.
    """
    own = RunFolder(folder)
    if not own.holds_run:
        return None
    run, history = load(folder), read_history(own)
    check_existing(own, RECIPE, RUN, EVALUATION, METRICS)
    sections = [*architecture(run), _curve(own), *(PageSection(*one) for one in facts(own)), *outputs(run, text)]
    sections += _again(run, own, history)
    return Page(run.recipe.name, list(_lead(own, history)), sections, whole=True)


def _lead(folder: RunFolder, history: History | None) -> Iterator[str]:
    """Yield the state of the training, and the comparison with the baseline."""
    if history is None:
        yield "There is no record of its training."
        return
    state = "is finished" if history.finished else "is not finished"
    yield f"Training {state if history.diverged is None else f'diverged at step {history.diverged:,}'}."
    loss, baseline = history.best.get("loss"), folder.known.get("baseline")
    if loss is not None and isinstance(baseline, Mapping) and isinstance(other := baseline.get("loss"), float):
        word = "lower" if loss < other else "not lower"
        yield f"The best validation loss, {loss:.4g}, is {word} than that of {baseline.get('name')}, {other:.4g}."


def architecture(run: Run) -> Iterator[PageSection]:
    """Yield the drawing of a run's model and the table of its costs."""
    from tfkit.reports.counts import count
    from tfkit.reports.gallery import drawing
    from tfkit.reports.picture import picture
    from tfkit.reports.show import as_data
    from tfkit.reports.table import FIGURES, caption, headline, table_lines

    recipe, blueprint = run.recipe, replace(run.blueprint, name=run.recipe.name)
    yield drawing([picture(blueprint)], (), [recipe.table(notes=notes(str(recipe.file), recipe.text or ""))])
    data, rows = as_data(blueprint, count(blueprint)), list[list[str]]()
    for line in table_lines(data):
        if line.figures or line.style == "bold":
            rows.append([line.text.strip(), "", *(line.figures or [""] * len(FIGURES))])
        else:
            rows[-1][1] += f"{line.text.strip()}\n"
    rows[0][1] = "made of"
    yield PageSection("Costs", [headline(data)], *(rows[0], rows[1:]), caption=caption(data), data={"costs": data})


def _curve(folder: RunFolder) -> PageSection:
    from tfkit.reports.plots import legend, line_plot

    lines = good_lines(read_bytes(folder / METRICS))[0] if (folder / METRICS).is_file() else []
    records = [json.loads(line) for line in lines]
    names = dict.fromkeys(name for one in records for name in one if name in KEPT or name.startswith("valid."))
    data = {name: points for name in list(names)[:PANELS] if (points := _points(records, name))}
    curves = {name: {(0, step): value for step, value in points} for name, points in data.items()}
    panels = [[name, "valid.loss"] if name == "loss" else [name] for name in data if name != "valid.loss"]
    plots = []
    for panel in panels:
        shown = [curves.get(name, {}) for name in panel]
        plots.append(line_plot(shown, {step for points in shown for _, step in points}, panel[0]))
    switches = legend(["training", "validation"]) if "valid.loss" in data else ""
    chart = f'<figure class="chart"><div class="panels">{"".join(plots)}</div>{switches}</figure>'
    lines = [] if data else ["There is no record of steps."]
    return PageSection("Curve", lines, pictures=[lambda: chart] if data else (), data={"curve": data})


def _points(records: Sequence[Mapping[str, float]], name: str) -> list[tuple[int, float]]:
    """Return the steps and values of a quantity, averaged in groups if more than POINTS."""
    points = [(int(one["step"]), one[name]) for one in records if math.isfinite(one.get(name, math.nan))]
    size = math.ceil(len(points) / POINTS) or 1
    groups = [list(zip(*points[first : first + size], strict=True)) for first in range(0, len(points), size)]
    return [(round(fmean(steps)), fmean(values)) for steps, values in groups]


def outputs(run: Run, text: str | None) -> Iterator[PageSection]:
    """Yield samples of the outputs of a run, and its attention for `text` or for the first sample.

    What cannot be computed is left out with the reason. Raise its error if it is the text's.
    """
    from tfkit.reports.attention import section

    rows, first, reason = list[list[str]](), text, "the weights are missing"
    if run.weights.is_file():
        _ = run.model  # changed weights are refused
        try:
            rows, sample = _samples(run)
            first, reason = sample if text is None else text, "the model writes no text"
        except TfkitError as error:
            reason = str(error)
    heads = ("input", "output", "reference")[: len(rows[0])] if rows else ()
    data = {"samples": [dict(zip(heads, row, strict=True)) for row in rows]}
    shown = [[cut(cell) for cell in row] for row in rows]
    yield PageSection("Samples", [] if rows else [LEFT_OUT.format(reason)], heads, shown, data=data)
    try:
        if first is None or not run.weights.is_file():
            raise UsageError(reason)
        yield replace(section(run.attention(first), "Attention", LARGEST), lines=[described(first) or first])
    except TfkitError as error:
        if text is not None:
            raise
        yield PageSection("Attention", [LEFT_OUT.format(error)], data={"attention": None})


def _samples(run: Run) -> tuple[list[list[str]], str]:
    """Return rows of input, output and reference, if any, and the whole input of the first."""
    examples, objective = run._examples(run.final_split)[:SAMPLES], run.objective
    inputs = [[example.get(field, "") for field in text_fields(objective)] for example in examples]
    shown = [" | ".join(described(text) or text for text in texts) for texts in inputs]
    first = inputs[0][0] if described(inputs[0][0]) else inputs[0][0][:TEXT]
    if objective.answers is not None and objective.answers.reference is not None:
        rows = zip(shown, *run._scorer.outputs(examples, "samples"), strict=True)
        return [list(row) for row in rows], first
    starts = [text[: min(PROMPT, len(text) // 2)] for text in shown] if run.writes else []
    prompts = [text.rpartition(" ")[0] or text for text in starts]
    written = run.generate(prompts, max_new_tokens=NEW) if prompts else []
    return [list(row) for row in zip(prompts, written, strict=True)], first


def _again(run: Run, folder: RunFolder, history: History | None) -> Iterator[PageSection]:
    """Yield the sections with commands, recipe, versions, seed and hashes."""
    commands = list(map(shlex.join, _commands(folder, history)))
    made = [("seed", str(run.recipe.train.seed)), *environment_of([folder])]
    text, sums = (read_text(file) if (file := folder / name).is_file() else "" for name in (RECIPE, SUMS))
    again = {"commands": commands, "recipe": text, "made_with": dict(made), "sha256": sums.splitlines()}
    more = {"data": folder.known.get(DATA), "history": history and history.model_dump()}
    scores = read_json(folder / EVALUATION) if (folder / EVALUATION).is_file() else {}
    data = {"evaluation": scores, "again": {**again, **more}}
    yield PageSection("How to do it again", code="\n".join(commands), data=data)
    yield PageSection("The recipe (recipe.yaml)", code=text)
    yield PageSection("Made with", heads=["", ""], rows=made)
    yield PageSection("SHA-256 of the files of the run", code=sums)


def _commands(folder: RunFolder, history: History | None) -> Iterator[list[str]]:
    """Yield the commands that import the model, start and resume its training, and check it."""
    imported, name = folder.known.get(IMPORTED), folder.path.resolve().name
    if isinstance(imported, dict) and "from" in imported:
        yield ["tfkit", "import", source_of(imported), "--out", name]
    for place, (words, _) in enumerate(groupby([] if history is None else history.starts, _words)):
        source = history.recipe if history is not None and history.file is None else RECIPE
        yield ["tfkit", "train", source, *words, "--out", name, *["--resume"] * bool(place)]
    yield from (["tfkit", word, name] for word in (*["evaluate"] * (DATA in folder.known), "prove"))


def _words(start: Start) -> list[str]:
    """Return the arguments of a start: its variants and overrides."""
    named = [("--variant", name) for name in start.variants]
    named += [("--set", f"{key}={inline(value)}") for key, value in start.set.items()]
    return [word for pair in named for word in pair]
