"""Which metrics judge a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tfkit.core.component import Config
from tfkit.core.registry import REGISTRY
from tfkit.training.metric import Metric
from tfkit.training.objective import Objective


def chosen_metrics(configs: Sequence[Config], objective: Objective) -> list[Metric]:
    """Those of `train.metrics`; without any, perplexity, and of translations exact match and (with sacrebleu) BLEU."""
    if not configs:
        names = ["perplexity"]
        if objective.reads == "encoder_decoder":
            names += ["bleu"] if importlib.util.find_spec("sacrebleu") else []
            names += ["exact_match"]
        configs = [REGISTRY.get("metric", name).Config() for name in names]
    return [config.build() for config in configs]
