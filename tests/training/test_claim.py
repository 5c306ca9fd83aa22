"""Run folders: one process trains at a time, links are not followed, and nothing is lost."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.kills import KILLED, forked
from tests.sampling import each
from tests.training.small import outcome, small, trained
from tfkit.core.errors import RunError, UsageError
from tfkit.run import Run, load_run
from tfkit.runs.claim import Claim, claim_folder, one_training
from tfkit.runs.folder import RunFolder
from tfkit.storage.files import temporary
from tfkit.training.loop import Trainer

SMALL = {"steps": 1, "metrics": []}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("done")
    return trained(small(folder), folder / "run")


@pytest.fixture
def run(done: Run, tmp_path: Path) -> Path:
    """A finished run that a test may damage."""
    shutil.copytree(done.folder, tmp_path / "run")
    return tmp_path / "run"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_a_second_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ready, there = os.pipe()
    waiting, release = os.pipe()

    def wait(*_: Any) -> None:
        os.write(there, b".")
        os.close(release)
        os.read(waiting, 1)  # until the parent closes the pipe

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        child = os.fork()
    if not child:
        Trainer._step = wait  # type: ignore[method-assign,assignment]
        try:
            trained(small(tmp_path, **SMALL), None)
        finally:
            os._exit(1)
    os.read(ready, 1)
    folder = Path("runs") / small(tmp_path).name
    before = content(folder)
    for options in ({}, {"resume": True}, {"force": True}):
        with pytest.raises(RunError, match=rf"{folder}: is being trained by process {child}$"):
            trained(small(tmp_path), folder, **options)
    assert content(folder) == before
    assert trained(small(tmp_path, **SMALL), None).folder == folder.with_name(f"{folder.name}-2")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for handle in (ready, there, waiting, release):
        os.close(handle)


def test_claims_of_one_name_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claims = [claim_folder("a", None, False, False) for _ in range(3)]
    assert [str(claim.folder) for claim in claims] == ["runs/a", "runs/a-2", "runs/a-3"]
    with claims[1]:
        pass
    assert not Path("runs/a-2").exists()  # nothing was written into it
    again = claim_folder("a", None, False, False)
    assert str(again.folder) == "runs/a-2"
    for claim in (*claims, again):
        with claim:
            pass
    assert not os.listdir("runs")


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with Claim(RunFolder(tmp_path / "run")), pytest.raises(RunError, match="is being trained"):
        Claim(RunFolder(tmp_path / "run"))
    assert (tmp_path / "run").is_dir() and not os.listdir(tmp_path / "run")
    with Claim(RunFolder(tmp_path / "a" / "b" / "c")):
        assert (tmp_path / "a" / "b" / "c").is_dir()
    assert os.listdir(tmp_path) == ["run"]


def test_leftovers_of_a_kill_are_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    temporary(folder / "environment.json").write_text("{")
    (folder / ".lock").touch()
    assert RunFolder(folder).is_free
    trained(small(tmp_path, **SMALL), folder)
    assert not list(folder.glob(".*"))


@pytest.mark.full
def test_two_trainings_in_one_process_are_refused(tmp_path: Path) -> None:
    seen: list[BaseException] = []

    def second() -> None:
        try:
            trained(small(tmp_path, **SMALL), tmp_path / "second")
        except UsageError as error:
            seen.append(error)

    step = Trainer._step
    done = []

    def beside(self: Trainer, *arguments: Any) -> Any:
        if not done:
            done.append(1)
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", beside)
        trained(small(tmp_path, **SMALL), tmp_path / "first")
    assert len(seen) == 1 and "another thread of this process is training" in str(seen[0])
    assert not (tmp_path / "second").exists()
    trained(small(tmp_path, **SMALL), tmp_path / "second")
    with one_training():  # a child of a process that trains may train
        assert forked(lambda: trained(small(tmp_path, **SMALL), tmp_path / "third")) == 0


@pytest.mark.parametrize("damage", ["removed", "emptied", "renamed", "moved", "weights alone"])
def test_resume_never_deletes_a_model(done: Run, run: Path, damage: str) -> None:
    checkpoints = run / "checkpoints"
    if damage == "moved":
        checkpoints.rename(run / "old")
    elif damage == "renamed":
        for path in list(checkpoints.iterdir()):
            path.rename(checkpoints / f"best-{path.name}")
    else:
        shutil.rmtree(checkpoints)
        if damage == "emptied":
            checkpoints.mkdir()
        elif damage == "weights alone":
            (run / "SHA256SUMS").unlink()
            for name in ("environment.json", "evaluation.json"):
                text = (run / name).read_text() if name == "environment.json" else ""
                (run / name).write_text(text.replace('"finished"', '"x"')) if text else (run / name).unlink()
    before = content(run)
    loaded = small(run.parent)
    for recipe in (small(run.parent, seed=5), loaded):
        with pytest.raises(RunError, match=r"run: contains model\.safetensors.* but no checkpoint to resume") as error:
            trained(recipe, run, resume=True)
    assert "--force replaces the run, or choose another --out" in str(error.value)
    assert ("if old contains its checkpoints, rename it to checkpoints" in str(error.value)) == (damage == "moved")
    assert ("checkpoints/best-step" in str(error.value)) == (damage == "renamed")
    with pytest.raises(RunError, match=r"run: contains model\.safetensors.*--force replaces it, or choose") as error:
        trained(loaded, run)
    assert "--resume" not in str(error.value)
    assert content(run) == before
    if damage == "moved":
        (run / "old").rename(checkpoints)
        trained(small(done.folder.parent), run, resume=True)  # is finished


@pytest.mark.full
def test_renamed_checkpoints_of_a_stopped_run_are_reported(run: Path) -> None:
    for name in ("model.safetensors", "evaluation.json", "SHA256SUMS"):
        (run / name).unlink()
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"finished"', '"x"'))
    (run / "checkpoints").rename(run / "saved")
    with pytest.raises(RunError, match="run: contains saved/, but no checkpoint"):
        trained(small(run.parent), run, resume=True)
    (run / "saved").rename(run.parent / "saved")
    assert outcome(trained(small(run.parent), run, resume=True).folder)  # nothing could be lost


@pytest.mark.full
def test_force_keeps_what_was_there_as_name_old(run: Path) -> None:
    old = run.with_name("run.old")
    for name in ("notes.txt", "mine/a", "checkpoints/copy/state.json", "x.damaged"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(name)
    before = content(run)
    for seed in (3, 4):
        trained(small(run.parent, seed=seed, **SMALL), run, force=True)
        assert before == {name: data for name, data in content(old).items() if name != ".lock"}
        assert "the previous run is now run.old" in (run / "train.log").read_text()
        assert not list(run.glob(".*")) and not list(run.parent.glob(".*"))
        before = content(run)
    trained(small(run.parent, seed=3, steps=2, metrics=[]), old, resume=True)  # it is a run of its own from now on
    before = content(run.parent)
    with pytest.raises(RunError, match=r"run\.old: already exists, and was not moved aside by tfkit; move it"):
        trained(small(run.parent, **SMALL), run, force=True)
    assert content(run.parent) == before


@pytest.mark.full
def test_a_run_that_a_kill_left_as_name_old_comes_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, before = os.rename, content(run)

    def killed() -> None:
        monkeypatch.setattr(os, "rename", rename)
        trained(small(run.parent, seed=3, **SMALL), run, force=True)

    def rename(source: Path, goal: Path) -> None:
        if Path(goal) == run:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(source, goal)

    assert forked(killed) == KILLED
    assert not run.exists() and run.with_name("run.old").is_dir()
    with pytest.raises(RunError, match="run: contains a finished run"):
        trained(small(run.parent), run)
    assert content(run) == before and not list(run.parent.glob(".*")) and not run.with_name("run.old").exists()


LINKED = ["checkpoints", "train.log", "model.safetensors", "checkpoints/step", "checkpoints/step/state.json"]


@pytest.mark.full
def test_links_are_not_followed(run: Path) -> None:
    outside, newest = run.parent / "outside", max(os.listdir(run / "checkpoints"))
    loaded = small(run.parent, steps=5)

    def refused(name: str) -> None:
        path = run / name.replace("step", newest)
        path.rename(outside)
        path.symlink_to(outside)
        before = content(run.parent)
        with pytest.raises(RunError, match=rf"{path.name}: is a link, so tfkit would write outside the run"):
            trained(loaded, run, resume=True)
        assert content(run.parent) == before and path.is_symlink()
        path.unlink()
        outside.rename(path)

    each(LINKED, refused)
    (run / "checkpoints").rename(outside)
    (run / "checkpoints").symlink_to(outside)
    before = content(outside)
    for _ in range(2):  # the second run removes the folder with the link
        trained(small(run.parent, **SMALL), run, force=True)
        assert content(outside) == before
    assert not [path for path in run.rglob("*") if path.is_symlink()]


def test_entries_of_another_kind_are_refused(run: Path) -> None:
    def refused(name: str) -> None:
        (run / name).rename(run.parent / name)
        make = {"checkpoints": (run / name).touch, "train.log": lambda: os.mkfifo(run / name)}
        make.get(name, (run / name).mkdir)()
        with pytest.raises(RunError, match=rf"{name}: not a (folder|regular file), as required here"):
            trained(small(run.parent, steps=5), run, resume=True)
        (run / name).rmdir() if name == "metrics.jsonl" else (run / name).unlink()
        (run.parent / name).rename(run / name)

    each(["metrics.jsonl", "train.log", "checkpoints"], refused)


@pytest.mark.full
def test_the_run_itself_may_be_a_link(run: Path) -> None:
    link = run.parent / "link"
    link.symlink_to("run")
    trained(small(run.parent, seed=3, **SMALL), link, force=True)
    assert link.is_symlink() and run.is_dir() and not run.is_symlink()
    assert load_run(link).recipe.train.seed == load_run(run).recipe.train.seed == 3
    (run.parent / "dangling").symlink_to("made")
    trained(small(run.parent, **SMALL), run.parent / "dangling")
    assert (run.parent / "made" / "model.safetensors").is_file()
    (run.parent / "loop").symlink_to("loop")
    with pytest.raises(RunError, match="loop: cannot be created"):
        trained(small(run.parent), run.parent / "loop")


def test_the_current_folder_is_trained_in_but_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert trained(small(tmp_path, **SMALL), ".").model is not None
    before = content(tmp_path / "here")
    with pytest.raises(RunError, match="is the current folder, which would be replaced; change to another"):
        trained(small(tmp_path, seed=3), ".", force=True)
    assert content(tmp_path / "here") == before and "model.safetensors" in before


def test_folders_that_cannot_be_created_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("", " ", "a\0b"):
        with pytest.raises(UsageError, match=r"--out: .* not a valid folder name"):
            trained(small(tmp_path), name)
    assert sorted(os.listdir(tmp_path)) == ["train.txt", "valid.txt"]
    (tmp_path / "file").touch()
    for name, why in {
        "file": "is a file",
        "file/x": "cannot be created: Not a directory",
        "x" * 300: "cannot be read: File name too long",
    }.items():
        with pytest.raises(RunError, match=f"{name}: {why}"):
            trained(small(tmp_path), tmp_path / name)


def test_an_environment_that_cannot_be_read_is_named(run: Path) -> None:
    for text, why in {"{": "cannot be read", "[]": "not a mapping", "[" * 10**5: "cannot be read"}.items():
        (run / "environment.json").write_text(text)
        for how in ("resume", "force"):
            with pytest.raises(RunError, match=rf"environment\.json: {why}"):
                trained(small(run.parent), run, **{how: True})
    (run / "environment.json").unlink()
    with pytest.raises(RunError, match="not empty and not a tfkit run"):
        trained(small(run.parent), run, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("out", [None, "run"])
def test_two_commands_at_once(tmp_path: Path, out: str | None) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text((trained(small(tmp_path, steps=30), tmp_path / "first").folder / "resolved.yaml").read_text())
    command = [sys.executable, "-m", "tfkit", "train", str(recipe), *(["--out", out] if out else [])]
    for _ in range(4):
        both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        said = [one.communicate(timeout=200)[1] for one in both]
        codes = [one.returncode for one in both]
        if out:
            assert sorted(codes) == [0, 2], said
            assert any("is being trained by process" in text or "contains a finished run" in text for text in said)
            shutil.rmtree(tmp_path / out)
        else:
            assert codes == [0, 0], said
    runs = list((tmp_path / "runs").iterdir()) if out is None else []
    assert len(runs) == (8 if out is None else 0)
    for folder in runs:
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 30 and load_run(folder).model is not None
