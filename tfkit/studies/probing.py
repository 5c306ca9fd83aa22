"""What makes a study's recipe a probe: the same architecture, on pairs that are made here."""

from __future__ import annotations

from typing import Any

from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Probe
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.study import STEPS, ProbeMeasure

SIZES = {"valid": 100, "test": 300}  # pairs


def probe_values(recipe: Recipe, probe: ProbeMeasure) -> dict[str, Any]:
    """The values by key that make `recipe` train on the probe; raises UsageError for what cannot be probed."""
    known = [name for name in REGISTRY.names("corpus") if issubclass(REGISTRY.get("corpus", name), Probe)]
    if probe.probe not in known:
        raise UsageError(f"study.measure: '{probe.probe}' is no probe; there are: {', '.join(known)}")
    blueprint = recipe.blueprint()
    if blueprint.decoder is None:
        raise UsageError("study.measure: a probe is answered by a decoder, and this model has none")
    splits = {f"data.{split}": {"type": probe.probe, "split": split, "count": count} for split, count in SIZES.items()}
    return {
        "study": None,
        "objective": "seq2seq" if blueprint.encoder is not None else "completion",
        "model.vocab_size": "tokenizer",
        "data.tokenizer": "word",
        "data.train": probe.probe,
        **splits,
        "train.metrics": [metric_of(probe.probe)],
        "train.validate.metrics": [],
        "train.validate.samples": 0,
        "train.validate.best": "loss",
        "train.samples": 0,
        "train.evaluations": None,
        "train.generation_rate": None,
        **({STEPS: probe.steps} if probe.steps is not None else {}),
    }


def metric_of(probe: str) -> str:
    """The metric that judges the answers to a probe."""
    part = REGISTRY.get("corpus", probe)
    return part.metric if issubclass(part, Probe) else "exact_match"
