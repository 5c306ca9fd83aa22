"""Scores of a model on examples: loss, metrics and sample outputs; validation, and checks before training."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

import torch

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config
from tfkit.core.errors import DataError, RecipeError, RunError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.logits.guided import Guided
from tfkit.generation.rules import bound_rules
from tfkit.generation.search import Search, step_of
from tfkit.generation.stepper import most_positions
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.section_rules import writes
from tfkit.runs.folder import RESOLVED, WEIGHTS, RunFolder, load_tokenizer
from tfkit.runs.history import autocast
from tfkit.runs.supply import saved_recipe
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json
from tfkit.training.feed import Feed
from tfkit.training.metric import Metric, as_compared, length_of
from tfkit.training.objective import Objective
from tfkit.training.objective.base import text_fields
from tfkit.training.processes import Team
from tfkit.training.splits import Split, learned_from

SHOWN = 160  # maximum characters of a text


class SampleOutput(NamedTuple):
    """A source with the model's output and the reference."""

    source: str
    output: str
    reference: str

    def line(self) -> str:
        """Format as one line."""
        return f"{cut(self.source)} -> {cut(self.output)} (reference: {cut(self.reference)})"


def cut(text: str) -> str:
    """Truncate a text for display, because an undertrained model may not stop generating."""
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def print_samples(samples: Sequence[SampleOutput], stream: IO[str]) -> None:
    """Print the samples as a table, with correct outputs in green. Raise OutputLost if the stream fails."""
    from rich.table import Table
    from rich.text import Text

    from tfkit.core.figures import Console

    table = Table(show_lines=False)
    for heading in ("source", "output", "reference"):
        table.add_column(heading, overflow="fold")
    for source, output, reference in samples:
        colour = "green" if output == reference else ""
        table.add_row(Text(cut(source)), Text(cut(output), colour), Text(cut(reference)))
    Console(stream).print(table)


@dataclass(frozen=True)
class ValidationScores:
    """Metrics other than the loss, and sample outputs of a validation."""

    scores: dict[str, float] = field(default_factory=dict)
    samples: Sequence[SampleOutput] = ()


def mean_loss(model: Model, feed: Feed, precision: str = "float32", team: Team | None = None) -> float:
    """Return the loss in nats per target over all items of `feed`, without dropout, smoothing or auxiliary losses.

    Batches are split over the processes of `team`, which all return the same result.
    """
    total, count = total_loss(model, feed, precision, team=team)
    return total / count if count else float("nan")


