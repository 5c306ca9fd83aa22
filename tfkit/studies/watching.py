"""Progress display of a study: a live table on a terminal, otherwise a line per event."""

from __future__ import annotations

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tfkit.core.console import Console
from tfkit.core.output import printable
from tfkit.reports.parts_table import rows
from tfkit.studies.plan import Plan, PlannedRun
from tfkit.studies.runner import StudyProgress
from tfkit.training.progress import duration

FRESH = 0.5  # seconds between two refreshes


def announce(plan: Plan, jobs: int, console: Console) -> None:
    """Print the runs of a plan and the estimated time."""
    heads, cells = plan.table()
    rows(console, cells, heads)
    console.print(Text(plan.summary(jobs)), soft_wrap=True)
    for note in plan.notes:
        console.print(Text(f"note: {printable(note)}"), soft_wrap=True)


class Watcher:
    """Display of the progress of a study."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._printed = 0
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Watcher:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: StudyProgress) -> None:
        """Print new events and update the table."""
        for event in progress.events[self._printed :]:
            self._printed += 1
            left = progress.left()
            ending = "" if left is None else f", {duration(left)} left"
            self.console.print(Text(f"{printable(event)} ({summary(progress)}{ending})"), soft_wrap=True)
        if self._live is not None:
            self._live.update(self._table(progress))

    def _table(self, progress: StudyProgress) -> Group:
        plan = progress.plan
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("variant", overflow="fold")
        for seed in plan.seeds:
            table.add_column(f"seed {seed}", justify="right")
        best = progress.board.best()
        for arm in plan.trained:
            cells = []
            for seed in plan.seeds:
                tuned = best.get(arm.name)
                runs = plan.tuning(arm) if tuned is None else [PlannedRun(arm.name, seed, tuned)]
                known = tuned is not None or seed == plan.seeds[0]
                cells.append(" ".join(_cell(progress, run) for run in runs) if known else ".")
            table.add_row(arm.name, *cells)
        left = progress.left()
        ending = "" if left is None else f", {duration(left)} left"
        return Group(table, Text(f"{summary(progress)}{ending}", style="dim"))


def _cell(progress: StudyProgress, run: PlannedRun) -> str:
    """Return the first measure of a finished run, else its progress or state."""
    if run in progress.failed:
        return "failed"
    if any(worker.run == run for worker in progress.workers):
        return f"{100 * progress.board.step(run) // progress.plan.run_steps(run)} %"
    state = progress.board.state(run)
    if state == "done":
        value = progress.board.scores(run).get(progress.plan.measure[0])
        return "done" if value is None else f"{value:.4g}"
    return "." if state == "waiting" else state


def summary(progress: StudyProgress) -> str:
    """Count the done, running and failed runs."""
    states = [progress.board.state(run) for run in progress.runs]
    ended = sum(state != "waiting" for state in states)
    text = f"{ended} of {progress.plan.most_runs} done, {len(progress.workers)} running"
    return text + (f", {len(progress.failed)} failed" if progress.failed else "")
