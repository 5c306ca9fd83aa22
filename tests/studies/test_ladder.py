"""`tfkit ladder` from its first line to its page: the forecast before the largest run, going on, faults."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.training.small import LINES, RECIPE
from tfkit.cli.main import main
from tfkit.storage import checksums
from tfkit.studies.sizes import LadderSize, shape_notes

pytestmark = pytest.mark.full

FILES = ("ladder.html", "ladder.md", "ladder.csv", "ladder.json", "prediction.json")
LARGEST = "16x2-8"


def recipe(folder: Path, name: str = "tiny", **sections: Any) -> Path:
    """A recipe of 4 heads and 2 layers whose sizes train in a moment."""
    corpora = {}
    for split, lines in (("train", LINES), ("valid", LINES[:2])):
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
        corpora[split] = {"type": "text", "files": f"{split}.txt"}
    layer = {**RECIPE["model"]["layer"], "attention": {"type": "multi_head", "num_heads": 4}}
    schedule = {"type": "linear", "lr": 0.01, "warmup": 4}
    train = {**RECIPE["train"], "steps": 8, "schedule": schedule, "evaluate_every": 4, "checkpoint_every": 4}
    whole: dict[str, Any] = {**RECIPE, "data": {**RECIPE["data"], **corpora}, "train": train}
    whole["model"] = {**RECIPE["model"], "d_model": 16, "num_layers": 2, "layer": layer}
    for section, values in sections.items():
        whole[section] = {**whole.get(section, {}), **values} if isinstance(values, dict) else values
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in whole.items() if value is not None}))
    return file


def tfkit(*arguments: object, folder: Path) -> Result:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner(env={"COLUMNS": "120"}).invoke(main, [str(argument) for argument in arguments])
    finally:
        os.chdir(before)


class Trained:
    """A training that has ended, in this process, with a loss that follows a law: its process as a runner sees it."""

    began: list[str] = []
    failing = ""
    above = 0.0  # what the largest size is above the law
    flat = False

    def __init__(self, words: Sequence[str], log: Path, threads: int | None = None) -> None:
        self.pid, self.returncode = 0, 0
        folder = Path(words[words.index("--out") + 1])
        if ".trial" not in str(folder):
            self.began.append(folder.name)
        if self.failing and self.failing in folder.name:
            log.write_text("tfkit: the disk is full")
            self.returncode = 2
            return
        result = CliRunner().invoke(main, list(words))
        assert result.exit_code == 0, result.output
        if ".trial" not in str(folder):
            self.bend(folder)

    def bend(self, folder: Path) -> None:
        """Write the loss of the law into the run."""
        file = folder / "run.json"
        history = json.loads(file.read_text())
        noise = math.sin(len(folder.name) + 7.0 * history["seed"] + history["tokens"] + history["parameters"])
        loss = 1.0 + 9.0 / history["parameters"] ** 0.3 + 3.0 / history["tokens"] ** 0.4
        loss = 2.0 if self.flat else loss
        loss *= 1 + 0.002 * noise + (self.above if folder.name.startswith(LARGEST) else 0.0)
        history["best"]["loss"] = loss
        checksums.write_json(file, history)

    def poll(self) -> int:
        return self.returncode

    wait = poll


def replaced(patch: pytest.MonkeyPatch) -> None:
    """Trainings happen in this process."""
    for name, value in (("began", []), ("failing", ""), ("above", 0.0), ("flat", False)):
        patch.setattr(Trained, name, value)
    patch.setattr("tfkit.studies.process.started", Trained)
    patch.setattr("tfkit.studies.process.can_fork", lambda: False)
    patch.setattr("tfkit.studies.trial.started", Trained)
    patch.setattr("tfkit.studies.runner.POLL", 0.001)


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.node.get_closest_marker("slow"):
        replaced(monkeypatch)


LINE = ("ladder", "tiny.yaml", "--sizes", 4, "--seeds", 1)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result, list[str]]:
    """The folder in which a ladder was trained, what it printed, and the runs in their order."""
    folder = tmp_path_factory.mktemp("ladder")
    recipe(folder)
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        return folder, tfkit(*LINE, folder=folder), list(Trained.began)


@pytest.fixture
def copy(ended: tuple[Path, Result, list[str]], tmp_path: Path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(ended[0], tmp_path / "copy"))


def test_a_ladder_says_what_it_does_predicts_and_is_right(ended: tuple[Path, Result, list[str]]) -> None:
    tmp_path, printed, began = ended
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.stdout.split())
    assert "10 runs of 4 sizes; seeds 0; " in text
    assert "16x2, held out" in text
    assert "16x2: predicted " in text
    assert "16x2: within the interval: predicted " in text
    assert "the page: ladders/tiny/ladder.html" in text
    assert began[-1] == f"{LARGEST}-s0"
    folder = tmp_path / "ladders" / "tiny"
    assert all((folder / name).is_file() for name in FILES)
    data = json.loads((folder / "ladder.json").read_text())
    assert data["verdict"].startswith("within")
    assert data["freedom"] == 9 - 5
    assert set(data["law"]) == {"E", "A", "a", "B", "b"}
    assert [size["name"] for size in data["sizes"]][-1] == "16x2"
    rows = list(csv.DictReader(io.StringIO((folder / "ladder.csv").read_text())))
    assert len(rows) == 10
    assert {row["state"] for row in rows} == {"done"}
    page = (folder / "ladder.html").read_text()
    assert page.count("<svg") == 2
    assert "16x2: within the interval" in page
    assert "arXiv 2203.15556" in (folder / "ladder.md").read_text()


@pytest.mark.slow
def test_the_forecast_is_there_before_the_largest_size_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the largest size does cannot change it."""
    replaced(monkeypatch)
    recipe(tmp_path)
    Trained.failing = LARGEST
    printed = tfkit(*LINE, folder=tmp_path)
    assert printed.exit_code == 1
    folder = tmp_path / "ladders" / "tiny"
    before = (folder / "prediction.json").read_bytes()
    assert "16x2: open: the largest size has no loss" in printed.stdout
    assert f"{LARGEST}-s0: failed: the disk is full" in printed.stdout
    Trained.failing, Trained.above, Trained.began = "", 0.5, []
    again = tfkit(*LINE, folder=tmp_path)
    assert again.exit_code == 0, again.output
    assert Trained.began == [f"{LARGEST}-s0"]
    assert "16x2: outside the interval: predicted " in again.stdout
    assert (folder / "prediction.json").read_bytes() == before


