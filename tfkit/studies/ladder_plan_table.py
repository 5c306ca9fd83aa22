"""Output of a ladder before training: its sizes, their tokens and FLOPs, and the estimated time."""

from __future__ import annotations

from tfkit.core.console import Console
from tfkit.reports.parts_table import rows
from tfkit.studies.ladder import LadderPlan
from tfkit.training.progress import duration

HEADS = ["size", "layer parameters (N)", "tokens (D)", "FLOPs", "runs", "time each"]


def print_ladder(plan: LadderPlan, console: Console) -> None:
    """Print a line for each size on each budget."""
    cells = []
    for arm in plan.arms:
        size, seconds = plan.size(arm), plan.seconds(arm)
        ending = ", held out" if arm is plan.held_out else ""
        tokens, flops = f"{plan.tokens(arm):,.0f}", f"{plan.flops(arm):.2e}"
        time = "" if seconds is None else duration(seconds)
        cells.append([f"{size.name}{ending}", f"{size.parameters:,}", tokens, flops, str(len(plan.seeds)), time])
    rows(console, cells, HEADS)


def announced(plan: LadderPlan, jobs: int) -> str:
    """Summarize the number of runs with their total FLOPs and time."""
    seeds = len(plan.seeds)
    seconds = sum(plan.seconds(arm) or 0.0 for arm in plan.arms) * seeds / jobs
    flops = sum(plan.flops(arm) for arm in plan.arms) * seeds
    text = (
        f"{plan.most_runs} runs of {len(plan.sizes)} sizes; seeds {', '.join(map(str, plan.seeds))}; {flops:.2e} FLOPs"
    )
    return f"{text}; about {duration(seconds)}" + (f" with {jobs} at a time" if jobs > 1 else "")
