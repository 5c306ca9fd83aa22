"""A run is killed at any of its file events: nothing is lost, and the same line goes on to the same bits."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.kills import fails, kills, shares, ways
from tests.training.small import outcome, small, trained
from tfkit.run import load_run

pytestmark = pytest.mark.timeout(1800)
MINE = {"notes.txt": "mine", "mine/deep.txt": "mine too", "checkpoints/best/model.safetensors": "a copy"}


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def leftovers(folder: Path) -> list[str]:
    """What no finished command leaves."""
    return [str(path) for path in folder.rglob(".*")]


def content(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@ways("keep", "best", 149, full=37, best=1, last=5)
def test_the_same_line_goes_on_after_any_kill(tmp_path: Path, keep: str, share: int) -> None:
    loaded, folder = small(tmp_path, keep=keep), tmp_path / "run"
    unbroken = outcome(trained(loaded, tmp_path / "unbroken").folder)
    seen = set()
    for event in kills(lambda: trained(loaded, folder, resume=True), share):
        if (folder / "model.safetensors").exists():
            assert (folder / "checkpoints").is_dir(), event  # weights never stand alone
            load_run(folder).generate("one", max_new_tokens=2)
            seen.add("weights")
        elif folder.is_dir() and any(folder.glob("checkpoints/step-*")):
            seen.add("checkpoint")
        else:
            seen.add("nothing")
        assert outcome(trained(loaded, folder, resume=True).folder) == unbroken, event
        assert not leftovers(tmp_path), event
        shutil.rmtree(folder)
    assert share > 1 or seen == {"nothing", "checkpoint", "weights"}


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again(tmp_path: Path) -> None:
    loaded, folder = small(tmp_path), tmp_path / "run"
    unbroken = outcome(trained(loaded, tmp_path / "unbroken").folder)
    for first in range(8, 200, 13):
        for number, _ in enumerate(kills(lambda: trained(loaded, folder, resume=True), first)):
            if number > 40:
                break
        assert outcome(trained(loaded, folder, resume=True).folder) == unbroken, first
        shutil.rmtree(folder)


@pytest.mark.full
@shares(47)
def test_replacing_leaves_the_old_run_or_the_new_one(tmp_path: Path, share: int) -> None:
    """The old run is whole at any time, in its place or as run.old."""
    aside = tmp_path / "run.old"
    before, after, folder = small(tmp_path, seed=1), small(tmp_path, seed=2), tmp_path / "run"
    old = trained(before, tmp_path / "old").folder
    unbroken = outcome(trained(after, tmp_path / "new").folder)
    written = outcome(old)
    for name, text in MINE.items():
        (old / name).parent.mkdir(exist_ok=True)
        (old / name).write_text(text)
    everything = content(old)
    shutil.copytree(old, folder)
    seen = set()
    for event in kills(lambda: trained(after, folder, force=True), share):
        if not folder.exists():
            assert content(aside) == everything, event
            seen.add("between")
        elif json.loads((folder / "environment.json").read_text())["seed"] == 1:
            assert outcome(folder) == written and content(folder) == everything, event
            seen.add("old")
        else:
            assert content(aside) == everything, event
            assert {"recipe.yaml", "resolved.yaml", "tokenizer.json"} <= set(os.listdir(folder)), event
            assert list(folder.glob("checkpoints/step-????????")), event
            seen.add("new")
        assert outcome(trained(after, folder, force=True).folder) == unbroken, event
        assert not set(MINE) & content(folder).keys(), event
        assert not leftovers(folder) and not list(tmp_path.glob(".*")), event
        shutil.rmtree(folder), shutil.rmtree(aside)
        shutil.copytree(old, folder)
    assert share > 1 or seen == {"old", "between", "new"}


@ways("how", "force", 307, full=67, force=2, resume=2)
def test_what_the_disk_refuses_is_told_and_costs_nothing(tmp_path: Path, how: str, share: int) -> None:
    before, after, folder = small(tmp_path, seed=1), small(tmp_path, seed=2), tmp_path / "run"
    unbroken = outcome(trained(after, tmp_path / "new").folder)
    written = outcome(trained(before, tmp_path / "old").folder)
    if how == "force":
        shutil.copytree(tmp_path / "old", folder)
    for event in fails(lambda: trained(after, folder, **{how: True}), share):
        if how == "force" and json.loads((folder / "environment.json").read_text())["seed"] == 1:
            assert outcome(folder) == written, event
        assert outcome(trained(after, folder, **{how: True}).folder) == unbroken, event
        assert not leftovers(folder) and not list(tmp_path.glob(".*")), event
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "run.old", ignore_errors=True)
        if how == "force":
            shutil.copytree(tmp_path / "old", folder)
