"""A run on several processes: equal losses, and one writer."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.kills import forked
from tests.training.small import RECIPE, small, trained
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.functional.dropout import Draws, drawing, dropout
from tfkit.models import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import load_run
from tfkit.runs.checkpoint import Checkpoints
from tfkit.training.callback import Training
from tfkit.training.division import Division, Piece, check_division, piece_of
from tfkit.training.loop import Trainer
from tfkit.training.objective import Batch, Loss
from tfkit.training.processes import Team
from tfkit.training.progress import Reporter
from tfkit.training.setup import prepare
from tfkit.training.step import scale_gradients

from ..sampling import each, looped

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
WORDS = ["one", "two", "three", "four", "five", "six"]
LINES = [" ".join(WORDS[(3 * line + place * place) % 6] for place in range(2 + line % 7)) for line in range(40)]
PACKED = {
    "data.batch": {"tokens": 48, "size": None, "pack": True, "length": 16},
    "train.accumulate": 2,
    "train.clip_norm": 1.0,
}
SPECIAL = {"type": "word", "special_tokens": {"mask": "<mask>", "start": "<s>", "end": "</s>"}}
ENCODER = {
    "model.type": "encoder",
    "model.head": {"type": "masked_lm", "tied": True, "dropout": 0.1},
    "objective": "masked_lm",
    "data.tokenizer": SPECIAL,
}
PLAIN = {**PACKED, "model.parametrization": {"type": "mup", "base": {"d_model": 4, "layer.feedforward.d_ff": 4}}}
PAIR = {"model.type": "encoder_decoder", "objective": "denoising", "data.tokenizer": SPECIAL}
EXPERTS = {
    "type": "experts",
    "num_experts": 2,
    "num_active": 1,
    "expert": {"type": "mlp", "d_ff": 8},
    "router": {"type": "softmax", "balance_loss": 0.01},
}
GENERATOR = {key: value for key, value in RECIPE["model"].items() if key != "vocab_size"}
GENERATOR |= {"type": "encoder", "head": {"type": "masked_lm", "tied": True}}
ELECTRA = {
    "model.type": "encoder",
    "model.head": "discriminator",
    "objective": {"type": "replaced_token", "generator": GENERATOR},
    "data.tokenizer": SPECIAL,
    "train.metrics": [],
}
KINDS = {
    "decoder": {},
    "encoder": ENCODER,
    "pair": PAIR,
    "experts": {"model.layer.feedforward": EXPERTS},
    "electra": ELECTRA,
}


def recipe(folder: Path, overrides: dict[str, Any] | None = None, **train: Any) -> Recipe:
    """Return the small recipe on more lines than a batch has, with dropout."""
    for split, lines in (("train", LINES), ("valid", LINES[::5])):
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    values = {"steps": 20, "evaluate_every": 10, "checkpoint_every": 10, "optimizer": "adamw", **train}
    return small(folder, {"data.batch": {"size": 7}, **(overrides or {})}, **values)


def together(count: int, work: Callable[[int], object]) -> list[int]:
    """Call `work` in processes that connect as those of torchrun do. Return their exit statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}

    def member(rank: int) -> None:
        os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank))
        torch.set_num_threads(1)
        work(rank)

    children = []
    for rank in range(count):
        child = os.fork()
        if not child:
            os._exit(forked(partial(member, rank)) % 256)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run(loaded: Recipe, folder: Path, count: int, **options: Any) -> list[dict[str, Any]]:
    """Train on `count` processes. Return the lines of metrics.jsonl."""
    assert together(count, lambda _: trained(loaded, folder, **options)) == [0] * count
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[float]:
    """Compare the losses of all steps, and the counts."""
    assert [(line["step"], line["tokens"], line["targets"]) for line in one] == [
        (line["step"], line["tokens"], line["targets"]) for line in other
    ]
    keys = [(place, key) for place, line in enumerate(one) for key in line if key.endswith("loss")]
    assert len(keys) > len(one)  # validations too
    return [abs(one[place][key] - other[place][key]) for place, key in keys]


def test_two_processes_are_one_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = recipe(tmp_path, PACKED, validate={"metrics": ["perplexity"], "samples": 1})
    one, two = (run(loaded, tmp_path / str(count), count) for count in (1, 2))
    assert max(differences(one, two)) < 2e-5
    assert len({round(line["loss"], 3) for line in one}) > 10  # something is learned
    assert [line for line in capfd.readouterr().err.splitlines() if "reducer.cpp" not in line] == []
    assert (tmp_path / "2" / "train.log").read_text().count("step 20 of 20") == 1
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == sorted(
        path.name for path in (tmp_path / "1").iterdir()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["experts", "electra"])
