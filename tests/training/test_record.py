"""Runs whose files are damaged, exchanged, or of an older version: nothing is used silently."""

import json
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save

from tests.training.small import LINES, outcome, small, trained
from tfkit.cli.main import main
from tfkit.core.errors import RunError, TfkitError, TfkitWarning
from tfkit.recipe.load import load_recipe
from tfkit.run import Run, load_run, train
from tfkit.runs.checkpoint import Checkpoints
from tfkit.runs.weights import Weights
from tfkit.storage.checksums import SUMS, check, read_sums, write
from tfkit.training.loop import Trainer

READ = ("resolved.yaml", "tokenizer.json", "environment.json", "model.safetensors")  # by load_run and Run.model


SETTINGS: dict[str, Any] = {"steps": 4, "checkpoint_every": 2, "evaluate_every": 2, "samples": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one shape, `x` and `y`, and `six`, which is `x` with 6 steps."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in {"x": {}, "y": {"seed": 1}, "six": {"steps": 6}}.items():
        trained(small(folder, **{**SETTINGS, **options}), folder / name)
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(runs / "x", tmp_path / "x")
    return tmp_path / "x"


def flip(file: Path, rng: random.Random) -> None:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def resume(folder: Path, steps: int = 6, **options: Any) -> Run:
    source = load_recipe(folder / "recipe.yaml", overrides={"train.steps": steps})
    return train(source, out=folder, resume=True, progress=False, **options)


def is_right(folder: Path) -> bool:
    """True if the manifests of a run and its checkpoints list all files as they are."""
    for place in (folder, *Checkpoints(folder / "checkpoints").all()):
        names = {path.name for path in place.iterdir() if path.is_file()} - {SUMS}
        sums = read_sums(place)
        assert sums is not None and sums.keys() == names and all(len(found) == 1 for found in sums.values())
        for name in names:
            check(place, name)
    return True


# --- damage


def check_flips_in_a_run(run: Path, flips: int) -> None:
    names = [path.name for path in run.iterdir() if path.is_file() and path.name != SUMS]
    for name in names:
        before = (run / name).read_bytes()
        for number in range(flips):
            flip(run / name, random.Random(f"{name} {number}"))
            with pytest.raises(RunError, match=rf"{name}: has changed since it was written"):
                _ = load_run(run).model if name in READ else check(run, name)
            (run / name).write_bytes(before)
    before = (run / SUMS).read_bytes()
    for number in range(flips):
        flip(run / SUMS, random.Random(number))
        with pytest.raises(RunError, match=rf"{SUMS}"):
            for name in names:
                check(run, name)
        (run / SUMS).write_bytes(before)
    assert load_run(run).model is not None


def check_flips_in_a_checkpoint(run: Path, flips: int) -> None:
    checkpoints = Checkpoints(run / "checkpoints")
    before, newest = checkpoints.all()
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        for number in range(flips):
            said: list[str] = []
            flip(file, random.Random(f"{file.name} {number}"))
            assert checkpoints.sound(said.append) == before
            assert said and all(str(newest) in text for text in said)
            file.write_bytes(whole)
    assert checkpoints.sound(said.append) == newest


@pytest.mark.parametrize("flips", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_flipped_bits_are_noticed(run: Path, flips: int) -> None:
    check_flips_in_a_run(run, flips)
    check_flips_in_a_checkpoint(run, 2 * flips)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def test_truncated_and_missing_files_of_a_checkpoint_are_noticed(run: Path) -> None:
    checkpoints, said = Checkpoints(run / "checkpoints"), []
    before, newest = checkpoints.all()
    whole = {file: file.read_bytes() for file in newest.iterdir()}
    for file, content in whole.items():
        cut(file)
        assert checkpoints.sound(said.append) == before and str(file) in said.pop()
        file.unlink()
        older = file.name == SUMS  # a checkpoint without a manifest is one of an older version, and trusted
        assert checkpoints.sound(said.append) == (newest if older else before)
        file.write_bytes(content)
    for file in whole:
        cut(file)
    said.clear()
    checkpoints.sound(said.append)
    assert said == [f"{newest / SUMS}: truncated last line"]


@pytest.mark.full
def test_the_checkpoint_before_is_used(runs: Path, run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    cut(newest / "optimizer.safetensors")
    resume(run)
    assert outcome(run) == outcome(runs / "six")
    log = (run / "train.log").read_text()
    assert f"{newest / 'optimizer.safetensors'}: has changed since it was written" in log
    assert f"{newest}: set aside as step-00000004.damaged; step-00000002 is used" in log
    assert newest.with_name("step-00000004.damaged").is_dir() and is_right(run)


def test_both_checkpoints_damaged_is_an_error_that_names_both(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for checkpoint, name in zip(Checkpoints(run / "checkpoints").all(), ("model", "optimizer"), strict=True):
        file = checkpoint / f"{name}.safetensors"
        flip(file, random.Random(0))
        before[file] = file.read_bytes()
    with pytest.raises(RunError, match=r"(?s)4/optimizer\.safetensors: .*2/model\.safetensors: .*cannot be resumed"):
        resume(run)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.full
def test_a_checkpoint_of_the_same_step_is_replaced_by_the_one_trained_again(runs: Path, run: Path) -> None:
    flip(run / "checkpoints/step-00000004/model.safetensors", random.Random(0))
    resume(run, steps=4)  # finished: nothing reads it
    resume(run)
    again = run / "checkpoints/step-00000004/model.safetensors"
    assert again.read_bytes() == (runs / "x/checkpoints/step-00000004/model.safetensors").read_bytes()


# --- exchange


def exchange(runs: Path, run: Path, name: str = "model.safetensors") -> None:
    """Put a file of another run of the same shape in its place."""
    shutil.copyfile(runs / "y" / name, run / name)


def test_weights_of_another_run_are_accepted_by_a_flag(runs: Path, run: Path) -> None:
    exchange(runs, run)
    with pytest.raises(RunError, match=r"x/model\.safetensors: .*--accept-changes records the current file"):
        load_run(run).generate("one")
    with pytest.warns(TfkitWarning, match=r"x/model\.safetensors: recorded as it is now"):
        accepted = load_run(run, accept_changes=True)
    theirs = Weights.read(runs / "y" / "model.safetensors").by_name()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in accepted.model.state_dict().items())
    assert load_run(run, accept_changes=True).generate("one") == load_run(run).generate("one")
    assert is_right(run)


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoints/step-00000004/optimizer.safetensors"])
@pytest.mark.parametrize("pickled", [False, True])
def test_incomplete_weights_are_never_recorded(run: Path, name: str, pickled: bool) -> None:
    if pickled:
        torch.save({"a": torch.ones(2)}, run / name)
    else:
        cut(run / name)
    sums = run / name.replace(Path(name).name, SUMS)
    before = sums.read_bytes()
    with pytest.raises(RunError, match=rf"{name}: not a complete safetensors file"):
        resume(run, accept_changes=True)
    assert sums.read_bytes() == before


def test_nothing_is_recorded_before_all_was_read(run: Path) -> None:
    """Each file is whole, and another one of the folder cannot be used; the exchanged one stays unrecorded."""
    with (run / "README.md").open("a") as card:
        card.write("mine")
    checkpoint = run / "checkpoints/step-00000004"
    sums, before = (run / SUMS, checkpoint / SUMS), [(run / SUMS).read_bytes(), (checkpoint / SUMS).read_bytes()]
    other = save({name: torch.cat((one, one)) for name, one in load_file(run / "model.safetensors").items()})
    for name, text, said in (
        ("resolved.yaml", b"tfkit: 1\nmodel: 3\n", "model"),
        ("tokenizer.json", b"{}", r"tokenizer\.json"),
        ("environment.json", b"{", r"environment\.json"),
        ("run.json", b"[1", r"run\.json"),
        ("model.safetensors", other, "shape|size|recipe"),
        ("checkpoints/step-00000004/model.safetensors", other, "shape|size|recipe"),
    ):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(text)
        with pytest.raises(TfkitError, match=said):
            _ = resume(run, accept_changes=True) if "step" in name else load_run(run, accept_changes=True)
        assert [file.read_bytes() for file in sums] == before, name
        (run / name).write_bytes(whole)
    with pytest.warns(TfkitWarning, match=r"README\.md: recorded as it is now"):
        load_run(run, accept_changes=True)


def test_a_finished_run_says_what_it_does_not_take_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for change, said in (
        ({}, ""),
        ({"train.schedule": {"type": "constant", "lr": 0.5}}, "train.schedule.lr: "),
        ({"train.evaluate_every": 4}, "train.evaluate_every: 2 in the run, 4 in the recipe"),
    ):
        made = load_recipe(run / "recipe.yaml", overrides=change)
        train(made, out=run, resume=True)
        text = capsys.readouterr().out
        assert "already finished" in text and ("nothing of it is used" in text) == bool(said) and said in text


def test_a_checkpoint_can_be_exchanged_on_purpose(runs: Path, run: Path) -> None:
    exchange(runs, run, "checkpoints/step-00000004/model.safetensors")
    with pytest.warns(TfkitWarning, match=r"step-00000004/model\.safetensors: recorded as it is now"):
        resume(run, accept_changes=True)
    assert outcome(run)["weights"] != outcome(runs / "six")["weights"]
    assert is_right(run)


COMMANDS = [
    pytest.param(["generate", "RUN", "one"], id="generate"),
    pytest.param(["evaluate", "RUN"], id="evaluate", marks=pytest.mark.slow),
    pytest.param(["embed", "RUN", "TEXT"], id="embed"),
    pytest.param(["export", "RUN", "NEW"], id="export", marks=pytest.mark.slow),
    pytest.param(["train", "RECIPE", "--out", "RUN", "--resume"], id="train"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_opens_a_run_has_the_flag(
    runs: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    exchange(runs, run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("\n".join(LINES))
    places = {"RUN": str(run), "TEXT": "text", "NEW": "new", "RECIPE": str(run / "recipe.yaml")}
    line = [places.get(word, word) for word in command]
    refused = CliRunner().invoke(main, line)
    assert refused.exit_code == 2 and "model.safetensors: has changed since it was written" in refused.stderr
    accepted = CliRunner().invoke(main, [*line, "--accept-changes"])
    assert accepted.exit_code == 0, accepted.output
    assert "model.safetensors: recorded as it is now" in accepted.stderr
    assert CliRunner().invoke(main, [*line, *(["--force"] if command[0] == "export" else [])]).exit_code == 0


def test_a_file_that_came_or_went_is_told(run: Path) -> None:
    (run / "labels.json").write_text('["a", "b"]')
    with pytest.raises(RunError, match=r"labels\.json: not listed in SHA256SUMS"):
        load_run(run)
    (run / "labels.json").unlink()
    (run / "environment.json").unlink()
    with pytest.raises(RunError, match=r"environment\.json: is missing, but listed in SHA256SUMS"):
        load_run(run)


def test_what_tells_of_a_run_without_opening_it_warns(run: Path) -> None:
    (run / "resolved.yaml").write_text((run / "resolved.yaml").read_text() + "\n")
    for line in (["show", str(run)], ["check", str(run / "resolved.yaml")]):
        told = CliRunner().invoke(main, line)
        assert told.exit_code == 0 and "resolved.yaml: has changed since it was written" in told.stderr
    with pytest.raises(RunError, match=r"resolved\.yaml: has changed .*--accept-changes"):
        load_run(run)
    with pytest.warns(TfkitWarning, match=r"resolved\.yaml: recorded as it is now"):
        assert load_run(run, accept_changes=True).evaluate()
    assert "has changed" not in CliRunner().invoke(main, ["show", str(run)]).stderr


def test_scores_of_a_changed_file_are_not_kept(run: Path) -> None:
    load_run(run).evaluate()
    file = run / "evaluation.json"
    file.write_text(file.read_text().replace("loss", "lost"))
    with pytest.raises(RunError, match=r"evaluation\.json: has changed"):
        load_run(run).evaluate()
    file.unlink()  # which is no damage: it is written again
    assert load_run(run).evaluate() and is_right(run)


def test_weights_that_are_gone_are_written_again_and_it_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors: is missing"):
        load_run(run)
    resume(run, steps=4)
    assert (run / "model.safetensors").read_bytes() == before and is_right(run)  # the last step was the best


def test_a_damaged_record_is_told_and_written_anew(run: Path) -> None:
    (run / SUMS).write_text("nonsense\n")
    with pytest.raises(RunError, match=r"SHA256SUMS:1: expected a SHA-256"):
        load_run(run)
    with pytest.warns(TfkitWarning):
        load_run(run, accept_changes=True)
    assert load_run(run).model is not None


def test_only_a_run_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine")
    with pytest.raises(RunError, match="contains no run"):
        load_run(tmp_path, accept_changes=True)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


# --- what tfkit does itself


@pytest.mark.full
def test_the_record_is_right_after_everything_that_tfkit_does(run: Path) -> None:
    assert is_right(run)
    load_run(run).evaluate()
    assert is_right(run)
    assert resume(run).evaluate("train")
    assert is_right(run)
    trained(small(run.parent, **{**SETTINGS, "steps": 2}), run, force=True)
    assert is_right(run)


def test_the_manifest_is_written_when_training_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer._step

    def interrupted(trainer: Trainer, *arguments: Any) -> Any:
        assert not (tmp_path / "run" / SUMS).exists()
        if trainer.progress.step == 3:
            raise KeyboardInterrupt
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    for resumed in (False, True):
        with pytest.raises(KeyboardInterrupt):
            trained(small(tmp_path, **SETTINGS), tmp_path / "run", resume=resumed)
        assert is_right(tmp_path / "run")


def test_runs_of_the_version_before_are_read_and_resumed(runs: Path, run: Path) -> None:
    """Their manifest was kept while they were trained, with two lines for a file that a killed process replaced."""
    sums = read_sums(run)
    assert sums is not None
    write(run, {name: ("0" * 64, *one) for name, one in sums.items() if name not in ("metrics.jsonl", "train.log")})
    assert load_run(run).model is not None
    resume(run)
    assert outcome(run) == outcome(runs / "six") and is_right(run)


def test_a_run_of_an_older_version_is_believed_until_it_goes_on(run: Path) -> None:
    for path in run.rglob(SUMS):
        path.unlink()
    (run / "labels.json").write_text("[]")
    assert load_run(run).evaluate()
    assert not (run / SUMS).exists()
    state = json.loads((run / "checkpoints/step-00000004/state.json").read_text())
    tokens = state["progress"]["tokens"]
    del state["progress"]["targets"]  # which `tokens` was the number of
    (run / "checkpoints/step-00000004/state.json").write_text(json.dumps(state))
    resume(run)
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[4])["targets"] > tokens
    assert len(list(run.rglob(SUMS))) == 2
    load_run(run).evaluate("train")
    check(run, "evaluation.json")


def test_readers_never_complain_while_a_run_is_trained(runs: Path, run: Path) -> None:
    """They get the weights of before, or those of after."""
    versions = [Weights.read(runs / name / "model.safetensors") for name in ("x", "y")]
    known = [weights.by_name()["head.output.weight"] for weights in versions]
    stop = threading.Event()
    (run / SUMS).unlink()

    def write() -> None:
        while not stop.is_set():
            for weights in versions:
                weights.save(run / "model.safetensors")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            found = load_run(run).model.state_dict()["head.output.weight"]
            assert any(torch.equal(found, one) for one in known)
    finally:
        stop.set()
        writer.join()
