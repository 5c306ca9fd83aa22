"""Targets of training that the teacher writes (Kim and Rush 2016, arXiv 1606.07947), kept in a file of its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tfkit.core.checksums import sha256_of
from tfkit.core.component import Config, spell
from tfkit.core.errors import RunError, UsageError
from tfkit.core.files import read_json, write_json
from tfkit.core.output import counted
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.stepper import most_positions
from tfkit.generation.writer import Writer, make_writer
from tfkit.recipe.settings.sections import Generate
from tfkit.training.folder import TOKENIZER, WEIGHTS
from tfkit.training.objective import Objective
from tfkit.training.progress import Reporter
from tfkit.training.teacher import TeacherRun

FOLDER = "sequences"  # in the teacher's folder
Example = dict[str, str]


def rewritten(
    teacher: TeacherRun,
    examples: Sequence[Mapping[str, str]],
    objective: Objective,
    generate: Generate,
    device: torch.device,
    reporter: Reporter,
) -> list[Example]:
    """Return the examples with the teacher's texts as their targets, written once for each teacher, data and search.

    A source that is too long for the teacher keeps its target. Raises UsageError for what the teacher cannot write.
    """
    strategy = teacher.settings.sequences
    if strategy is None:
        return [dict(example) for example in examples]
    sources = [example["source"] for example in examples]
    key = _key(teacher, sources, strategy, generate, objective)
    file = teacher.folder.path / FOLDER / f"{key[:16]}.json"
    targets = _kept(file, key, len(sources))
    if targets is None:
        reporter.say(f"{teacher.folder} writes {counted(len(sources), 'target')}")
        targets = _written(teacher, sources, strategy, objective, generate, device)
        file.parent.mkdir(exist_ok=True)
        write_json(file, {"key": key, "targets": targets})
    long = sum(target is None for target in targets)
    left = f"; {long:,} sources are too long for it and keep their target" if long else ""
    reporter.say(f"{counted(len(sources), 'target')} of the teacher, from {file}{left}")
    return [
        {**example, "target": example["target"] if target is None else target}
        for example, target in zip(examples, targets, strict=True)
    ]


def _key(
    teacher: TeacherRun, sources: Sequence[str], strategy: Config, generate: Generate, objective: Objective
) -> str:
    """The hash of all that the texts depend on."""
    files = [sha256_of(teacher.folder / name) for name in (WEIGHTS, TOKENIZER)]
    rules = {**spell(generate), "strategy": spell(strategy)}
    made = {"teacher": files, "sources": sources, "generate": rules, "objective": spell(objective.config)}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def _kept(file: Path, key: str, count: int) -> list[str | None] | None:
    """The targets in a file, None if there is none; raises RunError for a file that holds something else."""
    if not file.is_file():
        return None
    found = read_json(file)
    targets = found.get("targets") if isinstance(found, dict) and found.get("key") == key else None
    if isinstance(targets, list) and len(targets) == count and all(isinstance(one, str | None) for one in targets):
        return targets
    raise RunError(f"{file}: holds no targets of these examples; delete it, and they are written again")


def _written(
    teacher: TeacherRun,
    sources: Sequence[str],
    strategy: Config,
    objective: Objective,
    generate: Generate,
    device: torch.device,
) -> list[str | None]:
    """The teacher's text for each source, None for a source that is too long."""
    writer = _writer(teacher, strategy, generate, device)
    bound = most_positions(writer.model, next(teacher.blueprint.stacks()).side) or 2**62
    objective.rows.bind(teacher.tokenizer)
    read = [objective.rows.prompt(ids) for ids in teacher.tokenizer.encode_batch(sources)]
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
    raise UsageError(f"train.teacher.sequences: the draft {path} would change nothing of the texts; leave it out")
