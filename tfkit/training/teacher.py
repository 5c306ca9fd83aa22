"""The teacher run of a distillation, checks against the student, and targets that it generates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config, Problem, spell
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.core.options import LayerPair, layer_pairs
from tfkit.core.output import counted
from tfkit.core.slots import AttentionFacts
from tfkit.data.shards import key_of
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.stepper import most_positions
from tfkit.generation.strategy.speculative import difference_between
from tfkit.generation.writer import Writer, make_writer
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings import sections
from tfkit.recipe.settings.agreement import WANTED, direction_of, serves
from tfkit.recipe.settings.section_rules import shows_attention
from tfkit.recipe.settings.sections import Generate
from tfkit.runs import record
from tfkit.runs.folder import RESOLVED, TOKENIZER, WEIGHTS, RunFolder, load_tokenizer, read_labels, tokenizer_files
from tfkit.runs.supply import saved_recipe
from tfkit.runs.weights import load_weights, saved_dtype
from tfkit.storage.checksums import sha256_of
from tfkit.storage.files import read_json, write_json
from tfkit.training.feed import Feed
from tfkit.training.objective import Objective
from tfkit.training.progress import Reporter

HERE = "train.teacher"


@dataclass(frozen=True)
class TeacherRun:
    """A run used as a teacher: its architecture, tokenizer and labels, and the student's `train.teacher` settings."""

    folder: RunFolder
    settings: sections.Teacher
    recipe: Recipe
    blueprint: Blueprint
    tokenizer: Tokenizer
    labels: tuple[str, ...]

    def model(self, device: torch.device) -> Model:
        """Load the model with its weights, frozen and in eval mode."""
        file = self.folder / WEIGHTS
        with record.checking(self.folder, WEIGHTS):
            model = build_model(self.blueprint, device=device, dtype=saved_dtype(file))
            load_weights(model, file)
        return model.eval().requires_grad_(False)


def load_teacher(recipe: Recipe) -> TeacherRun | None:
    """Load the recipe's teacher without its weights. Raise RecipeError if its folder is invalid."""
    settings = recipe.train.teacher
    if settings is None:
        return None
    folder = RunFolder(Path(settings.run))
    try:
        for name in (RESOLVED, WEIGHTS):
            if not (folder / name).is_file():
                raise RunError(f"{folder / name}: is missing; a teacher must be a trained or imported run")
        record.check(folder, record.SMALL)
        own = saved_recipe(folder, imports=recipe.imports)
        labels, tokenizer = read_labels(folder), load_tokenizer(folder)
    except RunError as error:
        raise RecipeError([recipe.fault(f"{HERE}.run", str(error))]) from None
    own = own.labelled(len(labels))
    blueprint = own.blueprint(tokenizer.sizes if own.unknown_vocab else None)
    return TeacherRun(folder, settings, own, blueprint, tokenizer, labels)


@dataclass(frozen=True)
class Pupil:
    """Properties of the student needed for the checks, known before its model is built."""

    blueprint: Blueprint
    tokenizer: Tokenizer
    objective: Objective
    packed: bool


def check_teacher(recipe: Recipe, teacher: TeacherRun, pupil: Pupil) -> None:
    """Raise RecipeError listing all incompatibilities of teacher and student."""
    faults = [
        recipe.fault(problem.at or f"{HERE}.run", f"{teacher.folder} {problem.message}")
        for check in (_vocabulary, _labels, _direction, _head, _calls, _widths, _layers)
        for problem in check(teacher, pupil)
    ]
    if faults:
        raise RecipeError(faults)


def check_lengths(recipe: Recipe, teacher: TeacherRun, feed: Feed) -> None:
    """Raise RecipeError if training rows exceed the teacher's maximum length."""
    longest = np.asarray(feed.lengths).reshape(len(feed.items), -1).max(axis=0).tolist()
    for plan, length in zip(teacher.blueprint.stacks(), longest, strict=False):
        if plan.max_length is not None and length > plan.max_length:
            text = f"accepts {plan.max_length} tokens, but rows have up to {length}"
            advice = f"set data.batch.length: {plan.max_length}"
            raise RecipeError([recipe.fault(f"{HERE}.run", f"{teacher.folder} {text}; {advice}")])


