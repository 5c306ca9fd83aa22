"""The training loop: exact resumption, accumulation, what is kept, when it stops."""

import io
import itertools
import json
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.machine import free_memory
from tfkit.core.options import seconds_of
from tfkit.data.corpus import TextRecordCorpus
from tfkit.models import build_model
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.recipe.settings.sections import Batch
from tfkit.runs import history as device_module
from tfkit.runs.checkpoint import seeded, step_of
from tfkit.runs.folder import RunFolder
from tfkit.runs.history import check_memory, choose_device
from tfkit.runs.weights import Weights
from tfkit.storage.files import read_json, write_json
from tfkit.training.division import Division
from tfkit.training.feed import Feed
from tfkit.training.initial import freeze
from tfkit.training.loop import NotFinite, Trainer
from tfkit.training.progress import ProgressMeter, Reporter, duration
from tfkit.training.scoring import mean_loss
from tfkit.training.setup import Task, prepare
from tfkit.training.step import accumulate, computing, scale_gradients, tokens_read

from ..sampling import looped, some
from .small import ENCODER, paired, small

WORDS = ["one two three four", "two three", "four five six one two", "three one", "six six five", "one five two"] * 4
SETTINGS = {"steps": 6, "schedule": {"type": "constant", "lr": 0.01}, "evaluate_every": 1000, "checkpoint_every": 1000}
KINDS: dict[str, dict[str, Any]] = {
    "seq2seq": {"model.embedding.dropout": 0.1, "objective.label_smoothing": 0.1},
    "causal_lm": {"model.num_layers": 2},
    "masked_lm": {**ENCODER, "model.num_layers": 2},
}


def recipe(tmp_path: Path, kind: str = "seq2seq", **train: Any) -> Recipe:
    pairs = paired(tmp_path, train=WORDS, valid=WORDS[:5])
    values = {**(pairs if kind == "seq2seq" else {}), **KINDS[kind], "data.batch": {"tokens": 24}}
    return small(tmp_path, {**values, "train": {**SETTINGS, **train}})


def make(tmp_path: Path, name: str, loaded: Recipe) -> Trainer:
    """A trainer in a folder of its own; the caller seeds."""
    folder = RunFolder(tmp_path / name)
    folder.path.mkdir(exist_ok=True)
    return Trainer(prepare(loaded, Reporter(False)), folder, Reporter(False))


def train(tmp_path: Path, name: str, loaded: Recipe, resume: bool = False) -> Trainer:
    with seeded(loaded.train.seed):
        trainer = make(tmp_path, name, loaded)
        last = trainer.checkpoints.last()
        if resume:
            assert last is not None
            trainer.restore(last)
        trainer.run()
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())


