"""Callbacks: events, stopping, an average that is evaluated and published, and libraries that are never needed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.recipe.load import load_saved
from tfkit.run import load_run
from tfkit.runs.weights import Weights
from tfkit.training.callback import Callback, Training
from tfkit.training.loop import Trainer

from ..documents import ROOT
from ..sampling import looped
from .small import outcome, small, trained


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int, Any]] = []
        self.folder: Path | None = None

    def start(self, training: Training) -> None:
        self.folder = training.folder
        self.said.append(("start", training.step, training.steps))

    def step(self, training: Training, record: Any) -> None:
        self.said.append(("step", training.step, sorted(record)))

    def validation(self, training: Training, scores: Any) -> None:
        self.said.append(("validation", training.step, sorted(scores)))

    def checkpoint(self, training: Training, path: Path) -> None:
        assert (path / "SHA256SUMS").is_file()
        self.said.append(("checkpoint", training.step, path.name))

    def end(self, training: Training) -> None:
        self.said.append(("end", training.step, training.progress.finished))


@pytest.mark.full
def test_events_come_in_their_order(tmp_path: Path) -> None:
    notes = Notes()
    loaded = small(tmp_path, evaluate_every=2, validate={"metrics": ["perplexity"]})
    run = trained(loaded, tmp_path / "run", callbacks=[notes])
    assert notes.folder == run.folder
    assert [(event, step) for event, step, _ in notes.said if event != "checkpoint"] == [
        ("start", 0),
        *(("step", 1), ("step", 2), ("validation", 2)),
        *(("step", 3), ("validation", 3), ("end", 3)),
    ]
    whole = [(what, step) for event, step, what in notes.said if event == "checkpoint"]
    assert whole in ([("step-00000002", step), ("step-00000003", 3)] for step in (2, 3))  # as soon as it is written
    said = {(event, step): what for event, step, what in notes.said}
    assert said["start", 0] == 3 and said["end", 3] == "steps"
    assert said["validation", 2] == ["valid.loss", "valid.perplexity"]
    assert {"step", "loss", "learning_rate", "gradient_norm"} <= set(said["step", 1])
    assert outcome(run.folder) == outcome(trained(loaded, tmp_path / "without").folder)


@pytest.mark.full
def test_a_function_sees_each_step_and_stops_the_run(tmp_path: Path) -> None:
    losses = []

    def watch(training: Training, record: Any) -> None:
        losses.append(record["loss"])
        training.log(f"seen {len(losses)}")
        if training.step == 2:
            training.stop("enough")

    loaded = small(tmp_path, steps=6)
    run = trained(loaded, tmp_path / "run", callbacks=[watch])
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert losses == [line["loss"] for line in lines] and len(losses) == 2
    log = (run.folder / "train.log").read_text()
    assert "seen 1" in log and "step 2: stopped by a callback: enough" in log
    assert json.loads((run.folder / "run.json").read_text())["finished"] == "callback"
    assert (run.folder / "evaluation.json").exists() and (run.folder / "README.md").exists()
    again = trained(loaded, tmp_path / "run", resume=True, callbacks=[watch])  # is finished: nothing is left to do
    assert len(losses) == 2 and again.folder == run.folder
    longer = trained(small(tmp_path, steps=7), tmp_path / "run", resume=True)
    straight = trained(small(tmp_path, steps=7), tmp_path / "straight")
    assert outcome(longer.folder) == outcome(straight.folder)


@pytest.mark.full
def test_a_run_that_was_killed_at_its_end_stays_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(training: Training, record: Any) -> None:
        training.stop("enough")

    loaded = small(tmp_path, steps=6)
    with monkeypatch.context() as patch:
        patch.setattr("tfkit.run.training._conclude", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trained(loaded, tmp_path / "run", callbacks=[stop])
    run = trained(loaded, tmp_path / "run", resume=True)
    assert len((run.folder / "metrics.jsonl").read_text().splitlines()) == 1


def test_callbacks_clean_up_after_an_error(tmp_path: Path) -> None:
    notes, other = Notes(), Notes()

    def fail(training: Training, record: Any) -> None:
        raise ValueError("broken callback")

    with pytest.raises(ValueError, match="broken callback"):
        trained(small(tmp_path), tmp_path / "run", callbacks=[notes, fail, other])
    assert notes.said[-1][:2] == other.said[-1][:2] == ("end", 1)
    assert [event for event, *_ in other.said] == ["start", "end"]


@looped(
    ("given", "message"),
    [
        (Notes, r"callbacks: Notes is a class; pass an instance"),
        (3, r"callbacks: got 3\. A callback is a function \(training, record\).*start, step, validation"),
        ("ema", r"callbacks: got 'ema'.*registered callbacks are listed in train\.callbacks"),
    ],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trained(small(tmp_path), tmp_path / "run", callbacks=[given])
    assert not (tmp_path / "run").exists()


# --- changes of weights


def clip(training: Training, record: Any) -> None:
    """Change weights such that doing it twice is another change."""
    for weight in training.trained.parameters():
        if weight.requires_grad:
            weight.clamp_(-0.1, 0.1).mul_(0.99)


clip.changes_weights = True  # type: ignore[attr-defined]
FROZEN = {"freeze": ["decoder.layers.0.*"]}
EMA = {"callbacks": ["ema"]}


@pytest.mark.full
@pytest.mark.parametrize("train", [{"keep": "best"}, {"keep": {"mean": 2}, **FROZEN}, {"keep": "last", **EMA}], ids=str)
def test_changed_weights_are_those_of_the_next_step_the_average_and_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: dict[str, Any]
) -> None:
    longer, begin = small(tmp_path, steps=5, **train), Trainer.run
    trained(small(tmp_path, steps=4, **train), tmp_path / "run", callbacks=[clip])
    again = outcome(trained(longer, tmp_path / "run", callbacks=[clip], resume=True).folder)
    assert again == outcome(trained(longer, tmp_path / "straight", callbacks=[clip]).folder)

    def clipped(trainer: Trainer) -> bool:
        trainer.optimizer.register_step_post_hook(lambda *_: torch.no_grad()(clip)(trainer.training, {}))
        return begin(trainer)

    monkeypatch.setattr(Trainer, "run", clipped)
    assert again == outcome(trained(longer, tmp_path / "optimizer").folder)


def replaces(training: Training, record: Any) -> None:
    embedding: Any = training.model.get_submodule("decoder.embedding.tokens")
    embedding.weight = torch.nn.Parameter(embedding.weight * 0.5)


@looped(
    ("event", "declares", "change", "message"),
    [
        (
            "step",
            False,
            clip,
            r"step of Given changes .*; only `step` may, or `start` of a new run, .* changes_weights",
        ),
        ("validation", True, clip, "validation of Given changes .* only `step` may"),
        (
            "step",
            True,
            lambda run, _: next(run.model.decoder.layers.parameters()).zero_(),
            "only trainable weights may",
        ),
        ("step", True, replaces, r"decoder.embedding.tokens.weight; .* and only in place"),
    ],
)
def test_other_changes_are_refused(tmp_path: Path, event: str, declares: bool, change: Any, message: str) -> None:
    hooks = {"changes_weights": declares, event: staticmethod(torch.no_grad()(change))}
    with pytest.raises(UsageError, match=rf"callbacks: .*{message}"):
        trained(small(tmp_path, **FROZEN), tmp_path / "run", callbacks=[type("Given", (), hooks)()], force=True)


# --- ema


def averaged(tmp_path: Path, decay: float, steps: int) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """The average of a training, computed from the weights of its steps, and these weights."""
    seen: list[dict[str, torch.Tensor]] = []

    class See:
        def start(self, training: Training) -> None:
            seen.append({name: value.detach().clone() for name, value in training.model.named_parameters()})

        def step(self, training: Training, record: Any) -> None:
            self.start(training)

    trained(small(tmp_path, steps=steps, keep="last"), tmp_path / "plain", callbacks=[See()])
    average = {name: value.double() for name, value in seen[0].items()}
    for step, weights in enumerate(seen[1:], 1):
        share = min(decay, (1 + step) / (10 + step))
        average = {name: share * value + (1 - share) * weights[name].double() for name, value in average.items()}
    return average, seen


def ema(tmp_path: Path, decay: float = 0.3, **train: Any) -> tfkit.Recipe:
    return small(tmp_path, callbacks=[{"type": "ema", "decay": decay}], **train)


@pytest.mark.full
def test_the_average_is_evaluated_and_published(tmp_path: Path) -> None:
    average, seen = averaged(tmp_path, 0.3, steps=6)
    run = trained(ema(tmp_path, steps=6, keep="last", evaluate_every=6), tmp_path / "run")
    published = Weights.read(run.folder / "model.safetensors").by_name()
    for name, value in average.items():
        torch.testing.assert_close(published[name].double(), value, rtol=0, atol=1e-6)
    checkpoint = Weights.read(run.folder / "checkpoints/step-00000006/model.safetensors").by_name()
    assert all(torch.equal(checkpoint[name], value) for name, value in seen[-1].items())  # training is not affected
    last = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert run.evaluate("valid")["loss"] == pytest.approx(last["valid.loss"], abs=1e-6)
    plain = json.loads((tmp_path / "plain" / "metrics.jsonl").read_text().splitlines()[-1])
    assert plain["loss"] == last["loss"] and plain["valid.loss"] != last["valid.loss"]


@pytest.mark.full
def test_the_best_of_another_average_is_forgotten(tmp_path: Path) -> None:
    trained(small(tmp_path, steps=3), tmp_path / "run")
    run = trained(ema(tmp_path, steps=4), tmp_path / "run", resume=True)
    state = json.loads((run.folder / "checkpoints/step-00000004/state.json").read_text())
    assert state["progress"]["averaged"] and state["progress"]["best_step"] == 4


@looped(
    ("train", "message"),
    [
        (
            {"callbacks": ["ema"], "keep": {"mean": 2}},
            r"callbacks\[0\]: keep: \{mean: 2\} already averages the weights",
        ),
        ({"callbacks": ["ema", "ema"]}, r"callbacks\[1\]: callbacks\[0\] already averages the weights"),
        ({"callbacks": ["emma"]}, r"callbacks\[0\]: unknown callback 'emma'. Did you mean 'ema'\?"),
        ({"callbacks": [{"type": "ema", "decay": 1.0}]}, r"callbacks\[0\]\.decay"),
    ],
)
def test_what_cannot_be_averaged_is_refused(tmp_path: Path, train: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        small(tmp_path, **train)


# --- libraries


class FakeLibrary:
    """The interface of wandb and trackio."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.logged: dict[int, dict[str, float]] = {}
        self.finished = 0

    def init(self, **given: Any) -> FakeLibrary:
        self.given.append(given)
        return self

    def log(self, record: dict[str, float], step: int) -> None:
        self.logged.setdefault(step, {}).update(record)

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_get_what_is_in_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, name, library)  # type: ignore[arg-type]
    part = {"type": name, "project": "mine", "every": 2, "options": {"mode": "offline"}}
    run = trained(small(tmp_path, steps=4, callbacks=[part]), tmp_path / "run")
    trained(small(tmp_path, steps=6, callbacks=[part]), tmp_path / "run", resume=True)
    first, second = library.given
    assert first["project"] == "mine" and first["mode"] == "offline" and first["resume"] == "allow"
    assert first["config"]["train"]["steps"] == 4
    key = "id" if name == "wandb" else "name"
    assert first[key] == second[key] and re.fullmatch(r"run-\d{14}", first[key])
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert library.finished == 2 and sorted(library.logged) == [1, 2, 3, 4, 5, 6]
    assert library.logged[1] == {"valid.loss": records[0]["valid.loss"]}  # step 1 is left out by `every`
    for record in records[1::2]:
        assert library.logged[record["step"]] == {key: value for key, value in record.items() if key != "step"}


