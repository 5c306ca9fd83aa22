"""Scores of a model on examples: loss, metrics and sample outputs; validation, and checks before training."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import IO, NamedTuple

import torch

from tfkit.core.blueprint import Blueprint, StackPlan
from tfkit.core.component import Config
from tfkit.core.errors import DataError, RecipeError, RunError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.data.corpus.base import cells, without_tag
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.logits.guided import Guided
from tfkit.generation.rules import bound_rules
from tfkit.generation.search import Search, step_of
from tfkit.generation.stepper import most_positions
from tfkit.generation.texts import check_invariant
from tfkit.models import Model, build_model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.section_rules import writes
from tfkit.runs.folder import RESOLVED, WEIGHTS, RunFolder, load_tokenizer
from tfkit.runs.history import autocast, choose_device
from tfkit.runs.supply import saved_recipe
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json
from tfkit.training.feed import Feed
from tfkit.training.metric import Metric, as_compared
from tfkit.training.objective import Objective
from tfkit.training.objective.base import text_fields
from tfkit.training.objective.rows import extra_batch, extra_of
from tfkit.training.processes import Team
from tfkit.training.splits import Split, learned_from

SHOWN = 160  # maximum characters of a text


class SampleOutput(NamedTuple):
    """A source with the model's output and the reference."""

    source: str
    output: str
    reference: str

    def line(self) -> str:
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
Texts = tuple[list[str], list[str]]  # outputs and references


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
    generate: Callable[..., list[str]]  # (sources, inputs=extra inputs) -> texts

    def scores(self, examples: Examples, metrics: Sequence[Config]) -> dict[str, float]:
        """Compute the loss and the metrics on examples. The default metrics are the objective's."""
        nats, targets = total_loss(self.model, self.feed(examples))
        loss = nats / targets
        scores = {"loss": loss}
        texts: dict[str, Texts] = {}
        for metric in chosen_metrics(metrics, self.objective):
            if metric.reads == "loss":
                if metric.per_character:
                    metric.check_units(self._written(examples, metric))
                scores[metric.part_name] = self._of_loss(metric, examples, nats, targets)
                for name, rows in metric.groups(examples, text_fields(self.objective)).items():
                    some = [examples[row] for row in rows]
                    with contextlib.suppress(DataError, ZeroDivisionError):  # no usable example, as is logged
                        scores[name] = self._of_loss(metric, some, *total_loss(self.model, self.feed(some)))
            else:
                kind = "probabilities" if metric.compares == "probabilities" else "texts"
                texts[kind] = texts.get(kind) or self.outputs(examples, metric.part_name, kind)
                scores |= self._by_target(metric, examples, texts[kind])
        return scores

    def _by_target(self, metric: Metric, examples: Examples, texts: Texts) -> dict[str, float]:
        """Score the present values of each target, and the mean over targets, if the references name several."""
        outputs, references = ([cells(text) for text in side] for side in texts)
        if not self.objective.rows.labelled or "" in references[0]:
            return self._score(metric, examples, *texts)
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for target in references[0]:
            rows = [row for row, reference in enumerate(references) if reference[target]]
            sides = ([side[row][target] for row in rows] for side in (outputs, references))
            for name, score in self._score(metric, [examples[row] for row in rows], *sides).items() if rows else ():
                found[name][f"{name}.{target}"] = score
        means = {name: fmean(by_target.values()) for name, by_target in found.items()}
        return means | {name: score for by_target in found.values() for name, score in by_target.items()}

    def _score(
        self, metric: Metric, examples: Examples, outputs: Sequence[str], references: Sequence[str]
    ) -> dict[str, float]:
        """Score outputs against their references, also those of each group."""
        outputs, references = (
            [as_compared(metric, *one) for one in zip(examples, side, strict=True)] for side in (outputs, references)
        )
        scores = {metric.config.scores()[0]: metric.score(outputs, references)}
        for name, rows in metric.groups(examples, text_fields(self.objective)).items():
            scores[name] = metric.score([outputs[row] for row in rows], [references[row] for row in rows])
        if "source" in text_fields(self.objective):
            scores |= metric.of_sources([without_tag(example)["source"] for example in examples], references)
        return scores

    def _of_loss(self, metric: Metric, examples: Examples, nats: float, targets: int) -> float:
        units = max(1, metric.units(self._written(examples, metric))) if metric.per_character else targets
        return metric.from_loss(nats / units)

    def _written(self, examples: Examples, metric: Metric) -> list[str]:
        """Return the predicted texts. Raise UsageError if no text is predicted."""
        if "characters" not in self.objective.capabilities:
            text = "requires an objective that predicts text"
            raise UsageError(f"{metric.part_name} {text}; {self.objective.part_name} does not")
        return [example[self.objective.rows.fields[-1]] for example in examples]

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

    def outputs(self, examples: Examples, purpose: str, kind: str = "texts") -> Texts:
        """Return the model's outputs and the references. The output is "" if the source is too long."""
        answers = self.objective.answers
        if answers is None or answers.reference is None:
            name = self.objective.part_name
            raise UsageError(f"{purpose} compares outputs with references, but {name} has none")
        if answers.predicts:
            predictions = answers.predict(self.model, examples, self.tokenizer)
            write = answers.chances if kind == "probabilities" else answers.text
            outputs = [write(prediction) for prediction in predictions]
            return outputs, [answers.wanted(example) for example in examples]
        extra = self.objective.rows.extra(examples)
        if self._reads.reads_vectors:
            texts = self.generate([example["vectors"] for example in examples], **extra_of(extra_batch(extra)))
            return texts, [one["target"] for one in examples]
        sources = [example["source"] for example in examples]
        bound = most_positions(self.model, self._reads.side) or 2**62
        fits = [len(ids) <= bound for ids in self.objective.rows.read(sources, self.tokenizer.source)]
        read = [text for text, fit in zip(sources, fits, strict=True) if fit]
        own = [one for one, fit in zip(extra, fits, strict=True) if fit]
        written = iter(self.generate(read, **extra_of(extra_batch(own))))
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
    scored = [*((name, recipe.train.metrics) for name in data.measured()), ("valid", recipe.train.validate.metrics)]
    for name, metrics in scored:
        for config in metrics if name in splits else ():
            _check_metric(config.build(), splits[name], splits["train"])
    if writes(blueprint):
        _check_writing(recipe, blueprint, tokenizer, learned_from(data, splits["train"]))


def _check_metric(metric: Metric, measured: Split, train: Split) -> None:
    """Check that the metric accepts all references and labels, and can score its groups."""
    with measured.located():
        metric.groups(measured.examples, text_fields(measured.objective))
    if metric.reads == "text":
        for split in dict.fromkeys([measured, train] if train.objective.rows.labels else [measured]):
            split.check_references(metric)
    elif metric.per_character:
        metric.check_units([example[measured.objective.rows.fields[-1]] for example in measured.examples])


def _check_writing(recipe: Recipe, blueprint: Blueprint, tokenizer: Tokenizer, learned: str) -> None:
    """Check the generation rules with the tokenizer, and the strategy with the rules, model and draft model."""
    settings = recipe.generate
    for slot in ("logits", "stop"):
        for place, config in enumerate(getattr(settings, slot)):
            with _at(recipe, f"generate.{slot}[{place}]", learned):
                bound_rules(*([config], []) if slot == "logits" else ([], [config]), tokenizer)
    if settings.invariant:
        with _at(recipe, "generate.invariant", learned):
            check_invariant(torch.empty(0, device=choose_device(recipe.train.device)), None, step_of(settings))
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