def test_the_same_line_repeats_nothing(copy: Path) -> None:
    folder = copy / "ladders" / "tiny"
    texts = {name: (folder / name).read_bytes() for name in FILES}
    Trained.began = []
    again = tfkit(*LINE, folder=copy)
    assert again.exit_code == 0, again.output
    assert Trained.began == []
    assert texts == {name: (folder / name).read_bytes() for name in FILES}
    (folder / "prediction.json").unlink()
    lost = tfkit(*LINE, folder=copy)
    assert lost.exit_code == 2
    assert "prediction.json: is missing, and 16x2-8-s0 has begun" in " ".join(lost.stderr.split())


@pytest.mark.slow
def test_a_size_that_failed_is_told_and_the_largest_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    recipe(tmp_path)
    Trained.failing = "4x1-4"
    printed = tfkit(*LINE, folder=tmp_path)
    assert printed.exit_code == 1
    assert "4x1-4-s0: failed: the disk is full" in printed.stdout
    assert "no prediction yet: fix the failed runs, and repeat the command" in printed.stdout
    assert not any(name.startswith(LARGEST) for name in Trained.began)
    Trained.failing = ""
    assert tfkit(*LINE, folder=tmp_path).exit_code == 0


def test_losses_that_tell_no_law_are_told_and_the_largest_is_not_trained(tmp_path: Path) -> None:
    recipe(tmp_path)
    Trained.flat = True
    printed = tfkit(*LINE, folder=tmp_path)
    assert printed.exit_code == 1
    assert "no law: the loss does not fall with the parameters beyond the noise: it is " in printed.stdout
    assert "the largest size is not trained, as nothing predicts it" in printed.stdout
    assert not any(name.startswith(LARGEST) for name in Trained.began)
    folder = tmp_path / "ladders" / "tiny"
    assert not (folder / "prediction.json").exists()
    data = json.loads((folder / "ladder.json").read_text())
    assert data["law"] is None
    assert len(data["no_law"]) == 2
    assert "No law: the loss does not fall" in (folder / "ladder.html").read_text()


