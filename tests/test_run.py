"""Runs: their folder, when it is refused, resumed or replaced, and generation and evaluation."""

import copy
import importlib.metadata
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tfkit
from tfkit.core.errors import RecipeError, RunError, UsageError
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.run import Run, evaluate, load_run, train
from tfkit.training.loop import Trainer
from tfkit.training.objective import Answers, CausalLm
from tfkit.training.objective.completion import CausalRows
from tfkit.training.processes import Interrupted, Interrupts
from tfkit.training.scoring import SampleOutput, cut, print_samples

from .sampling import some

PHRASES = {"type": "phrases", "train": 60, "valid": 8, "test": 12}
TRANSLATION: dict[str, Any] = {
    "tfkit": 1,
    "model": {
        "type": "encoder_decoder",
        "d_model": 8,
        "vocab_size": "tokenizer",
        "embedding": {"type": "tokens", "shared": True, "dropout": 0.1},
        "position": "sinusoidal",
        "layer": {
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": 2},
            "feedforward": {"type": "mlp", "d_ff": 16},
            "dropout": 0.1,
        },
        "encoder": {"num_layers": 1},
        "decoder": {"num_layers": 1},
        "head": {"type": "language_model", "tied": True},
        "init": "xavier",
    },
    "data": {
        "tokenizer": "word",
        "train": PHRASES,
        "valid": {**PHRASES, "split": "valid"},
        "test": {**PHRASES, "split": "test"},
        "batch": {"tokens": 128},
    },
    "objective": "seq2seq",
    "train": {"steps": 6, "device": "cpu", "samples": 2, "schedule": {"type": "constant", "lr": 0.01}},
    "generate": {"max_new_tokens": 6},
}
FILES = {
    *("recipe.yaml", "resolved.yaml", "tokenizer.json", "model.safetensors"),
    *("checkpoints", "metrics.jsonl", "train.log", "environment.json", "run.json", "README.md", "SHA256SUMS"),
}


def recipe(**overrides: Any) -> Recipe:
    return load_recipe(TRANSLATION, overrides={key.replace("__", "."): value for key, value in overrides.items()})


def language(**overrides: Any) -> Recipe:
    """A decoder on characters."""
    data = {"tokenizer": "character", "train": {"type": "docstrings", "limit": 5}}
    base = {**TRANSLATION, "data": {**data, "valid": data["train"]}, "objective": {"type": "causal_lm", "block": 16}}
    model = {name: value for name, value in base["model"].items() if name not in ("encoder", "decoder")}
    own = {"type": "decoder", "num_layers": 1, "max_length": 16, "position": "learned", "embedding": {"type": "tokens"}}
    base["model"] = {**model, **own}
    return load_recipe(base, overrides=overrides)


def silent(loaded: Any, out: Path | None, **options: Any) -> Run:
    return train(loaded, out=out, progress=False, **options)


