"""Selection of metrics for a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tfkit.core.component import Config
from tfkit.core.registry import REGISTRY
from tfkit.core.slots import default_metrics
from tfkit.training.metric import Metric
from tfkit.training.objective import Objective


def chosen_metrics(configs: Sequence[Config], objective: Objective) -> list[Metric]:
    """Metrics of `train.metrics`; by default the objective's, with BLEU only if sacrebleu is installed.

    Entity tags (B-name, I-name, O) are also scored by entity F1.
    """
    if not configs:
        own = default_metrics(type(objective))
        names = [name for name in own if name != "bleu" or importlib.util.find_spec("sacrebleu")]
        if "tags" in objective.capabilities and any(label.startswith("B-") for label in objective.rows.labels):
            names.append("entity_f1")
        configs = [REGISTRY.get("metric", name).Config() for name in names]
    return [config.build() for config in configs]
