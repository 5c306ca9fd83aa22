"""`tfkit study --on ray`: on a local cluster of two nodes, where ray is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.studies.small import study
from tfkit.cli.main import main
from tfkit.core.errors import UsageError
from tfkit.studies.arms import StudySource
from tfkit.studies.on_ray import RayCluster, share
from tfkit.studies.plan_file import keep_plan
from tfkit.studies.planning import make_plan
from tfkit.studies.runner import Runner, StudyProgress

from ..sampling import looped

pytestmark = pytest.mark.full


@looped(
    ("cpus", "jobs", "each"),
    [([16, 8], 1, 8), ([16, 8], 2, 8), ([8, 8], 4, 4), ([2, 2], 16, 1), ([0, 4], 1, 4), ([], 3, 1)],
)
def test_a_task_fits_into_the_smallest_node(cpus: list[float], jobs: int, each: int) -> None:
    assert share(cpus, jobs) == each


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = CliRunner().invoke(main, ["study", str(study(tmp_path)), "--on", "ray", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and 'pip install "ray>=2.50"' in result.stderr
    assert not (tmp_path / "out" / "study.json").exists()


def test_commands_are_started_nowhere(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["study", str(study(tmp_path)), "--on", "ray", "--commands"])
    assert result.exit_code == 2 and "--commands and --on cannot be combined" in result.stderr


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two nodes with one CPU each."""
    found = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    found.init(address=cluster.address, log_to_driver=False)
    try:
        yield found
    finally:
        found.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_two_nodes_train_a_study(ray: Any, tmp_path: Path) -> None:
    source, out = StudySource(str(study(tmp_path, compare=["wide"], seeds=2))), tmp_path / "out"
    plan = make_plan(source, out, timed=False)
    keep_plan(out, plan)
    runner = Runner(source, plan, out, 2, RayCluster(2))
    most: list[int] = []
    assert runner.run(lambda progress: most.append(len(progress.workers)))
    assert max(most) == 2 and not runner.progress.failed
    assert all(runner.board.state(run) == "done" for run in runner.progress.runs)


@pytest.mark.slow
def test_an_interrupted_task_saves_and_goes_on(ray: Any, tmp_path: Path) -> None:
    file = study(tmp_path, more={"train": {"steps": 400, "evaluate_every": 400}}, compare=["wide"], seeds=1)
    source, out = StudySource(str(file)), tmp_path / "out"
    plan = make_plan(source, out, timed=False)
    keep_plan(out, plan)
    runner = Runner(source, plan, out, 1, RayCluster(1))

    def stop(progress: StudyProgress) -> None:
        if progress.workers and runner.board.step(progress.workers[0].run) > 5:
            runner._stop(2, None)

    assert not runner.run(stop) and not runner.progress.failed
    checkpoints = list((out / "runs" / "baseline-s0" / "checkpoints").iterdir())
    assert checkpoints, "it saved before it stopped"
    again = Runner(source, plan, out, 1, RayCluster(1))
    assert again.run(lambda progress: time.sleep(0.01)) and not again.progress.failed


@pytest.mark.slow
def test_a_task_that_is_lost_is_told_and_stops_no_other(ray: Any, tmp_path: Path) -> None:
    source, out = StudySource(str(study(tmp_path, compare=["wide"], seeds=1))), tmp_path / "out"
    plan = make_plan(source, out, timed=False)
    keep_plan(out, plan)
    cluster = RayCluster(1)
    train = cluster.task
    calls: list[int] = []

    class Once:
        """The first task fails before it trains."""

        def remote(self, words: list[str], folder: str, log: str, threads: int) -> Any:
            calls.append(1)
            return train.remote(words, "/no/such/folder" if len(calls) == 1 else folder, log, threads)

    cluster.task = Once()
    runner = Runner(source, plan, out, 1, cluster)
    assert runner.run(lambda progress: None)
    [why] = runner.progress.failed.values()
    assert why.startswith("its task was lost:")


def test_an_address_without_a_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        """A ray that reaches nobody."""

        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: Any) -> None:
            raise ConnectionError("Could not find any running Ray instance\nand more")

    monkeypatch.setattr("tfkit.studies.on_ray.ray_module", lambda: Ray)
    with pytest.raises(UsageError, match=r"--on ray: Could not find any running Ray instance$"):
        RayCluster(1)