def weights(run: Run | Path) -> bytes:
    return ((run.folder if isinstance(run, Run) else run) / "model.safetensors").read_bytes()


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return silent(recipe(), tmp_path_factory.mktemp("runs") / "x")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return silent(language(), tmp_path_factory.mktemp("runs") / "language")


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Send a signal to this process while step n is computed."""
    step = Trainer._step

    def at(number: int, which: int = signal.SIGINT) -> None:
        def stopped(self: Trainer, *args: Any) -> Any:
            if self.progress.step + 1 == number:
                os.kill(os.getpid(), which)
            return step(self, *args)

        monkeypatch.setattr(Trainer, "_step", stopped)

    yield at
    monkeypatch.undo()


def test_the_folder_holds_what_it_should(trained: Run) -> None:
    assert {path.name for path in trained.folder.iterdir()} == FILES
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for name in ("step", "tokens", "targets", "loss", "learning_rate", "tokens_per_second", "targets_per_second"):
        assert all(line[name] > 0 for line in lines)
    assert all(0 <= line["waiting"] <= 1 for line in lines)
    assert "valid.loss" in lines[-1]
    environment = json.loads((trained.folder / "environment.json").read_text())
    assert environment["torch"] == importlib.metadata.version("torch") and environment["seed"] == 0
    assert {"tfkit", "python", "platform", "device", "threads", "started", "baseline"} <= environment.keys()
    log = (trained.folder / "train.log").read_text("utf-8")
    for said in ("parameters", "60 examples", "tokens", "5-gram", "valid loss", "tfkit generate", "reference:"):
        assert said in log
    loaded = load_recipe(trained.folder / "resolved.yaml")
    assert loaded.blueprint() == trained.recipe.blueprint(trained.tokenizer.vocab_size)
    for path in trained.folder.rglob("*"):
        known = path.suffix in (".yaml", ".json", ".jsonl", ".log", ".md", ".safetensors") or path.name == "SHA256SUMS"
        assert path.is_dir() or known, path  # nothing is pickled


@pytest.mark.full
def test_the_recipe_is_kept_as_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("# a comment\n" + (silent(recipe(), tmp_path / "first").folder / "recipe.yaml").read_text())
    run = silent(str(file), tmp_path / "second")
    assert (run.folder / "recipe.yaml").read_text() == file.read_text()
    assert weights(run) == weights(tmp_path / "first")


def test_a_run_can_be_moved_and_loaded(trained: Run, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in FILES - {"checkpoints"}:
        (moved / name).write_bytes((trained.folder / name).read_bytes())
    run = load_run(moved)
    assert run.recipe.name == trained.recipe.name
    sources = ["twenty-one", "the third new house"]
    assert run.generate(sources) == trained.generate(sources)
    assert not run.model.training
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, trained.model.state_dict()[name])


def test_missing_and_broken_files_are_named(trained: Run, tmp_path: Path) -> None:
    for other in FILES - {"checkpoints", "SHA256SUMS"}:
        (tmp_path / other).write_bytes((trained.folder / other).read_bytes())
    for name in ("resolved.yaml", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).rename(tmp_path / "aside")
        with pytest.raises(RunError, match=rf"{name}: is missing"):
            load_run(tmp_path)
        (tmp_path / "aside").rename(tmp_path / name)
    (tmp_path / "model.safetensors").write_bytes(weights(trained)[:100])
    with pytest.raises(RunError, match=r"model\.safetensors: not a complete safetensors file"):
        _ = load_run(tmp_path).model
    with pytest.raises(RunError, match="no such folder"):
        load_run(tmp_path / "nowhere")


@pytest.mark.full
def test_the_default_folder_takes_the_next_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = recipe(train__steps=1)
    name = loaded.name
    folders = [str(silent(loaded, None).folder) for _ in range(3)]
    assert folders == [f"runs/{name}", f"runs/{name}-2", f"runs/{name}-3"]
    again = silent(loaded, None, resume=True)  # the newest
    assert str(again.folder) == f"runs/{name}-3"


def test_a_folder_in_use_is_refused_and_left_alone(trained: Run, tmp_path: Path) -> None:
    before = weights(trained)
    with pytest.raises(RunError, match=r"contains a finished run of 6 steps; --force replaces it"):
        silent(recipe(train__steps=1), trained.folder)
    (tmp_path / "notes.txt").write_text("mine")
    for options in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(RunError, match="not empty and not a tfkit run"):
            silent(recipe(train__steps=1), tmp_path, **options)
    with pytest.raises(RunError, match="is a file"):
        silent(recipe(train__steps=1), tmp_path / "notes.txt")
    with pytest.raises(UsageError, match="one of the two"):
        silent(recipe(), tmp_path, resume=True, force=True)
    assert weights(trained) == before and [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_wrong_recipe_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.freeze"):
        silent(recipe(train__freeze=["nothing"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_more_steps_continue_a_finished_run(trained: Run, tmp_path: Path) -> None:
    silent(recipe(train__steps=3, train__keep="last"), tmp_path / "run", resume=True)
    loaded = recipe(train__keep="last", train__evaluate_every=2)
    run = silent(loaded, tmp_path / "run", resume=True)
    assert losses(run.folder) == losses(trained.folder)
    assert json.loads((run.folder / "environment.json").read_text())["finished"]["step"] == 6
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.safetensors")}
    again = silent(loaded, tmp_path / "run", resume=True)
    assert {path: path.stat().st_mtime_ns for path in again.folder.rglob("*.safetensors")} == before
    assert again.generate("one") == run.generate("one")


@pytest.mark.full
def test_another_recipe_cannot_resume(tmp_path: Path) -> None:
    silent(recipe(train__steps=1), tmp_path)
    changed = {"model__layer": {**TRANSLATION["model"]["layer"], "dropout": 0.2}}
    with pytest.raises(RunError, match=r"model\.encoder\.layer\.dropout: 0\.1 in the run, 0\.2 in the recipe"):
        silent(recipe(**changed), tmp_path, resume=True)
    with pytest.raises(RunError, match=r"train\.seed: 0 in the run, 3 in the recipe"):
        silent(recipe(train__seed=3), tmp_path, resume=True)
    with pytest.raises(RunError, match=r"objective\.label_smoothing"):
        silent(recipe(objective={"type": "seq2seq", "label_smoothing": 0.1}), tmp_path, resume=True)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("keep", some(["best", "last", {"mean": 2}]))
def test_an_interrupted_run_goes_on_to_the_same_bits(
    tmp_path: Path, stop_at: Any, which: int, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = recipe(train__keep=keep, train__checkpoint_every=2)
    straight = silent(loaded, tmp_path / "straight")
    stop_at(3, which)
    with pytest.raises(Interrupted, match=r"stopped at step 3 of 6; to resume: tfkit train .*stopped --resume"):
        silent(loaded, tmp_path / "stopped")
    assert len(losses(tmp_path / "stopped")) == 3  # the step was finished
    assert load_run(tmp_path / "stopped").generate("one")  # and the run can be used
    with pytest.raises(RunError, match="stopped at step 3; --resume continues it"):
        silent(loaded, tmp_path / "stopped")
    monkeypatch.undo()
    run = silent(loaded, tmp_path / "stopped", resume=True)
    assert losses(run.folder) == losses(straight.folder)
    assert run.model.state_dict().keys() == straight.model.state_dict().keys()
    for name, tensor in run.model.state_dict().items():
        torch.testing.assert_close(
            tensor, straight.model.state_dict()[name], rtol=0, atol=0 if isinstance(keep, str) else 1
        )


@pytest.mark.full
def test_the_advice_after_an_interrupt_holds(tmp_path: Path, stop_at: Any) -> None:
    """With --set the recipe's file alone would be another recipe."""
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(TRANSLATION))
    stop_at(2)
    with pytest.raises(Interrupted, match=rf"tfkit train {file} --out"):
        silent(load_recipe(str(file)), tmp_path / "a")
    with pytest.raises(Interrupted, match=r"tfkit train \S*/b/resolved\.yaml --out"):
        silent(load_recipe(str(file), sets=["model.d_model=16"]), tmp_path / "b")
    run = silent(str(tmp_path / "b" / "resolved.yaml"), tmp_path / "b", resume=True)
    assert len(losses(run.folder)) == 6


