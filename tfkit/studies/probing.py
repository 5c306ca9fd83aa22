"""Study probes: the study's architecture trained on generated prompt-answer pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tfkit.core.errors import Fault, RecipeError
from tfkit.core.registry import REGISTRY
from tfkit.core.synonyms import nearest
from tfkit.data.corpus import Probe
from tfkit.recipe.load import Recipe
from tfkit.studies.settings import STEPS, ProbeMeasure, Study

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
