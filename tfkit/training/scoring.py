"""Scores of a model on examples: loss, metrics and sample outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfkit.core.blueprint import StackPlan
from tfkit.core.component import Config
from tfkit.core.errors import RunError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.stepper import most_positions
from tfkit.models import Model
from tfkit.storage.checksums import write_json
from tfkit.storage.files import read_json
from tfkit.training.feed import Feed
from tfkit.training.metric import Metric, as_compared, length_of
from tfkit.training.objective import Objective
from tfkit.training.objective.base import text_fields
from tfkit.training.samples import SampleOutput
from tfkit.training.validation import total_loss

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