def test_a_second_signal_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_can_train_and_random_states_are_left_alone(tmp_path: Path) -> None:
    done: list[Run] = []
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    thread = threading.Thread(target=lambda: done.append(silent(recipe(train__steps=1), tmp_path / "run")))
    thread.start()
    thread.join()
    assert len(done) == 1 and torch.equal(torch.rand(3), expected)


def test_generation_keeps_the_order_and_takes_one_text_too(trained: Run) -> None:
    texts = ["the third new house", "one", "twenty-one", "two new houses"]
    together = trained.generate(texts, batch_size=2)
    assert together == [trained.generate(text)[0] for text in texts]
    assert trained.generate([]) == []
    assert trained.generate("one", max_new_tokens=0) == [""]


def test_translations_are_bounded_and_metrics_measured(tmp_path: Path) -> None:
    bounds = {"generate__max_new_tokens": 50, "generate__length_ratio": 1.5}
    run = silent(recipe(train__steps=1, train__metrics=["exact_match"], **bounds), tmp_path / "run")
    scores = json.loads((run.folder / "evaluation.json").read_text())["test"]
    assert scores.keys() == {"examples", "loss", "exact_match"}
    assert "test: loss" in (run.folder / "train.log").read_text("utf-8")
    assert [run.writer().limit(length) for length in (2, 20, 200)] == [13, 40, 50]
    assert run.writer(7).limit(2) == 7