def total_loss(
    model: Model, feed: Feed, precision: str = "float32", batches: int | None = None, team: Team | None = None
) -> tuple[float, int]:
    """Return the total loss in nats and the number of targets, over `feed` or its first `batches` batches."""
    team = team or Team()
    before = model.training
    model.eval()
    plan = feed.plan(0)[:batches]
    sums = torch.zeros(-(-len(plan) // team.size), 2, dtype=torch.float64)  # this process's nats and targets by batch
    try:
        # not inference_mode, because tensors that parts cache must remain usable in training
        with torch.no_grad(), autocast(feed.device, precision):
            for place, first in enumerate(range(0, len(plan), team.size)):
                batch = min(first + team.rank, len(plan) - 1)  # repeated, so that all processes gather equally often
                loss = feed.objective.loss(model, feed.make(0, batch, plan[batch]), training=False)
                if batch == first + team.rank:
                    sums[place] = torch.tensor((loss.total.item(), loss.count), dtype=torch.float64)
    finally:
        model.train(before)
    nats, targets = team.gathered(sums).flatten(0, 1).T.tolist()
    return math.fsum(nats), int(sum(targets))


Examples = Sequence[Mapping[str, str]]


def chosen_metrics(configs: Sequence[Config], objective: Objective) -> list[Metric]:
    """Build the metrics in `configs`, or the objective's default metrics if there are none.

    The defaults include BLEU only if sacrebleu is installed, and entity F1 for entity tags (B-name, I-name, O).
    """
    if not configs:
        own = default_metrics(type(objective))
        names = [name for name in own if name != "bleu" or importlib.util.find_spec("sacrebleu")]
        if "tags" in objective.capabilities and any(label.startswith("B-") for label in objective.rows.labels):
            names.append("entity_f1")
        configs = [REGISTRY.get("metric", name).Config() for name in names]
    return [config.build() for config in configs]


@dataclass(frozen=True)
class Scorer:
    """Scores and outputs of a model. `feed` batches examples, and `generate` maps sources to texts."""

    model: Model
    objective: Objective
    tokenizer: Tokenizer
    feed: Callable[[Examples], Feed]
    generate: Callable[[Sequence[str]], list[str]]

    def scores(self, examples: Examples, metrics: Sequence[Config]) -> dict[str, float]:
        """Compute the loss and the metrics on examples. The default metrics are the objective's."""
        nats, targets = total_loss(self.model, self.feed(examples))
        loss = nats / targets
        scores = {"loss": loss}
        texts: tuple[list[str], list[str]] | None = None
        fields = text_fields(self.objective)
        for metric in chosen_metrics(metrics, self.objective):
            if metric.reads == "loss":
                per = nats / self._characters(examples, metric.part_name) if metric.per_character else loss
                scores[metric.part_name] = metric.from_loss(per)
            else:
                texts = texts or self.outputs(examples, metric.part_name)
                outputs, references = (
                    [as_compared(metric, *one) for one in zip(examples, side, strict=True)] for side in texts
                )
                scores[metric.config.scores()[0]] = metric.score(outputs, references)
                scores |= metric.by_length(outputs, references, [length_of(example, fields) for example in examples])
                if "source" in fields:
                    scores |= metric.of_sources([example["source"] for example in examples], references)
        return scores

    def _characters(self, examples: Examples, metric: str) -> int:
        """Count the characters of the predicted texts. Raise UsageError if the objective does not predict text."""
        if "characters" not in self.objective.capabilities:
            raise UsageError(f"{metric} requires an objective that predicts text; {self.objective.part_name} does not")
        written = self.objective.rows.fields[-1]
        return max(1, sum(len(example[written]) for example in examples))

    def samples(self, examples: Examples) -> list[SampleOutput]:
        """Return outputs with their references, or [] if the model does not map sources to targets."""
        fields = self.objective.rows.fields
        if self.model.blueprint.decoder is None or fields not in (("source", "target"), ("vectors", "target")):
            return []
        outputs, references = self.outputs(examples, "samples")
        sources = [example[fields[0]] for example in examples]
        return [SampleOutput(*texts) for texts in zip(sources, outputs, references, strict=True)]

    @property
    def _reads(self) -> StackPlan:
        return next(self.model.blueprint.stacks())

    def outputs(self, examples: Examples, purpose: str) -> tuple[list[str], list[str]]:
        """Return the model's outputs and the references. The output is "" if the source is too long."""
        answers = self.objective.answers
        if answers is None or answers.reference is None:
            name = self.objective.part_name
            raise UsageError(f"{purpose} compares outputs with references, but {name} has none")
        if answers.predicts:
            predictions = answers.predict(self.model, examples, self.tokenizer)
            outputs = [answers.text(prediction) for prediction in predictions]
            return outputs, [answers.wanted(example) for example in examples]
        if self._reads.reads_vectors:
            return self.generate([example["vectors"] for example in examples]), [one["target"] for one in examples]
        sources = [example["source"] for example in examples]
        bound = most_positions(self.model, self._reads.side) or 2**62
        fits = [len(ids) <= bound for ids in self.objective.rows.read(sources, self.tokenizer.source)]
        written = iter(self.generate([text for text, fit in zip(sources, fits, strict=True) if fit]))
        return [next(written) if fit else "" for fit in fits], [example["target"] for example in examples]


def keep_scores(file: Path, split: str, scores: Mapping[str, float]) -> None:
    """Set the scores of a split in evaluation.json. Raise RunError if the file is damaged."""
    before = read_json(file) if file.exists() else {}
    if not isinstance(before, dict):
        raise RunError(f"{file}: does not contain scores by split")
    write_json(file, {**before, split: scores})


def rehearse(
    recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, splits: Mapping[str, Split], longest: int | None
) -> None:
    """Raise RecipeError, UsageError, RunError or DataError if evaluation or generation would fail after training."""
    data = recipe.data
    if data is None:
        return
    for split in (splits[name] for name in ("test", "longer") if name in splits):
        if not split.examples:
            raise DataError(f"{split.corpus.name()}: contains no examples")
        if recipe.train.metrics:
            split.items(tokenizer, longest, data.batch)
    for measured in (splits[name] for name in data.measured() if recipe.train.metrics):
        for metric in chosen_metrics(recipe.train.metrics, measured.objective):
            _check_metric(metric, measured, splits["train"])
    if recipe.train.validate.metrics and "valid" in splits:
        for metric in chosen_metrics(recipe.train.validate.metrics, splits["valid"].objective):
            _check_metric(metric, splits["valid"], splits["train"])
    if writes(blueprint):
        _check_writing(recipe, blueprint, tokenizer, learned_from(data, splits["train"]))


def _check_metric(metric: Metric, measured: Split, train: Split) -> None:
    """Check that the metric accepts all references and labels."""
    if metric.reads == "text":
        for split in dict.fromkeys([measured, train] if train.objective.rows.labels else [measured]):
            split.check_references(metric)


def _check_writing(recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, learned: str) -> None:
    """Check the generation rules with the tokenizer, and the strategy with the rules, model and draft model."""
    settings = recipe.generate
    for slot in ("logits", "stop"):
        for place, config in enumerate(getattr(settings, slot)):
            with _at(recipe, f"generate.{slot}[{place}]", learned):
                bound_rules(*([config], []) if slot == "logits" else ([], [config]), tokenizer)
    with _at(recipe, "generate.strategy", learned):
        rules = bound_rules(settings.logits, settings.stop, tokenizer)
        strategy = settings.strategy.build()
        strategy.bind(tokenizer, _unread)
        strategy.check(Search(build_model(blueprint, device="meta"), [], [], rules, step=step_of(settings)))
        for rule in rules.logits:
            if blueprint.encoder is not None and isinstance(rule, Guided):
                rule.check_begin(first=True)  # without a prompt, the text starts at the first token


@contextlib.contextmanager
def _at(recipe: Recipe, path: str, learned: str) -> Iterator[None]:
    """Convert UsageError to RecipeError at this path."""
    try:
        yield
    except UsageError as error:
        text = str(error).removeprefix(f"{path.partition('[')[0]}: ").removeprefix(f"{path}.")
        raise RecipeError([recipe.fault(path, f"{text} ({learned})")]) from None


def _unread(path: str) -> tuple[StepDecoder, Tokenizer]:
    """Build the model of a run on meta, without weights, and load its tokenizer."""
    folder = RunFolder(Path(path))
    for name in (RESOLVED, WEIGHTS):
        if not (folder / name).is_file():
            raise RunError(f"{folder / name}: is missing")
    tokenizer = load_tokenizer(folder)
    recipe = saved_recipe(folder)
    blueprint = recipe.blueprint(tokenizer.sizes if recipe.unknown_vocab else None)
    return StepDecoder(build_model(blueprint, "meta")), tokenizer