def kept(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the published weights."""
    return Weights.read(trainer.folder / "model.safetensors").by_name()


def assert_mean(trainer: Trainer, *parts: dict[str, torch.Tensor]) -> None:
    """Compare the published weights with the mean of others."""
    for name, tensor in kept(trainer).items():
        mean = sum(part[name] for part in parts) / len(parts)
        torch.testing.assert_close(tensor, mean, rtol=0, atol=3e-7)


def lines(trainer: Trainer) -> list[dict[str, Any]]:
    text = (trainer.folder / "metrics.jsonl").read_text()
    return [
        {key: value for key, value in json.loads(line).items() if not key.endswith(("_per_second", "waiting"))}
        for line in text.splitlines()
    ]


@pytest.mark.parametrize("kind", some(KINDS))
@pytest.mark.parametrize("stop", [3, 5])
def test_resuming_is_exact(tmp_path: Path, kind: str, stop: int) -> None:
    """Through dropout, random masks, accumulation, validation and the ends of epochs."""
    # 8 steps of 2 batches pass the end of the first epoch
    options: dict[str, Any] = {"accumulate": 2, "clip_norm": 1.0, "evaluate_every": 2}
    straight = train(tmp_path, "straight", recipe(tmp_path, kind, steps=8, **options))
    assert straight.progress.epoch >= 1
    train(tmp_path, "parts", recipe(tmp_path, kind, steps=stop, **options))
    parts = train(tmp_path, "parts", recipe(tmp_path, kind, steps=8, **options), resume=True)
    assert same(weights(straight), weights(parts))
    last = len([line for line in lines(straight) if line["step"] > stop])
    assert lines(straight)[-last:] == lines(parts)[-last:]
    assert [line["step"] for line in lines(parts)] == list(range(1, 9))


@pytest.mark.full
def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first, other = (train(tmp_path, str(seed), recipe(tmp_path, seed=seed, steps=1)) for seed in (0, 1))
    assert not same(weights(first), weights(other))


def gradients(task: Task, feed: Feed, count: int, clip: float | None = None) -> tuple[float, float, list[torch.Tensor]]:
    task.model.zero_grad()
    task.model.eval()  # without dropout, so that halves can equal the whole
    division = Division(task.model, computing(task.model, feed, "float32"))
    parameters = list(task.model.parameters())
    sums = accumulate(division, feed, feed.made(feed.order()), count, parameters)
    norm = scale_gradients(parameters, sums, clip)
    return sums.loss, norm, [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


@pytest.mark.parametrize("clip", [None, 0.05])
def test_accumulated_halves_equal_the_whole(tmp_path: Path, clip: float | None) -> None:
    task = prepare(recipe(tmp_path), Reporter(False))
    whole = [[*range(12)]]
    halves = [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]  # of unlike numbers of targets

    def feed(plan: list[list[int]]) -> Feed:
        made = Feed(task.objective, task.train.items, Batch(size=100), 0, torch.device("cpu"))
        made.plan = lambda epoch: plan  # type: ignore[method-assign,assignment]
        return made

    one, two = gradients(task, feed(whole), 1, clip), gradients(task, feed(halves), 2, clip)
    assert one[0] == pytest.approx(two[0], rel=1e-6) and one[1] == pytest.approx(two[1], rel=1e-5)
    for first, second in zip(one[2], two[2], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    if clip is not None:
        assert one[1] > clip
        assert float(torch.nn.utils.get_total_norm(one[2])) == pytest.approx(clip, rel=1e-5)


def test_packed_batches_train_and_are_read_without_their_padding(tmp_path: Path) -> None:
    plain = recipe(tmp_path, "causal_lm").root.plain()
    plain["data"]["batch"] = {"tokens": 48, "pack": True, "length": 16}
    packed = load_recipe(plain)
    alone, task = (prepare(loaded, Reporter(False)) for loaded in (recipe(tmp_path, "causal_lm"), packed))
    assert task.valid is not None and alone.valid is not None
    assert mean_loss(task.model, task.valid) == pytest.approx(mean_loss(alone.model, alone.valid), rel=1e-5)
    batches = [(indices, task.train.make(0, number, indices)) for number, indices in enumerate(task.train.plan(0))]
    read = sum(int(one) for indices, batch in batches for one in tokens_read(task.train, batch, indices))
    assert read == sum(len(item["text"]) - 1 for item in task.train.items)
    assert train(tmp_path, "run", packed).progress.step == 6


def test_validation_is_in_plain_nats_and_leaves_the_mode(tmp_path: Path) -> None:
    task = prepare(recipe(tmp_path), Reporter(False))
    assert task.valid is not None
    task.model.train()
    first, second = (mean_loss(task.model, task.valid) for _ in range(2))
    assert first == second and task.model.training
    total, count = 0.0, 0
    task.model.eval()
    for item in task.valid.items:
        source, target = (torch.from_numpy(item[side])[None].long() for side in ("source", "target"))
        with torch.no_grad():
            logits = task.model(input_ids=source, decoder_input_ids=target[:, :-1]).logits
        total += float(torch.nn.functional.cross_entropy(logits[0], target[0, 1:], reduction="sum"))
        count += target.shape[1] - 1
    assert first == pytest.approx(total / count, rel=1e-5)


def test_loss_that_is_no_number_stops_and_saves_nothing(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, steps=20, checkpoint_every=2, schedule={"type": "constant", "lr": 0.01})
    with seeded(0):
        trainer = make(tmp_path, "run", loaded)
        step = trainer.optimizer.step

        def poison(*_: Any) -> None:
            step()
            if trainer.progress.step == 4:  # the fifth step's update breaks the weights
                with torch.no_grad():
                    next(trainer.model.parameters()).fill_(math.nan)

        trainer.optimizer.step = poison  # type: ignore[method-assign,assignment]
        with pytest.raises(
            NotFinite, match=r"step 6: the loss is nan.*lower learning rate.*clip_norm.*from step 4"
        ) as error:
            trainer.run()
    assert "float32" not in str(error.value)
    assert [path.name for path in trainer.checkpoints.all()] == ["step-00000002", "step-00000004"]
    assert not (trainer.folder / "model.safetensors").exists()
    assert len(lines(trainer)) == 5


@pytest.mark.full
def test_best_last_and_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0] * 3)
    options: dict[str, Any] = {"evaluate_every": 2, "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        patch.setattr("tfkit.training.loop.mean_loss", lambda *_: next(losses))
        best, last, mean = (
            train(tmp_path, str(keep), recipe(tmp_path, keep=keep, **options)) for keep in ("best", "last", {"mean": 2})
        )
    four = train(tmp_path, "four", recipe(tmp_path, steps=4, **options))
    assert (best.progress.best, best.progress.best_step) == (1.0, 4)
    assert same(kept(best), weights(four)) and same(kept(last), weights(last))
    assert_mean(mean, weights(four), weights(last))
    for one in (mean, best):
        assert [path.name for path in one.checkpoints.all()] == ["step-00000004", "step-00000006"]


def test_the_best_weights_are_lost_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr("tfkit.training.loop.mean_loss", lambda *_: next(losses))
    trainer = train(tmp_path, "run", recipe(tmp_path, evaluate_every=2))
    stream = io.StringIO()
    trainer.publisher.reporter = Reporter(True, stream)
    trainer.publisher.publish(trainer.progress)
    (trainer.folder / "model.safetensors").unlink()
    trainer.publisher.publish(trainer.progress)
    assert "now holds the weights of step 6; the best weights (step 2) are lost" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1
    assert same(kept(trainer), weights(trainer))


@pytest.mark.full
def test_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.0, 1.0, 1.0])
    monkeypatch.setattr("tfkit.training.loop.mean_loss", lambda *_: next(losses))
    trainer = train(tmp_path, "run", recipe(tmp_path, steps=50, evaluate_every=1, patience=2))
    assert trainer.progress.step == 4 and trainer.progress.finished == "patience" and trainer.progress.best_step == 2
    more = train(tmp_path, "run", recipe(tmp_path, steps=6, evaluate_every=1, patience=3), resume=True)
    assert more.progress.step == 6 and more.progress.best == 1.0


@pytest.mark.full
def test_resuming_with_another_keep(tmp_path: Path) -> None:
    train(tmp_path, "run", recipe(tmp_path, steps=3, keep="last"))
    trainer = train(tmp_path, "run", recipe(tmp_path, steps=6, keep="best", evaluate_every=6), resume=True)
    assert trainer.progress.best_step == 6
    assert same(kept(trainer), weights(trainer))


def test_frozen_parameters_stay(tmp_path: Path) -> None:
    trainer = make(tmp_path, "run", recipe(tmp_path, freeze=["encoder.", "decoder.layers.0.feedforward"]))
    before = weights(trainer)
    trainer.run()
    changed = {name for name, tensor in weights(trainer).items() if not torch.equal(tensor, before[name])}
    assert changed and not any(name.startswith(("encoder.", "decoder.layers.0.feedforward")) for name in changed)
    assert "head.output.weight" not in changed  # tied to the encoder's table


def test_freeze_takes_names_and_patterns_of_what_there_is(tmp_path: Path) -> None:
    model = prepare(recipe(tmp_path), Reporter(False)).model
    with pytest.raises(UsageError, match=r"starts with 'encoder\.layer\.0'.* Did you mean 'encoder\.layers\.0'"):
        freeze(model, ["encoder.layer.0"])
    freeze(model, ["*.bias", "encoder.layers.?.attention*"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {name for name, _ in model.named_parameters() if name.endswith("bias") or "encoder.layers.0.att" in name}
    assert frozen == expected and frozen != {name for name, _ in model.named_parameters()}
    with pytest.raises(RecipeError, match=r"train\.freeze\[0\]: no parameter name starts with 'nothing'"):
        recipe(tmp_path, freeze=["nothing"])
    with pytest.raises(RecipeError, match=r"every parameter is frozen"):
        recipe(tmp_path, freeze=["encoder", "decoder", "head"])


def test_pretrained_vectors(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("one " + " ".join(["0.5"] * 8) + "\nunheard " + " ".join(["1"] * 8) + "\n")
    embedding = {"type": "tokens", "vectors": str(tmp_path / "vectors.txt"), "frozen": True}
    loaded = load_recipe(recipe(tmp_path, "masked_lm").root.plain(), overrides={"model.embedding": embedding})
    stream = io.StringIO()
    with seeded(0):
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir()
        trainer = Trainer(prepare(loaded, Reporter(True, stream)), folder, Reporter(False))
        trainer.run()
    table = trainer.model.state_dict()["encoder.embedding.tokens.weight"]
    assert table[trainer.task.tokenizer.encode("one")[0]].tolist() == [0.5] * 8
    assert "vectors for 1 of 11 tokens" in stream.getvalue()


def test_a_model_too_large_is_refused_with_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "free_memory", lambda _: 2**30)
    huge = load_recipe(
        recipe(tmp_path).root.plain(), overrides={"model.d_model": 8192, "model.layer.feedforward.d_ff": 2**20}
    )
    with pytest.raises(UsageError, match=r"training [\d,]+ parameters needs 524\.0 GiB.*cpu has 1\.0 GiB free"):
        prepare(huge, Reporter(False))
    model = build_model(huge.blueprint(20), device="meta")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    monkeypatch.setattr(device_module, "free_memory", lambda _: 2**40)
    check_memory(model, torch.device("cpu"))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_memory(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UsageError, match=r"^train\.device: cuda:99 is not available; torch sees"):
        choose_device("cuda:99")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [str(choose_device(name)) for name in ("cuda", "cuda:1", "auto")] == ["cuda", "cuda:1", "cuda"]


@looped(
    ("name", "reason"),
    [
        ("gpu", "unknown device 'gpu'; use auto, cpu, cuda or cuda:1"),
        ("", "unknown device ''"),
        ("cuda:", "unknown device 'cuda:'"),
        ("cuda:-1", "unknown device 'cuda:-1'"),
        ("mps", "tfkit does not support mps: it does not support float64"),
        ("mps:0", "tfkit does not support mps:0"),
        ("xpu", "tfkit does not support xpu"),
        ("meta", "tfkit does not support meta: tensors on it have no values"),
    ],
)
def test_a_device_that_will_not_do_is_told_before_anything_is_read(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=f"^--device: {reason}"):
        choose_device(name, "--device")
    monkeypatch.setattr(TextRecordCorpus, "records", lambda self: pytest.fail("data was read"))
    with pytest.raises(RecipeError, match=f"train.device: {reason}"):
        recipe(tmp_path, device=name)
    with pytest.raises(UsageError, match=f"^device: {reason}"):
        tfkit.load_run(tmp_path, device=name)


def test_memory_is_pinned_for_cuda_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = prepare(recipe(tmp_path), Reporter(False)).train
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pytest.fail("pinned"))
    feed.device = torch.device("meta")  # stands for any device but those two
    made = feed.make(0, 0, feed.plan(0)[0])
    assert {tensor.device.type for tensor in made.values()} == {"meta"}


def test_bfloat16_keeps_float32_parameters_and_without_validation_the_last_weights(tmp_path: Path) -> None:
    plain = recipe(tmp_path, steps=2, precision="bfloat16").root.plain()
    del plain["data"]["valid"]
    trainer = train(tmp_path, "run", load_recipe(plain))
    assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
    assert trainer.progress.step == 2 and same(kept(trainer), weights(trainer))
    last = trainer.checkpoints.last()
    assert last is not None  # without a pickle
    assert {file.suffix for file in last.iterdir() if file.name != "SHA256SUMS"} == {".json", ".safetensors"}


def test_recipes_that_cannot_be_trained(tmp_path: Path) -> None:
    plain = recipe(tmp_path).root.plain()
    del plain["objective"]
    with pytest.raises(UsageError, match="training requires objective in the recipe"):
        prepare(load_recipe(plain), Reporter(False))
    small = load_recipe(recipe(tmp_path).root.plain(), overrides={"model.vocab_size": 6})
    with pytest.raises(
        RecipeError, match=r"model\.vocab_size: 6 is less than the 10 tokens .* learned from .*train\.txt"
    ):
        prepare(small, Reporter(False))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr("tfkit.training.progress.time.perf_counter", lambda: float(next(clock)))
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        reporter = Reporter(True, stream)
        reporter.say("before the log is open")
        reporter.open(tmp_path / f"{type(stream).__name__}.log")
        meter = ProgressMeter(reporter, 0, 10)
        for step in range(1, 11):
            meter.step(step, 2.5, 100, 100, 0.5)
        reporter.close()
    assert "\rstep 5 of 10: loss 2.5000, 200 tokens/s, 20 s left" in terminal.getvalue()
    shown = pipe.getvalue().splitlines()
    assert shown[0] == "before the log is open"
    assert [line.split(":")[0] for line in shown[1:]] == [f"step {step} of 10" for step in (1, 4, 7, 10)]
    for name in ("Terminal", "StringIO"):
        log = (tmp_path / f"{name}.log").read_text().splitlines()
        assert [line.split(" ", 1)[1] for line in log] == shown
        assert all(line[:2] == "20" and "T" in line.split()[0] for line in log)


@looped(
    ("threads", "rates", "loads", "said"),
    [
        (2, (100, 2120, 2000, 121, 110), (1.0, 1.0, 1.0, 3.5, 3.5), ["121 tokens/s, down from 2,120: "]),
        (2, (100, 2120, 1000, 2000), (9.0, 4.0, 9.0, 9.0), []),  # busy, but fast
        (2, (100, 2120, 121), (1.0, 1.0, 2.0), []),  # slow by itself
        (2, (141, 141, 140), (9.0, 4.1, 9.0), ["141 tokens/s: "]),  # from the start
        (1, (100, 2120, 121), (9.0, 9.0, 9.0), []),
        (2, (100, 2120, 121), None, []),
    ],
)
def test_a_rate_that_collapses_beside_other_programs_is_told_once(
    threads: int, rates: Sequence[int], loads: Sequence[float] | None, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr("tfkit.training.progress.time.perf_counter", lambda: next(clock))
    monkeypatch.setattr("tfkit.training.progress.os.cpu_count", lambda: 2)
    if loads is None:
        monkeypatch.delattr("tfkit.training.progress.os.getloadavg", raising=False)
    else:
        later = iter(loads[1:])  # nothing is compared at the first line
        monkeypatch.setattr("tfkit.training.progress.os.getloadavg", lambda: (next(later), 0.0, 0.0))
    stream = io.StringIO()
    meter = ProgressMeter(Reporter(True, stream), 0, 100, threads)
    for step, rate in enumerate(rates, 1):
        meter.step(step, 2.5, 10 * rate, 10 * rate, 10.0)
    lines = [line for line in stream.getvalue().splitlines() if not line.startswith("step")]
    cause = "other programs use the processor; OMP_NUM_THREADS=1 is often faster then"
    assert lines == [line + cause for line in said]


def test_a_trainer_knows_the_threads_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr("tfkit.training.loop.ProgressMeter", lambda *all: given.append(all) or ProgressMeter(*all))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    train(tmp_path, "run", recipe(tmp_path, steps=1, device="cpu"))
    assert given[0][3] == 3


def test_durations() -> None:
    said = [duration(seconds) for seconds in (0.4, 59, 61, 3600, 7805)]
    assert said == ["0 s", "59 s", "1 min 01 s", "1 h 00 min", "2 h 10 min"]


# --- nothing that is not finite is kept


@looped("keep", ["best", "last", {"mean": 2}])
@looped("validated", [True, False])
def test_a_last_step_without_a_finite_loss_publishes_nothing(tmp_path: Path, keep: Any, validated: bool) -> None:
    """The loss of the last step is taken before its update, so only what comes after can tell."""
    plain = recipe(tmp_path, steps=1, keep=keep, schedule={"type": "constant", "lr": 1e18}).root.plain()
    if not validated:
        del plain["data"]["valid"]
    with seeded(0):
        trainer = make(tmp_path, f"{keep} {validated}", load_recipe(plain))
        with pytest.raises(NotFinite, match=r"step 1: .*loss .*is (nan|inf); training stopped.* \(now 1e\+18\)"):
            trainer.run()
    assert {path.name for path in trainer.folder.path.iterdir()} == {"metrics.jsonl"} and lines(trainer) == []


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """Not even where no batch reads them."""
    loaded = recipe(tmp_path, steps=20, checkpoint_every=2, evaluate_every=20)
    with seeded(0):
        trainer = make(tmp_path, "run", loaded)
        table = trainer.model.state_dict()["encoder.embedding.tokens.weight"]
        step = trainer.optimizer.step

        def poison(*_: Any) -> None:
            step()
            if trainer.progress.step == 3:
                table[trainer.task.tokenizer.special_ids["unknown"]] = math.inf

        trainer.optimizer.step = poison  # type: ignore[method-assign,assignment]
        with pytest.raises(NotFinite, match=r"step 4: .*embedding\.tokens\.weight became NaN .*from step 2"):
            trainer.run()
    assert [path.name for path in trainer.checkpoints.all()] == ["step-00000002"]
    assert len(lines(trainer)) == 3


@pytest.mark.full
def test_a_signal_at_any_moment_leaves_a_checkpoint_of_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment in range(1, 6):

        class Asked:
            looks = 0

            def __enter__(self) -> "Asked":
                return self

            def __exit__(self, *_: object) -> None:
                pass

            @property
            def asked(self) -> bool:
                self.looks += 1
                return self.looks > moment  # noqa: B023

        monkeypatch.setattr("tfkit.training.loop.Interrupts", Asked)
        trainer = train(tmp_path, f"run {moment}", recipe(tmp_path, "causal_lm", steps=50))
        last = trainer.checkpoints.last()
        assert last is not None and step_of(last) == trainer.progress.step < 50


# --- the mean


@pytest.mark.full
def test_a_mean_that_is_worse_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"evaluate_every": 2, "checkpoint_every": 2, "keep": {"mean": 2}}
    for last, ending in ((2.5, ": train.keep: best would have kept it"), (0.5, "")):
        losses = iter([3.0, 1.0, 2.0, last])
        for module in ("loop", "publish"):
            monkeypatch.setattr(f"tfkit.training.{module}.mean_loss", lambda *_, losses=losses: next(losses))
        stream = io.StringIO()
        with seeded(0):
            folder = RunFolder(tmp_path / "run")
            folder.path.mkdir(exist_ok=True)
            write_json(folder / "environment.json", {"tfkit": "0"})
            trainer = Trainer(prepare(recipe(tmp_path, **options), Reporter(False)), folder, Reporter(True, stream))
            trainer.run()
        said = f"the mean of 2 checkpoints has validation loss {last:.4f}; step 4 had 1.0000{ending}\n"
        assert stream.getvalue().endswith(said)
        kept = {"mean": 2, "valid.loss": last, "best": 1.0, "best_step": 4}
        assert read_json(folder / "environment.json") == {"tfkit": "0", "kept": kept}
        shutil.rmtree(folder.path)


def test_the_mean_is_measured_on_the_mean(tmp_path: Path) -> None:
    trainer = train(tmp_path, "run", recipe(tmp_path, keep={"mean": 3}, checkpoint_every=2, evaluate_every=3))
    before = weights(trainer)
    assert trainer.task.valid is not None
    found = trainer.publisher._publish_mean(3, trainer.progress)
    assert same(before, weights(trainer))
    trainer.model.load_state_dict(kept(trainer))
    assert found is not None and found["valid.loss"] == mean_loss(trainer.model, trainer.task.valid)
    assert found["mean"] == 3


def test_a_mean_is_of_what_training_has_made_and_is_not_damaged(tmp_path: Path) -> None:
    with seeded(0):
        trainer = make(tmp_path, "run", recipe(tmp_path, keep={"mean": 9}, checkpoint_every=2))
        trainer.checkpoints.save(trainer.model, trainer.optimizer, trainer.progress)  # what it begins with
        trainer.run()
    _, *paths = trainer.checkpoints.all()
    parts = [Weights.read(path / "model.safetensors").by_name() for path in paths]
    assert len(parts) == 3
    assert_mean(trainer, *parts)
    stream = io.StringIO()
    trainer.publisher.reporter = Reporter(True, stream)
    content = bytearray((paths[0] / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (paths[0] / "model.safetensors").write_bytes(content)
    trainer.publisher.publish(trainer.progress)
    assert_mean(trainer, *parts[1:])
    said = stream.getvalue()
    assert "has changed since it was written" in said and "the mean omits step-00000002" in said


# --- rates


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_read_and_what_is_predicted_are_counted_apart(tmp_path: Path, kind: str) -> None:
    trainer = train(tmp_path, "run", recipe(tmp_path, kind, steps=8))
    task, epoch = trainer.task, len(trainer.task.train.plan(0))
    record = lines(trainer)[epoch - 1]
    item = {"seq2seq": ("source", "target"), "causal_lm": ("text",), "masked_lm": ("text",)}[kind]
    read = sum(len(one[name]) - (name == "target" or kind == "causal_lm") for one in task.train.items for name in item)
    assert record["tokens"] == read
    targets = {"seq2seq": sum(len(one["target"]) - 1 for one in task.train.items) if kind == "seq2seq" else 0}
    assert record["targets"] == targets.get(kind, read) if kind != "masked_lm" else 0 < record["targets"] < read / 3


def test_progress_names_both_rates_where_they_differ() -> None:
    for targets, said in ((1000, "1,000 tokens/s"), (150, "1,000 tokens/s read, 150 predicted")):
        stream = io.StringIO()
        ProgressMeter(Reporter(True, stream), 0, 10).step(1, 2.5, 1000, targets, 1.0)
        assert stream.getvalue().startswith(f"step 1 of 10: loss 2.5000, {said}, ")


# --- a limit of time, and steps without an update


@pytest.mark.full
def test_a_time_limit_stops_and_resuming_is_exact(tmp_path: Path) -> None:
    straight = train(tmp_path, "straight", recipe(tmp_path, steps=6, evaluate_every=2))
    with seeded(0):
        limited = make(tmp_path, "parts", recipe(tmp_path, steps=6, evaluate_every=2, max_time="3 min"))
        assert limited.deadline - time.monotonic() == pytest.approx(180, abs=5)
        step = limited._step

        def slow(*given: Any) -> dict[str, Any]:
            limited.deadline -= 100  # as if each step took so many seconds
            return step(*given)

        limited._step = slow  # type: ignore[method-assign]
        assert not limited.run()
    assert limited.progress.step == 2 and limited.progress.finished == ""
    assert (limited.folder / "model.safetensors").exists()
    parts = train(tmp_path, "parts", recipe(tmp_path, steps=6, evaluate_every=2), resume=True)
    assert same(weights(straight), weights(parts)) and lines(straight) == lines(parts)


def test_durations_are_written_with_their_units(tmp_path: Path) -> None:
    for written, seconds in (("90 s", 90), ("2h", 7200), ("1 d 2 h 3 min 4 s", 93_784)):
        assert seconds_of(written) == seconds
        assert recipe(tmp_path, max_time=written).train.max_time == written
    for wrong in ("", "8", "0 s", "8 hours", "h", "5 s 1 h", 30):
        with pytest.raises(RecipeError, match=r"train\.max_time.*(is not a duration; write 8 h|text, got)"):
            recipe(tmp_path, max_time=wrong)


def poisoned(trainer: Trainer, steps: set[int]) -> None:
    """Make the gradients of these steps NaN."""
    weight = next(trainer.model.parameters())

    def spoil(_: Any) -> torch.Tensor | None:
        return torch.full_like(weight, math.nan) if trainer.progress.step + 1 in steps else None

    weight.register_hook(spoil)


@pytest.mark.full
def test_skipped_steps_change_nothing_and_are_counted(tmp_path: Path) -> None:
    loaded = recipe(tmp_path, steps=6, not_finite="skip", checkpoint_every=3, evaluate_every=6)
    stream = io.StringIO()
    with seeded(0):
        trainer = make(tmp_path, "run", loaded)
        trainer.reporter = Reporter(True, stream)
        poisoned(trainer, {3, 4})
        before: list[dict[str, torch.Tensor]] = []
        step = trainer._step
        trainer._step = lambda *given: (before.append(weights(trainer)), step(*given))[1]  # type: ignore[method-assign]
        assert trainer.run()
    assert same(before[2], before[3]) and same(before[3], before[4]) and not same(before[4], before[5])
    records = lines(trainer)
    assert [line.get("skipped") for line in records] == [None, None, 1, 2, None, None]
    assert [line["step"] for line in records if "loss" not in line] == [3, 4]
    assert "step 4: the loss is" in stream.getvalue() and "skipped (2 so far)" in stream.getvalue()
    assert trainer.progress.skipped == 2
    with seeded(0):
        resumed = make(tmp_path, "run", loaded)
        resumed.restore(trainer.checkpoints.all()[0])
        assert resumed.progress.skipped == 1
        poisoned(resumed, {4})
        resumed.run()
    assert same(weights(resumed), weights(trainer)) and lines(resumed) == records


@pytest.mark.full
def test_a_run_that_only_skips_stops(tmp_path: Path) -> None:
    with seeded(0):
        trainer = make(tmp_path, "run", recipe(tmp_path, steps=80, not_finite="skip"))
        poisoned(trainer, set(range(5, 90)))
        with pytest.raises(NotFinite, match=r"step 54: the loss is .* nan, 50 steps in a row; training stopped"):
            trainer.run()