def test_means_over_the_rows_of_a_process_are_averaged(tmp_path: Path, kind: str) -> None:
    """Two processes compute what one computes for the halves of each batch."""
    loaded = recipe(tmp_path, KINDS[kind], steps=6, evaluate_every=3, checkpoint_every=6)
    two = run(loaded, tmp_path / "2", 2)

    def in_halves(self: Division, batch: Batch, key: tuple[int, ...], scale: float, last: bool) -> Loss:
        halves = [self._backward(piece_of(batch, number, 2), key, scale) for number in range(2)]
        return Loss(halves[0].total + halves[1].total, halves[0].count + halves[1].count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Division, "backward", in_halves)
        one = run(loaded, tmp_path / "1", 1)
    assert max(differences(one, two)) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["decoder", "encoder", "pair"])
def test_one_two_and_four_processes_are_one_run(tmp_path: Path, kind: str) -> None:
    loaded = recipe(
        tmp_path, PLAIN if kind == "decoder" else KINDS[kind], steps=200, schedule={"type": "constant", "lr": 0.002}
    )
    one, two, four = (run(loaded, tmp_path / str(count), count) for count in (1, 2, 4))
    assert max(differences(one, two)) < 2e-5
    assert max(differences(one, four)) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_high_rate_multiplies_rounding(tmp_path: Path) -> None:
    still = {"data.test": None, "train.metrics": [], "train.steps": 40, "train.evaluate_every": 40}
    loaded = load_recipe("translate-numbers", {**still, "train.device": "cpu"})
    found = differences(*(run(loaded, tmp_path / str(count), count) for count in (1, 2)))
    assert len(found) == 41  # the validation is the last
    assert max(found[:5]) < 1e-5 and max(found[:20]) < 1e-3 and max(found) < 1e-2


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    unbroken = run(recipe(tmp_path), tmp_path / "one", 1)
    loaded = recipe(tmp_path, steps=10)
    run(loaded, tmp_path / "other", 2)
    assert max(differences(unbroken, run(recipe(tmp_path), tmp_path / "other", 3, resume=True))) < 2e-5


def test_a_dead_process_ends_the_others_with_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, folder, step = recipe(tmp_path), tmp_path / "run", Trainer._step

    def dies(self: Trainer, *args: Any) -> dict[str, Any]:
        if self.team.rank == 1 and self.progress.step == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *args)

    monkeypatch.setattr(Trainer, "_step", dies)

    def work(rank: int) -> None:
        try:
            trained(loaded, folder)
        except RunError as error:
            (tmp_path / f"{rank}.txt").write_text(str(error))

    assert together(3, work)[1:] == [256 - signal.SIGKILL, 1]
    assert [path.name for path in tmp_path.glob("?.txt")] == ["0.txt"]
    assert "--resume continues from step 10" in (tmp_path / "0.txt").read_text()
    monkeypatch.undo()
    assert Checkpoints(folder / "checkpoints").sound(print) == folder / "checkpoints" / "step-00000010"
    again = run(loaded, folder, 2, resume=True)
    assert max(differences(run(loaded, tmp_path / "whole", 1), again)) < 2e-5


def test_what_several_processes_would_do_otherwise_is_refused(tmp_path: Path) -> None:
    def check(router: dict[str, Any], team: Team, alone: bool = False) -> None:
        feedforward = {**EXPERTS, "router": {"type": "softmax", **router}}
        task = prepare(recipe(tmp_path, {"model.layer.feedforward": feedforward}), Reporter(False))
        if alone:
            task.objective.capabilities = frozenset()  # type: ignore[misc]
        check_division(task, team)

    check({"balance_loss": 0.01}, Team(0, 2))
    check({"selection_bias": True, "selection_rate": 0.1}, Team(), alone=True)
    with pytest.raises(UsageError, match="selection bias"):
        check({"selection_bias": True, "selection_rate": 0.1}, Team(0, 2))
    with pytest.raises(UsageError, match="the loss of 'causal_lm' depends on the whole batch"):
        check({}, Team(0, 2), alone=True)


def test_other_parallelism_is_refused(tmp_path: Path) -> None:
    def refused(parallel: dict[str, Any], words: str) -> None:
        with pytest.raises(RecipeError, match=rf"train\.parallel.*{words}; "):
            recipe(tmp_path, parallel=parallel)

    each([({"tensor": 2}, "tensor parallelism is not supported"), ({"pieces": 4}, "pieces: was removed")], refused)