def test_a_language_model_continues(writer: Run) -> None:
    texts = writer.generate(["ab", "a", ""], max_new_tokens=5)
    assert len(texts) == 3 and all(len(text) <= 5 for text in texts)
    with pytest.raises(UsageError, match="reads at most 16"):
        writer.generate("a" * 17)
    scores = writer.evaluate("valid", limit=2)
    assert scores.keys() == {"loss", "perplexity"}
    with pytest.raises(UsageError, match="no split 'test'; it has train, valid"):
        writer.evaluate("test")
    assert writer.evaluate().keys() == {"loss", "perplexity"}  # valid, where there is no test


@pytest.mark.full
def test_a_run_keeps_a_decoder_for_each_way_to_quantize(writer: Run) -> None:
    plain, small = writer.decoder(), writer.decoder("int8")
    assert writer.decoder() is plain and writer.decoder("int8") is small is not plain
    measured = writer.evaluate(limit=2, quantize="int8")
    assert writer.decoder() is plain and plain.model is writer.model
    assert writer.evaluate(limit=2, quantize="int8") == measured
    writer.model = copy.deepcopy(writer.model)
    assert writer.decoder() is not plain and writer.decoder().model is writer.model


def test_ids_without_a_token_are_told_and_never_written(tmp_path: Path) -> None:
    run = silent(language(**{"model.vocab_size": 500, "train.steps": 1}), tmp_path / "x")
    size = run.tokenizer.vocab_size
    told = f"{500 - size} of the model's 500 token ids have no token in the tokenizer and are never generated"
    assert told in (run.folder / "train.log").read_text()
    drawn = run.candidates(["a"] * 4, 12, strategy="sample", seed=1)
    assert {id_ for (written,) in drawn for id_ in written.ids} <= set(range(size))