def test_each_run_ends_its_own_schedule(copy: Path) -> None:
    for steps, warmup in ((8, 4), (4, 2), (2, 1)):
        history = json.loads((copy / "ladders" / "tiny" / "runs" / f"4x1-{steps}-s0" / "run.json").read_text())
        assert history["set"]["train.schedule.warmup"] == warmup
        assert history["steps"] == steps
        assert history["set"]["train.evaluate_every"] == max(1, steps // 2)


def test_a_dry_run_trains_two_trials(tmp_path: Path) -> None:
    recipe(tmp_path)
    printed = tfkit(*LINE, "--dry-run", folder=tmp_path)
    assert printed.exit_code == 0, printed.output
    assert "10 runs of 4 sizes" in printed.stdout
    assert Trained.began == []
    assert not (tmp_path / "ladders" / "tiny" / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sections", "message"),
    [
        (["--sizes", 1], {}, "--sizes 1: a law needs 4 sizes or more: three to fit it, one held out"),
        (["--budgets", 2], {}, "--budgets 2: a law needs 3 budgets of tokens or more"),
        (["--budgets", 9], {}, "--budgets 9: train.steps: 8 is too few to be halved that often"),
        (["--sizes", 9], {}, "different sizes can be made of tiny (4 units of width, 2 layers)"),
        (["--set", "train.seed=3"], {}, "--set train.seed=3: the ladder sets the seeds"),
        ([], {"objective": None, "data": None, "model": {"vocab_size": 9}}, "has no `data:` section"),
        ([], {"data": {"valid": "none"}}, "tiny: data.valid: is missing; the law is fitted to the loss on it"),
        (["--set", "model.layer.nrm=rms_norm"], {}, "Did you mean 'norm'?"),
        ([], {"model": {"num_layers": 1}}, "use another --span, or a recipe with more heads or layers"),
        (["--flops", "0"], {}, "--flops"),
        (["--span", "1"], {}, "--span"),
        (["--span", "nan"], {}, "'--span': expected a finite number, got 'nan'"),
        (["--flops", "inf"], {}, "'--flops': expected a finite number, got 'inf'"),
    ],
)
def test_what_makes_no_ladder_is_refused_before_the_first_run(
    arguments: list[object], sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    recipe(tmp_path, **sections)
    found = tfkit("ladder", "tiny.yaml", *arguments, folder=tmp_path)
    assert found.exit_code == 2, found.output
    assert message in " ".join(found.stderr.split())
    assert Trained.began == []
    assert not (tmp_path / "ladders").exists()


def test_a_folder_of_anything_else_is_refused(copy: Path) -> None:
    (copy / "mine").mkdir()
    (copy / "mine" / "notes.txt").write_text("mine")
    found = tfkit(*LINE, "--out", "mine", folder=copy)
    assert found.exit_code == 2
    assert "mine: is not empty and contains no ladder; choose another --out" in " ".join(found.stderr.split())
    for more in (["--seeds", 2], ["--budgets", 4], ["--set", "train.schedule.lr=0.02"]):
        found = tfkit(*LINE, *more, folder=copy)
        assert found.exit_code == 2
        assert "holds another ladder, of tiny: its sizes, budgets, seeds or settings differ" in " ".join(
            found.stderr.split()
        )
    assert Trained.began == []


def test_files_that_somebody_changed_are_told(copy: Path) -> None:
    folder = copy / "ladders" / "tiny"
    good = (folder / "prediction.json").read_text()
    for text, message in (("{}", "prediction.json: size: "), ("{", "prediction.json")):
        (folder / "prediction.json").write_text(text)
        found = tfkit(*LINE, folder=copy)
        assert found.exit_code == 2, found.output
        assert message in " ".join(found.stderr.split())
    (folder / "prediction.json").write_text(good)
    (folder / "plan.json").write_text("[]")
    found = tfkit(*LINE, folder=copy)
    assert found.exit_code == 2
    assert "plan.json: " in found.stderr


def test_altered_runs_are_named_and_no_evidence(copy: Path) -> None:
    """Neither the law nor the largest size is believed by a file that somebody edited."""
    folder = copy / "ladders" / "tiny"
    for name in ("4x1-2-s0", f"{LARGEST}-s0"):
        file = folder / "runs" / name / "run.json"
        before = file.read_text()
        history = json.loads(before)
        history["best"]["loss"] -= 0.5
        file.write_text(json.dumps(history))
        printed = tfkit(*LINE, folder=copy)
        assert printed.exit_code == 1, printed.output
        assert f"no law: {name} is not counted: " in printed.stdout
        assert "has changed since it was written" in (folder / "ladder.html").read_text()
        data = json.loads((folder / "ladder.json").read_text())
        assert data["law"] is None and list(data["altered"]) == [name]
        assert [run["loss"] for run in data["runs"] if run["state"] == "altered"] == [None]
        assert data["verdict"].startswith("open") == (name == f"{LARGEST}-s0")
        file.write_text(before)
    assert tfkit(*LINE, folder=copy).exit_code == 0


def test_a_ladder_of_an_earlier_version_is_read(copy: Path) -> None:
    """Its plan has no date and no digests of later options."""
    file = copy / "ladders" / "tiny" / "plan.json"
    plan = json.loads(file.read_text())
    later = ("made", "changed", "equal_within")
    file.write_text(json.dumps({key: value for key, value in plan.items() if key not in later}))
    Trained.began = []
    printed = tfkit(*LINE, folder=copy)
    assert printed.exit_code == 0, printed.output
    assert Trained.began == []


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_line_goes_on(tmp_path: Path) -> None:
    recipe(tmp_path, train={"steps": 400, "evaluate_every": 400, "checkpoint_every": 400})
    words = [sys.executable, "-m", "tfkit", *map(str, LINE)]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    runs = tmp_path / "ladders" / "tiny" / "runs"
    for _ in range(1200):
        if any(file.stat().st_size > 300 for file in runs.glob("*/metrics.jsonl")):
            break
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130, printed
    assert "stopped; to continue, repeat the command" in printed
    assert not list(runs.glob("*.claim"))
    again = tfkit(*LINE, folder=tmp_path)
    assert again.exit_code in (0, 1), again.output  # what these few words teach need not follow a law
    data = json.loads((tmp_path / "ladders" / "tiny" / "ladder.json").read_text())
    states = [run["state"] for run in data["runs"]]
    assert states.count("done") == (10 if again.exit_code == 0 else 9)


def lawful(self: Trained, folder: Path) -> None:
    """Write the loss of a law, for the variant that of 1.3 times the compute."""
    file = folder / "run.json"
    history = json.loads(file.read_text())
    more = 1.3**0.5 if "rms+" in folder.name else 1.0
    noise = math.sin(5.0 * len(folder.name) + 7.0 * history["seed"] + history["tokens"] + history["parameters"])
    n, d = SIZES[folder.name.split("-")[0].rpartition("+")[2]] * more, history["tokens"] * more
    history["best"]["loss"] = (1.0 + 9.0 / n**0.3 + 3.0 / d**0.4) * (1 + 2e-4 * noise)
    checksums.write_json(file, history)


SIZES = {"4x1": 118, "8x1": 396, "12x1": 834, "16x2": 2864}  # parameters of the layers


def test_a_variant_is_worth_its_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its advantage is predicted before its largest size is trained, and then checked."""
    monkeypatch.setattr(Trained, "bend", lawful)
    recipe(tmp_path, variants={"rms": {"model.layer.norm": "rms_norm"}})
    printed = tfkit(*LINE, "--compare", "rms", folder=tmp_path)
    assert printed.exit_code == 0, printed.output
    text = " ".join(printed.stdout.split())
    assert "20 runs of 4 sizes" in text
    assert sorted(Trained.began[-2:]) == [f"{LARGEST}-s0", f"rms+{LARGEST}-s0"]
    assert text.index("16x2, rms: predicted to be worth 1.") < text.index(f"rms+{LARGEST}-s0: done")
    assert "16x2, rms: within the interval: predicted a ratio of losses of 0." in text
    assert "note: one learning rate for all sizes: without muP" in text
    folder = tmp_path / "ladders" / "tiny"
    (predicted,) = json.loads((folder / "prediction.json").read_text())["variants"]
    assert predicted["variant"] == "rms" and predicted["factor"]["low"] < 1.35 and predicted["factor"]["high"] > 1.25
    (variant,) = json.loads((folder / "ladder.json").read_text())["variants"]
    assert [row["size"] for row in variant["sizes"]][-1] == "16x2, held out"
    assert "The advantage of each variant by size" in (folder / "ladder.md").read_text()
    Trained.began = []
    assert tfkit(*LINE, "--compare", "rms", folder=tmp_path).exit_code == 0 and Trained.began == []


@pytest.mark.slow
def test_the_rate_is_tuned_at_each_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    recipe(tmp_path)
    line = ("ladder", "tiny.yaml", "--sizes", 4, "--seeds", 2, "--tune", "train.schedule.lr=[0.01,0.02]")
    printed = tfkit(*line, folder=tmp_path)
    assert printed.exit_code == 0, printed.output
    assert len(Trained.began) == 10 * 3 and "4x1-2-lr0.01-s0" in Trained.began
    assert "note: one learning rate" not in printed.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--compare", "rsm"], "--compare rsm: unknown variant; available: easy, heads, letters, longer, rms, seed"),
        (["--compare", "rms", "--compare", "rms"], "--compare: repeats a variant"),
        (["--compare", "heads"], "--compare heads: has other heads or layers than the recipe"),
        (["--tune", "train.schedule.lr=0.1"], "write a key and different values"),
        (["--tune", "train.schedule.lr=[0.1,0.1]"], "write a key and different values"),
        (["--tune", "train.schedule.rl=[0.1,0.2]"], "unknown option; available: final, lr, warmup"),
        (["--tune", "train.seed=[0,1]"], "--tune train.seed: the ladder sets this key for each size and budget"),
        (["--tune", "train.steps=[4,8]"], "--tune train.steps: the ladder sets this key"),
        (["--tune", "model.d_model=[4,8]"], "--tune model.d_model: the ladder sets this key"),
        (["--compare", "seed"], "--compare seed: trains as the recipe does"),
        (["--compare", "longer"], "--compare longer: trains as the recipe does"),
        (["--compare", "letters"], "--compare letters: changes data.tokenizer, so that its losses cannot be compared"),
        (["--compare", "easy"], "--compare easy: changes data.valid, so that its losses cannot be compared"),
    ],
)
def test_what_cannot_be_compared_or_tuned_is_refused(more: list[str], message: str, tmp_path: Path) -> None:
    variants = {
        "rms": {"model.layer.norm": "rms_norm"},
        "heads": {"model.layer.attention.num_heads": 8},
        "seed": {"train.seed": 3},
        "longer": {"train.steps": 16},
        "letters": {"data.tokenizer": "character"},
        "easy": {"data.valid.limit": 1},
    }
    recipe(tmp_path, variants=variants)
    found = tfkit(*LINE, *more, folder=tmp_path)
    assert found.exit_code == 2, found.output
    assert message in " ".join(found.stderr.split())
    assert Trained.began == []


def test_a_change_of_shape_is_told() -> None:
    sizes = [LadderSize("4x1", heads=1, layers=1), LadderSize("8x2", heads=2, layers=2)]
    assert shape_notes(sizes) == ()
    (note,) = shape_notes([*sizes, LadderSize("16x2", heads=4, layers=2)])
    assert "relative to 16x2, 0.5 times at 4x1, 0.5 times at 8x2" in note
