"""One of two processes is killed at random steps: the other ends, and 1 and 4 processes go on to the same losses."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.small import trained
from tests.training.test_processes import differences, recipe, run, together
from tfkit.core.errors import RunError
from tfkit.runs.checkpoint import Checkpoints, step_of
from tfkit.training.loop import Trainer

pytestmark = pytest.mark.full

STEPS, EVERY, KILLS = 8, 2, 20
STEP = Trainer._step


def killed(folder: Path, loaded: Any, rank: int, at: int, before: bool) -> list[int]:
    """Train on two processes, of which `rank` is killed before or after it takes step `at`; return their statuses."""

    def work(own: int) -> None:
        def dies(self: Trainer, *args: Any) -> dict[str, Any]:
            last = own == rank and self.progress.step + 1 == at
            record = {} if last and before else STEP(self, *args)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return record

        Trainer._step = dies  # type: ignore[method-assign]  # in a process of its own
        try:
            trained(loaded, folder)
        except RunError as error:
            (folder / f"message-{own}.txt").write_text(str(error))

    return together(2, work)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", [False, True])
def test_a_killed_process_costs_no_more_than_the_steps_since_a_checkpoint(tmp_path: Path, shard: bool) -> None:
    settings = {"steps": STEPS, "evaluate_every": EVERY, "checkpoint_every": EVERY, "parallel": {"shard": shard}}
    loaded, draw = recipe(tmp_path, **settings), random.Random(int(shard))
    unbroken = run(loaded, tmp_path / "unbroken", 1)
    for number in range(KILLS // 2):
        rank, at, before = draw.randrange(2), draw.randint(1, STEPS), draw.random() < 0.5
        place = f"kill {number}: process {rank}, {'before' if before else 'after'} step {at}"
        folder = tmp_path / f"{number}"
        statuses = killed(folder, loaded, rank, at, before)
        assert statuses[rank] == 256 - signal.SIGKILL and statuses[1 - rank] == (0 if rank else 1), place
        sound = Checkpoints(folder / "checkpoints").sound(print)
        lost = EVERY if rank == 0 else 0  # the checkpoint that process 0 was writing
        assert sound is not None and step_of(sound) >= (at - 1) // EVERY * EVERY - lost, place
        if rank:
            message = (folder / "message-0.txt").read_text()
            assert message.endswith(f"training stopped. --resume continues from step {step_of(sound)}"), place
        worst = []
        for count in (1, 4):
            other = shutil.copytree(folder, tmp_path / f"{number}-{count}")
            worst.append(max(differences(unbroken, run(loaded, other, count, resume=True))))
        assert max(worst) < 2e-5, place
        print(f"{place}: {sound.name}; on 1 and 4 processes the losses differ by {worst[0]:.1e} and {worst[1]:.1e}")