def test_a_run_that_names_pieces_is_read(tmp_path: Path) -> None:
    folder = trained(recipe(tmp_path, steps=2), tmp_path / "run").folder
    resolved = folder / "resolved.yaml"
    for value in ("none", "4"):
        (folder / "SHA256SUMS").unlink(missing_ok=True)
        resolved.write_text(
            re.sub(r"  parallel:\n(    pieces: .*\n)?", f"  parallel:\n    pieces: {value}\n", resolved.read_text())
        )
        assert load_run(folder).model is not None


def test_pieces_are_the_rows_of_a_batch_and_their_targets() -> None:
    ids = torch.arange(20).view(5, 4)
    batch = {"input_ids": ids, "labels": torch.tensor([3, 6, 7, 13, 18]), "predicted": torch.tensor([3, 6, 7, 13, 18])}
    pieces = [piece_of(batch, number, 3) for number in range(3)]
    assert torch.equal(torch.cat([piece.batch["input_ids"] for piece in pieces]), ids)
    for piece in pieces:  # a label is the id at its place
        assert torch.equal(piece.batch["input_ids"].flatten()[piece.batch["predicted"]], piece.batch["labels"])
    assert [piece.target for piece in pieces] == [0, 1, 3] and sum(len(piece.batch["labels"]) for piece in pieces) == 5
    many = [piece_of(batch, number, 8) for number in range(8)]
    assert sum(not piece.empty for piece in many) == 5
    with pytest.raises(UsageError, match=r"odd .* \[7\]"):
        piece_of({**batch, "odd": torch.zeros(7)}, 0, 2)


@pytest.mark.parametrize("shape", [(6, 5, 3), (6, 2, 7, 7)])
def test_pieces_draw_what_the_batch_draws(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)

    def drawn(row: int, rows: int) -> torch.Tensor:
        with drawing(Draws((1, 2), row, rows)):
            return torch.stack([dropout(x[row : row + rows], 0.4) for _ in range(2)], dim=1)

    whole = drawn(0, 6)
    assert torch.equal(torch.cat([drawn(0, 1), drawn(1, 3), drawn(4, 2)]), whole)
    assert not torch.equal(whole[:, 0], whole[:, 1])  # each call has draws of its own
    assert abs(float((whole == 0).float().mean()) - 0.4) < 0.1


@looped("time", [8, 150])
@looped("attention", ["longformer", "multi_head"])
def test_pieces_draw_for_marked_tokens_what_the_batch_draws(attention: str, time: int) -> None:
    layer = {**RECIPE["model"]["layer"], "attention": {"type": attention, "num_heads": 2, "dropout": 0.3}}
    layer["mask"] = [{"type": "window", "size": 4}, "global_tokens"]
    keys = {"type": "encoder", "vocab_size": 40, "max_length": time, "layer": layer}
    model = build_model(load_recipe({"tfkit": 1, "model": {**RECIPE["model"], **keys}}).blueprint()).train()
    ids = torch.arange(4 * time).view(4, time) % 40
    marked = torch.tensor([[1], [1], [3], [2]]) > torch.arange(time)

    def hidden(piece: Piece) -> torch.Tensor:
        with drawing(piece.draws((1, 2))), torch.no_grad():
            marks = piece.batch["marked"]
            out: torch.Tensor = model(piece.batch["input_ids"], global_attention_mask=marks, with_heads=False).hidden
            return out

    batch = {"input_ids": ids, "marked": marked.long()}
    halves = [hidden(piece_of(batch, number, 2)) for number in range(2)]
    torch.testing.assert_close(torch.cat(halves), hidden(piece_of(batch, 0, 1)))


def test_an_adapter_and_its_average_are_those_of_one_process(tmp_path: Path) -> None:
    base = trained(recipe(tmp_path, steps=2), tmp_path / "base").folder
    adapter = {"type": "lora", "rank": 2, "dropout": 0.1}
    loaded = recipe(
        tmp_path,
        init_from=str(base),
        adapter=adapter,
        callbacks=[{"type": "ema", "decay": 0.5}],
    )
    one, two = (run(loaded, tmp_path / f"{count}", count) for count in (1, 2))
    assert max(differences(one, two)) < 2e-5
    for name in ("model.safetensors", "adapter.safetensors"):
        torch.testing.assert_close(load_file(tmp_path / "1" / name), load_file(tmp_path / "2" / name))


def test_all_processes_skip_and_stop_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(training: Training, record: Any) -> None:
        if training.step == 4:
            training.stop("enough")

    steps = iter(range(1, 100))
    scale = scale_gradients
    monkeypatch.setattr(
        "tfkit.training.loop.scale_gradients", lambda *given: math.nan if next(steps) == 2 else scale(*given)
    )
    lines = run(recipe(tmp_path, not_finite="skip"), tmp_path / "run", 2, callbacks=[stop])
    assert [line.get("skipped") for line in lines] == [None, 1, None, None]