@looped("name", ["wandb", "trackio"])
def test_a_recipe_chooses_no_server_file_or_key(tmp_path: Path, name: str) -> None:
    for option in ("settings", "base_url", "dir", "config", "id", "api_key", "space_id", "resume"):
        with pytest.raises(RecipeError, match=rf"train\.callbacks\[0\]\.options\.{option}: unknown option"):
            small(tmp_path, callbacks=[{"type": name, "options": {"name": "mine", option: {"a": 1}}}])
    passed = dict.fromkeys(("mode", "entity", "group", "job_type", "name", "notes", "tags"), "mine")
    source = small(tmp_path, callbacks=[{"type": name, "options": passed}]).root.plain()
    source["train"]["callbacks"][0]["options"]["base_url"] = "http://x"  # a run from before this was refused
    assert load_saved(source).train.callbacks[0].build().options == passed


@looped("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_library_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    data = Path(small(tmp_path, callbacks=[name]).data.train.files[0])  # not read first
    data.write_bytes(b"\xff")
    with pytest.raises(
        RecipeError, match=rf"callbacks\[0\]: the callback {name} needs the package {name}: pip install"
    ):
        trained(small(tmp_path, callbacks=[name]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_what_is_in_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(small(tmp_path, steps=4, callbacks=["tensorboard"]), tmp_path / "run")
    run = trained(small(tmp_path, steps=6, callbacks=["tensorboard"]), tmp_path / "run", resume=True)
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for tag, name in (("loss", "loss"), ("valid/loss", "valid.loss"), ("learning_rate", "learning_rate")):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert found == [(record["step"], pytest.approx(record[name], rel=1e-6)) for record in records]
    assert load_run(run.folder).generate("one")


# --- one's own


@pytest.mark.full
def test_the_callback_of_the_documentation_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "tfkit" / "training" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import tfkit\n[^`]*?@tfkit\.register\(\"callback\"[^`]*?)```", text)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 15
    file = tmp_path / "plateau.py"
    file.write_text(code)
    callbacks = [{"type": "plateau", "steps": 3}]
    plain = small(tmp_path, steps=40, schedule={"type": "constant", "lr": 1e-12}).root.plain()
    plain["train"]["callbacks"] = callbacks
    run = trained(tfkit.load_recipe(plain, imports=[file]), tmp_path / "run")
    steps = len((run.folder / "metrics.jsonl").read_text().splitlines())
    assert 3 < steps < 40
    assert f"step {steps}: stopped by a callback: no lower loss in 3 steps" in (run.folder / "train.log").read_text()
    assert issubclass(REGISTRY.get("callback", "plateau"), Callback)