def _vocabulary(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    difference = difference_between(pupil.tokenizer, teacher.tokenizer) or difference_between(
        pupil.tokenizer.source, teacher.tokenizer.source
    )
    if difference:
        own = f"use its tokenizer: data.tokenizer: {{type: file, path: {teacher.folder / TOKENIZER}}}"
        yield Problem("", f"has another vocabulary: {difference}; {own}")


def _labels(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    rows = pupil.objective.rows
    if rows.labelled and rows.labels != teacher.labels:
        other, own = (", ".join(labels[:6]) or "none" for labels in (teacher.labels, rows.labels))
        yield Problem("", f"has other labels: {other}; the training corpus has {own}")


def _direction(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    objective, found = pupil.objective, direction_of(teacher.blueprint)
    if objective.reads is not None and found != objective.reads and found not in objective.also:
        required = WANTED[objective.reads]
        yield Problem("", f"is {WANTED[found]}; '{objective.part_name}' requires {required}")


def _head(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    objective, blueprint = pupil.objective, teacher.blueprint
    name = objective.config.trained_head()
    head = blueprint.head if name is None else dict(blueprint.heads).get(name)
    what = "head" if name is None else f"head '{name}'"
    if head is None or not serves(head.part, objective.heads):
        has = f"has no {what}" if head is None else f"has a {what} of type '{head.part.part_name}'"
        yield Problem("", f"{has}; '{objective.part_name}' requires {' or '.join(objective.heads)}")
        return
    own, size = pupil.blueprint.last.vocab_size, blueprint.last.vocab_size
    if not objective.rows.labelled and own != size:
        yield Problem("", f"predicts {size} ids, this model {own}; set model.vocab_size: {size}")


def _calls(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    gives, name = pupil.objective.gives, pupil.objective.part_name
    for plan in teacher.blueprint.stacks():
        if plan.reads_vectors:
            yield Problem("", f"reads vectors, but '{name}' provides token ids")
        for need in sorted(plan.needs - gives):
            yield Problem("", f"requires {need}, which '{name}' does not provide")
        lacking = plan.without("padding") if "attention_mask" in gives else []
        lacking += plan.without("packing") if pupil.packed else []
        for part in lacking:
            yield Problem("", f"has {part}, which does not support the batches of '{name}'")


def _widths(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    """Report states of different widths that are compared without a projection."""
    settings = teacher.settings
    pairs = [(pupil.blueprint.last, teacher.blueprint.last, f"{HERE}.cosine")] if settings.cosine else []
    for pair in _pairs(settings.hidden, pupil):
        own, other = _plan(pupil.blueprint, pair.side), _plan(teacher.blueprint, pair.side)
        pairs += [] if own is None or other is None else [(own, other, f"{HERE}.hidden{pair.at}")]
    for own, other, at in pairs:
        if own.d_model != other.d_model and not settings.projection:
            text = f"has d_model {other.d_model}, this model {own.d_model}"
            yield Problem("", f"{text}; set projection: true, or remove this key", at=at)


def _layers(teacher: TeacherRun, pupil: Pupil) -> Iterator[Problem]:
    """Report layers that the teacher lacks, and attention weights that cannot be compared."""
    for name in ("hidden", "attention"):
        for pair in _pairs(getattr(teacher.settings, name), pupil):
            plan, own = _plan(teacher.blueprint, pair.side), _plan(pupil.blueprint, pair.side)
            at = f"{HERE}.{name}{pair.at}"
            if plan is None or own is None:
                yield Problem("", f"has no {pair.side}", at=at)
            elif name == "hidden" and (plan.streams(0), own.streams(0)) != (None, None):
                text = "streams of a residual layout cannot be compared as hidden states; remove this key"
                yield Problem("", text, at=at)
            elif pair.other >= plan.num_layers:
                text = f"has no layer {pair.other}: its {pair.side} has layers 0 to {plan.num_layers - 1}"
                yield Problem("", text, at=at)
            elif name == "attention" and not shows_attention(plan, pair.other):
                yield Problem("", f"has no attention in layer {pair.other} that exposes its weights", at=at)
            elif name == "attention" and (heads := _heads(plan, pair.other)) != _heads(own, pair.own):
                text = f"has {heads} heads in layer {pair.other}, this model {_heads(own, pair.own)}"
                yield Problem("", f"{text}; attention weights are compared head by head", at=at)


def _pairs(layers: Mapping[str, Any], pupil: Pupil) -> list[LayerPair]:
    return list(layer_pairs(layers, pupil.blueprint.last.side))


def _heads(plan: StackPlan, layer: int) -> int | None:
    sublayers = plan.layers[plan.order[layer]].sublayers
    found = next(one.config for one in sublayers if one.name == "attention")
    return found.heads() if isinstance(found, AttentionFacts.Config) else None


def _plan(blueprint: Blueprint, side: str) -> StackPlan | None:
    return next((plan for plan in blueprint.stacks() if plan.side == side), None)


FOLDER = "sequences"  # cache in the teacher's folder
Example = dict[str, str]


def rewritten(
    teacher: TeacherRun,
    examples: Sequence[Mapping[str, str]],
    objective: Objective,
    generate: Generate,
    device: torch.device,
    reporter: Reporter,
) -> list[Example]:
    """Replace the targets with the teacher's outputs, which are cached by teacher, data and generation options.

    Examples whose source is too long for the teacher keep their targets. Raise UsageError if it cannot generate.
    """
    strategy = teacher.settings.sequences
    if strategy is None:
        return [dict(example) for example in examples]
    sources = [example["source"] for example in examples]
    key = _key(teacher, sources, strategy, generate, objective)
    file = teacher.folder.path / FOLDER / f"{key[:16]}.json"
    targets = _kept(file, key, len(sources))
    if targets is None:
        reporter.say(f"{teacher.folder}: generating {counted(len(sources), 'target')}")
        targets = _written(teacher, sources, strategy, objective, generate, device)
        write_json(file, {"key": key, "targets": targets, "sum": key_of(targets)})
    long = sum(target is None for target in targets)
    left = f"; {long:,} sources are too long for the teacher and keep their targets" if long else ""
    reporter.say(f"{counted(len(sources), 'target')} generated by the teacher, cached in {file}{left}")
    return [
        {**example, "target": example["target"] if target is None else target}
        for example, target in zip(examples, targets, strict=True)
    ]


def _key(
    teacher: TeacherRun, sources: Sequence[str], strategy: Config, generate: Generate, objective: Objective
) -> str:
    """Hash everything that determines the outputs."""
    files = [sha256_of(teacher.folder / name) for name in (WEIGHTS, *tokenizer_files(teacher.folder))]
    rules = {**spell(generate), "strategy": spell(strategy)}
    made = {"teacher": files, "sources": sources, "generate": rules, "objective": spell(objective.config)}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _kept(file: Path, key: str, count: int) -> list[str | None] | None:
    """Read cached targets, or return None if there is no cache. Raise RunError if it is invalid, or not of this run."""
    for path, is_right in ((file.parent, file.parent.is_dir()), (file, file.is_file())):
        if path.is_symlink() or (path.exists() and not is_right):
            raise RunError(f"{path}: is a link, or not a {'file' if path is file else 'folder'}; remove it")
    if not file.exists():
        return None
    found = read_json(file)
    targets = found.get("targets") if isinstance(found, dict) and found.get("key") == key else None
    texts = [one for one in targets if isinstance(one, str | None)] if isinstance(targets, list) else []
    if len(texts) == count and found.get("sum") == key_of(texts):
        return texts
    why = "has changed, or does not contain the targets of these examples"
    raise RunError(f"{file}: {why}; delete it to generate them again")


def _written(
    teacher: TeacherRun,
    sources: Sequence[str],
    strategy: Config,
    objective: Objective,
    generate: Generate,
    device: torch.device,
) -> list[str | None]:
    """Generate the teacher's output for each source, or None if the source is too long."""
    writer = _writer(teacher, strategy, generate, device)
    bound = most_positions(writer.model, next(teacher.blueprint.stacks()).side) or 2**62
    objective.rows.bind(teacher.tokenizer)
    read = objective.rows.read(sources, teacher.tokenizer.source)
    found = iter(writer.write([ids for ids in read if len(ids) <= bound], scored=False))
    return [next(found)[0].text if len(ids) <= bound else None for ids in read]


def _writer(teacher: TeacherRun, strategy: Config, generate: Generate, device: torch.device) -> Writer:
    model, start = teacher.model(device), None
    if teacher.blueprint.encoder is not None:
        own = dict(teacher.blueprint.special_ids) if teacher.recipe.objective is None else {}
        start = own.get("start", teacher.tokenizer.special_ids.get("start"))
    writer = make_writer(StepDecoder(model), teacher.tokenizer, generate, start, None, {"strategy": strategy})
    writer.strategy.bind(teacher.tokenizer, _no_draft)
    writer.check()
    return writer


def _no_draft(path: str) -> tuple[StepDecoder, Tokenizer]:
    raise UsageError(f"train.teacher.sequences: the draft model {path} would not change the outputs; remove it")