def test_evaluation(trained: Run) -> None:
    pytest.importorskip("sacrebleu")
    scores = evaluate(trained, "valid")
    assert scores.keys() == {"loss", "perplexity", "bleu", "exact_match"}
    last = json.loads((trained.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert scores["loss"] == pytest.approx(last["valid.loss"], rel=1e-6)
    assert evaluate(trained.folder, limit=3).keys() == scores.keys()
    written = json.loads((trained.folder / "evaluation.json").read_text())
    assert written["valid"] == {"examples": 8, **scores} and written["test"]["examples"] == 3
    (trained.folder / "evaluation.json").unlink()


def test_sources_too_long_count_as_failures(tmp_path: Path) -> None:
    run = silent(recipe(train__steps=1, model__max_length=5, model__position="learned"), tmp_path / "run")
    long, short = {"source": "one " * 9, "target": "x"}, {"source": "one", "target": "y"}
    outputs, references = run._scorer.outputs([long, short], "bleu")
    assert outputs[0] == "" and references == ["x", "y"]


@pytest.mark.full
def test_samples_stand_beside_their_references(
    trained: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    samples = trained.samples(2)
    assert len(samples) == 2 and all(sample.source and sample.reference for sample in samples)
    assert trained.samples(0) == []
    train(recipe(), tmp_path / "run")
    shown = capsys.readouterr().out
    assert "reference" in shown and "next: tfkit generate" in shown and "\r" not in shown
    stream = io.StringIO()
    print_samples([SampleOutput("a [b]", "c", "c")], stream)
    assert "a [b]" in stream.getvalue() and len(cut("x" * 500)) == 160


@pytest.mark.full
def test_an_objective_of_ones_own_translates_with_a_decoder(tmp_path: Path) -> None:
    """The target follows its source, and no encoder limits how much is read."""

    @tfkit.register("objective", "target_behind_source")
    class TargetBehindSource(CausalLm):
        class Joined(CausalRows):
            fields = ("source", "target")

            def prepare(self, examples: Any, tokenizer: Any, max_length: int | None) -> Any:
                joined = [{"text": f"{example['source']} {example['target']}"} for example in examples]
                return super().prepare(joined, tokenizer, max_length)

        class Targets(Answers):
            reference, predicts, metrics = "target", False, ("perplexity", "exact_match")

        rows_type, answers_type = Joined, Targets
        capabilities = frozenset({"likelihood", "words"})

    model = {name: value for name, value in TRANSLATION["model"].items() if name not in ("encoder", "decoder")}
    own = {"type": "decoder", "num_layers": 1, "max_length": 9, "position": "learned", "embedding": "tokens"}
    loaded = {**TRANSLATION, "objective": "target_behind_source", "model": {**model, **own}}
    run = silent(loaded, tmp_path / "x")
    assert [sample.reference for sample in run.samples(2)] == [
        example["target"] for example in run._examples("valid")[:2]
    ]
    assert run.evaluate("valid", limit=4).keys() == {"loss", "perplexity", "exact_match"}
    long = " ".join(["one"] * 10)
    outputs, _ = run._scorer.outputs([{"source": long, "target": "x"}, {"source": "one", "target": "y"}], "samples")
    assert outputs[0] == "" and len(outputs) == 2  # what is too long to be read counts as a failure


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_model_says_what_stack_it_lacks(kind: str) -> None:
    layer = {"norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 8}}
    model = {"type": kind, "d_model": 8, "num_layers": 1, "vocab_size": 9, "embedding": "tokens", "layer": layer}
    other = {"encoder": "decoder", "decoder": "encoder"}[kind]
    with pytest.raises(UsageError, match=f"this model has no {other}"):
        tfkit.build({"tfkit": 1, "model": model}).stack(other)


@pytest.mark.full
def test_relative_paths_in_a_recipe_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for side in ("en", "de"):
        (tmp_path / "data" / side).write_text("one two\ntwo three\n" * 5)
    pairs = {"type": "parallel_text", "source": "en", "target": "de"}
    plain = {**TRANSLATION, "data": {"tokenizer": "word", "train": pairs, "test": pairs}}
    (tmp_path / "data" / "mine.yaml").write_text(json.dumps(plain))
    run = silent("data/mine.yaml", Path("out") / "run")
    assert load_run("out/run").evaluate("test", limit=2)["loss"] > 0
    monkeypatch.chdir(tmp_path / "data")
    assert load_run("../out/run").evaluate("test", limit=2)["loss"] > 0
    assert silent("mine.yaml", Path("../out/run"), resume=True).folder.samefile(tmp_path / run.folder)


@pytest.mark.full
def test_a_run_within_its_time_is_returned_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = silent(recipe(), tmp_path / "straight")
    limited = recipe(train__max_time="2 h")
    with monkeypatch.context() as patch:
        patch.setattr("tfkit.training.loop.Trainer.is_late", property(lambda trainer: trainer.progress.step >= 3))
        run = silent(limited, tmp_path / "run")
    assert len(losses(run.folder)) == 3 and run.generate("one")
    said = (tmp_path / "run" / "train.log").read_text()
    assert "train.max_time: 2 h has passed; stopped at step 3 of 6; to resume: tfkit train" in said
    assert not (run.folder / "README.md").exists() and "finished" not in json.loads(
        (run.folder / "environment.json").read_text()
    )
    again = silent(limited, tmp_path / "run", resume=True)
    assert losses(again.folder) == losses(straight.folder)
    assert (again.folder / "README.md").exists()
