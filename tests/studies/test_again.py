"""`tfkit study --reproduce` tests findings by fresh runs; `--recheck` evaluates runs again from their weights."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import nct, t

from tests.studies.small import VARIANTS, Trained, replaced, study, tfkit
from tfkit.recipe.load import load_recipe
from tfkit.run import load_run
from tfkit.runs.folder import WEIGHTS
from tfkit.studies.again import _tuned, judged
from tfkit.studies.arms import study_of
from tfkit.studies.results import ClaimResult
from tfkit.studies.settings import PaperClaim
from tfkit.studies.statistics import Comparison, compared, power
from tfkit.studies.statistics import judged as with_verdicts

pytestmark = pytest.mark.full

RATE = "train.schedule.lr"
KEYS: dict[str, Any] = {
    "compare": ["wide", "norm"],
    "measure": ["test.loss", "test.perplexity", "seconds"],
    "tune": {RATE: [0.05, 0.02]},
    "claims": [
        {"says": "wide < baseline", "on": "test.loss"},
        {"says": "norm=rms_norm > wide"},
        {"says": "norm=layer_norm < wide", "on": "test.perplexity"},
    ],
}
OTHER = {"key": "model.d_model=4", "none": ""}
MORE = {"data": {"test": {"type": "text", "files": "valid.txt"}}, "train": {"metrics": ["perplexity"]}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study, and its results next to its recipe."""
    folder = tmp_path_factory.mktemp("again")
    study(folder, more=MORE, **KEYS)
    with pytest.MonkeyPatch.context() as patch:
        replaced(patch)
        assert tfkit("study", "small.yaml", folder=folder).exit_code == 0
    for name, made in (("small.csv", "results.csv"), ("small.jsonl", "findings.jsonl")):
        shutil.copy(folder / "studies" / "small" / made, folder / name)
    return folder


@pytest.fixture
def copy(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    replaced(monkeypatch)
    return Path(shutil.copytree(done, tmp_path / "copy"))


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def edit(file: Path, **values: Any) -> None:
    """Change keys of all lines of findings.jsonl."""
    file.write_text("".join(json.dumps({**row, **values}) + "\n" for row in rows(file)))


def test_the_sides_of_a_claim_are_trained_again(copy: Path) -> None:
    """With fresh seeds and the recorded rates, and without the baseline, which is no side of the claim."""
    printed = tfkit("study", "small.yaml", "--reproduce", "--claims", "2", "--runs", 3, folder=copy)
    assert printed.exit_code in (0, 1), printed.output
    folder = copy / "studies" / "small-reproduced"
    with (copy / "small.csv").open() as file:
        lines = list(csv.DictReader(file))
    seeds = {(line["variant"], line["tuned"], line["seed"]) for line in lines}
    chosen = {name: tuned for name, tuned, seed in seeds if seed == "1"}
    assert Trained.began == [f"{name}-s{seed}" for seed in (2, 3, 4) for name in ("wide", "norm=rms_norm")]
    losses: dict[str, list[float]] = {"wide": [], "norm=rms_norm": []}
    for name, found in losses.items():
        for seed in (2, 3, 4):
            run = folder / "runs" / f"{name}-s{seed}"
            history = json.loads((run / "run.json").read_text())
            assert (history["seed"], f"{RATE}={history['set'][RATE]}") == (seed, chosen[name])
            found.append(json.loads((run / "evaluation.json").read_text())["test"]["loss"])
    differences = np.subtract(losses["norm=rms_norm"], losses["wide"])
    [row] = rows(folder / "findings.jsonl")
    [_, before, _] = rows(copy / "small.jsonl")
    error = differences.std(ddof=1) / np.sqrt(3)
    assert row["effect"] == pytest.approx(differences.mean()) and row["n"] == 3
    assert row["low"] == pytest.approx(differences.mean() - t.isf(0.025, 2) * error)
    assert row["reported"] == before
    expected = nct.sf(t.isf(0.025, 2), 2, abs(before["effect"]) / error)
    assert row["power"] == pytest.approx(expected, abs=0.002)
    assert row["scope"]["seeds"] == [2, 3, 4]
    assert f"claim: norm=rms_norm > wide on test.loss (reported {before['effect']:+.4g}" in printed.stdout
    assert f"power {row['power']:.0%}): {row['verdict']}" in printed.stdout
    again = tfkit("study", "small.yaml", "--reproduce", "--claims", "2", "--runs", 3, "--json", folder=copy)
    assert len(Trained.began) == 6 and json.loads(again.stdout)["claims"][0]["verdict"] in row["verdict"]
    assert "other" not in printed.stdout


def test_all_claims_are_reproduced_with_as_many_runs(copy: Path) -> None:
    printed = tfkit("study", "small.yaml", "--reproduce", "--out", "own", folder=copy)
    assert printed.exit_code in (0, 1), printed.output
    assert len(Trained.began) == 6 and {name[-2:] for name in Trained.began} == {"s2", "s3"}
    assert [row["claim"] for row in rows(copy / "own" / "findings.jsonl")] == [one["says"] for one in KEYS["claims"]]
    assert not (copy / "own" / "report.html").exists()
    other = tfkit("study", "small.yaml", "--out", "own", folder=copy)
    assert other.exit_code == 2 and "holds the study 'small-reproduced'" in other.output


def test_plans_and_commands_of_a_reproduction(copy: Path) -> None:
    line = ("study", "small.yaml", "--reproduce", "--claims", "1")
    assert "4 runs of 2 variants; seeds 2, 3" in tfkit(*line, "--dry-run", folder=copy).output
    printed = tfkit(*line, "--commands", folder=copy).output.splitlines()
    assert len(printed) == 4 and all(f"--set {RATE}=" in one and "--set train.seed=" in one for one in printed)


def test_names_that_look_like_formulas_are_read_again(copy: Path) -> None:
    """In results.csv they have an apostrophe."""
    study(copy, more={**MORE, "variants": {**VARIANTS, "-x": {"model.d_model": 8}, "wide": {"model.d_model": 16}}})
    text = "'-x,0,done,run,,valid.loss,2.0\n'-x,1,done,run,,valid.loss,2.0\n"
    (copy / "small.csv").write_text("variant,seed,state,run,tuned,measure,value\n" + text)
    assert _tuned(copy / "small.csv", {"-x"}, study_of(load_recipe(copy / "small.yaml"))) == ({"-x": {}}, {0, 1})


def test_findings_of_a_study_without_claims(copy: Path) -> None:
    """They are all reproduced, and have no numbers."""
    study(copy, more=MORE, **{**KEYS, "claims": []})
    first, *_ = rows(copy / "small.jsonl")
    for verdict in ("better; untuned", "worse; give it 5 seeds"):
        (copy / "small.jsonl").write_text(json.dumps({**first, "claim": "", "verdict": verdict}) + "\n")
        printed = tfkit("study", "small.yaml", "--reproduce", folder=copy)
        sign = "<" if first["effect"] < 0 else ">"
        assert f"claim: wide {sign} baseline on test.loss (reported {first['effect']:+.4g}" in printed.stdout
    assert len(Trained.began) == 4
    printed = tfkit("study", "small.yaml", "--reproduce", "--claims", 1, folder=copy)
    told = "--claims '1': not among the 1 findings next to the study, which has 0 claims"
    assert printed.exit_code == 2 and told in printed.output


def test_confirmed_options_of_a_design_are_tested_at_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the rate of its screen, and with seeds that no cell had."""
    replaced(monkeypatch)
    variants = {**VARIANTS, "untied": {"model.head.tied": False}, "parallel": {"model.layer.residual": "parallel"}}
    design = {"screen": ["wide", "untied", "parallel", "norm=rms_norm"], "runs": 8, "noise": 3}
    keys = {"design": {**design, "confirm": {"most": 2, "runs": 4}}, "measure": ["test.loss"], "tune": KEYS["tune"]}
    claims = [{"says": "untied < baseline"}, {"says": "baseline > parallel"}]
    study(tmp_path, more={**MORE, "variants": variants}, claims=claims, **keys)
    cells = [("baseline@screen", 0, 0.02), ("wide+untied", 1, 0.02), ("untied+norm=rms_norm", 2, 0.02)]
    cells += [("baseline", 8, 0.05), ("baseline", 8, 0.02), ("baseline", 9, 0.02), ("untied@confirm", 11, 0.05)]
    lines = [f"{name},{seed},done,run,{RATE}={rate},test.loss,2.0" for name, seed, rate in cells]
    (tmp_path / "small.csv").write_text("\n".join(["variant,seed,state,run,tuned,measure,value", *lines]) + "\n")
    known = {"measure": "test.loss", "n": 2, "scope": {"seeds": [8, 9, 11]}, "hashes": {"recipe": "", "data": ""}}
    row = {
        **known,
        "variant": "untied",
        "against": "without",
        "effect": -0.5,
        "low": -0.6,
        "high": -0.4,
        "status": "one study",
    }
    other = {
        **row,
        "variant": "without",
        "against": "parallel",
        **dict.fromkeys(("effect", "low", "high")),
        "verdict": "open",
    }
    texts = [{**row, "verdict": "held", "claim": claims[0]["says"]}, {**other, "claim": claims[1]["says"]}]
    (tmp_path / "small.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    printed = tfkit("study", "small.yaml", "--reproduce", "--claims", 1, folder=tmp_path)
    assert Trained.began == ["baseline-s3", "untied-s3", "baseline-s4", "untied-s4"], printed.output
    told = " ".join(printed.stdout.split())
    assert "claim: untied < baseline on test.loss (reported -0.5 [-0.6, -0.4]; power" in told
    assert "; other recipe; other data; at the baseline, not on average, n 2" in told
    history = json.loads((tmp_path / "studies/small-reproduced/runs/untied-s3/run.json").read_text())
    assert history["set"][RATE] == 0.02 and history["variants"] == ["untied"]
    for options in (["--claims", 2], []):
        printed = tfkit("study", "small.yaml", "--reproduce", *options, folder=tmp_path)
        assert printed.exit_code == 2 and "which has 2 claims; the screen must have" in printed.output


def test_reversed_or_missed_findings_end_with_1(copy: Path) -> None:
    """A reported effect of 10 times what the fresh runs show is not replicated."""
    line = ("study", "small.yaml", "--reproduce", "--claims", "1", "--runs", 3)
    cases = [("held", -100.0, "not replicated", 1), ("not held", 100.0, "not replicated", 1)]
    for verdict, effect, expected, status in [*cases, ("open", -0.1, "was open, now cannot tell", 0)]:
        edit(copy / "small.jsonl", verdict=verdict, effect=effect, low=effect - 1, high=effect + 1)
        printed = tfkit(*line, folder=copy)
        assert printed.exit_code == status and expected in printed.stdout, printed.output
        [row] = rows(copy / "studies" / "small-reproduced" / "findings.jsonl")
        assert row["status"] == (expected if status else "one study")
    assert len(Trained.began) == 6


def test_other_recipes_and_data_are_told(copy: Path) -> None:
    line = ("study", "small.yaml", "--reproduce", "--claims", "1", "--out")
    printed = tfkit(*line, "a", "--set", "train.clip_norm=0.5", folder=copy)
    told = " ".join(printed.stdout.split())
    assert "; other recipe, n 2" in told and "other data" not in told
    (copy / "train.txt").write_text("one two\nthree one two\n" * 4)
    printed = tfkit(*line, "b", folder=copy)
    told = " ".join(printed.stdout.split())
    assert "; other data, n 2" in told and "other recipe" not in told


def test_invalid_input_is_one_line_before_the_first_run(copy: Path) -> None:
    kept = {name: (copy / name).read_text() for name in ("small.csv", "small.jsonl")}
    lines = kept["small.csv"].splitlines(keepends=True)
    cases: list[tuple[list[object], dict[str, str | None], str]] = [
        (
            [],
            {"small.csv": None},
            "small.csv: is missing, the results to reproduce: cp studies/small/results.csv small",
        ),
        ([], {"small.jsonl": None}, "small.jsonl: is missing, the results to reproduce: cp studies/small/findings"),
        (["--claims", "9"], {}, "--claims '9': not among the 3 findings next to the study, which has 3 claims"),
        (["--claims", "1,x"], {}, "--claims '1,x': not among the 3 findings"),
        (["--claims", ""], {}, "--claims '': not among the 3 findings"),
        (["--runs", 1], {}, "expected a whole number from 2 to 1,000, got '1'"),
        (
            [],
            {"small.csv": "variant,seed\nwide,0\n"},
            "small.csv:1: is not the results.csv of a study, which begins with",
        ),
        ([], {"small.csv": "other"}, "small.csv:2: 'else' is not a variant of this study"),
        ([], {"small.csv": "cut"}, "is not a row of results.csv, which has a state, numbers"),
        ([], {"small.csv": "first"}, "small.csv: 'baseline' has no values that were trained with several seeds"),
        ([], {"small.csv": lines[0]}, "the results of the study have no runs of 'baseline'"),
        ([], {"small.csv": "key"}, "small.csv: 'baseline' has other values than those of study.tune: model.d_model="),
        ([], {"small.csv": "none"}, "small.csv: 'baseline' has other values than those of study.tune: none"),
        ([], {"small.jsonl": re.sub('"effect": [^,]+', '"effect": NaN', kept["small.jsonl"])}, "small.jsonl:1: is no"),
        ([], {"small.jsonl": "{}\n"}, "small.jsonl:1: is not a finding of this study"),
        ([], {"small.csv": lines[0] + "x" * 200_000 + "\n"}, "small.csv:1: is not a row of results.csv"),
        (
            [],
            {"small.jsonl": kept["small.jsonl"].replace("wide", "else")},
            "small.jsonl:1: is not a finding of this study",
        ),
        ([], {"small.jsonl": "[" * 100_000}, "small.jsonl:1: is not a finding of this study"),
        ([], {"small.jsonl": ""}, "--claims 'all': not among the 0 findings next to the study"),
    ]
    texts = {"other": kept["small.csv"].replace("baseline", "else"), "cut": "".join(lines[:5]) + lines[5][:12]}
    texts |= {name: re.sub(f"{RATE}=[0-9.]+", new, kept["small.csv"]) for name, new in OTHER.items()}
    texts["first"] = "".join(line for line in lines if line.split(",")[1] != "1")
    for options, files, expected in cases:
        for name, text in {**kept, **files}.items():
            (copy / name).unlink(missing_ok=True)
            if text is not None:
                (copy / name).write_text(texts.get(text, text))
        printed = tfkit("study", "small.yaml", "--reproduce", *options, folder=copy)
        assert printed.exit_code == 2 and expected in " ".join(printed.output.split()), printed.output
    for options, expected in (
        (["--claims", "1"], "--claims and --runs have no effect without --reproduce"),
        (["--runs", 2], "--claims and --runs have no effect without --reproduce"),
        (["--recheck", 1, "--reproduce"], "--recheck cannot be combined"),
        (["--recheck", 1, "--dry-run"], "--recheck cannot be combined"),
        (["--recheck", 0], "expected a whole number from 1"),
        (["--recheck", 1, "--out", "nowhere"], "contains no study"),
    ):
        printed = tfkit("study", "small.yaml", *options, folder=copy)
        assert printed.exit_code == 2 and expected in printed.output, printed.output
    assert not Trained.began and not (copy / "studies" / "small-reproduced").exists()


def test_verdicts_on_a_finding() -> None:
    claim = PaperClaim(says="a < b", on="x")
    one = Comparison("a", "b", "x", 5, 5, -1.0, better=True)
    found, was_open = ClaimResult(claim, one, "held"), ClaimResult(claim, replace(one, better=None), "open")
    equal = ClaimResult(claim, replace(one, mean=0.0, better=None), "equal")
    better = Comparison("a", "b", "x", 5, 5, -0.3, low=-0.4, high=-0.2, better=True, verdict="better")
    worse = replace(better, mean=0.3, low=0.2, high=0.4, better=False, verdict="worse", margin=0.1)
    unclear = replace(better, mean=-0.1, low=-0.4, high=0.2, better=None, verdict="cannot tell")
    for reported, fresh, odds, expected in (
        (found, better, 0.1, "replicated"),
        (found, worse, 0.1, "reversed"),
        (found, unclear, 0.9, "not replicated"),
        (found, unclear, 0.7, "cannot tell"),
        (found, replace(unclear, low=-1.1), 0.9, "cannot tell"),
        (was_open, better, 0.9, "was open, now better"),
        (equal, replace(unclear, verdict="equal"), 0.0, "replicated"),
        (equal, worse, 0.0, "not replicated"),
        (equal, replace(worse, margin=0.5), 0.0, "was equal, now worse"),
        (equal, unclear, 0.0, "was equal, now cannot tell"),
    ):
        assert judged(reported, fresh, odds) == expected


def test_power_is_that_of_the_noncentral_t() -> None:
    for effect in (0.5, 1.0, 3.0, 8.0):
        for freedom in (1, 2, 4, 30):
            for level in (0.05, 0.001):
                bound = t.isf(level / 2, freedom)
                assert power(-effect, 0.5, freedom, level) == pytest.approx(
                    nct.sf(bound, freedom, effect / 0.5), abs=0.004
                )


def test_true_findings_are_seldom_refuted_and_false_ones_seldom_replicated() -> None:
    """In 400 pairs of studies with 5 seeds: of what the first found, the second is judged."""
    random = np.random.default_rng(0)
    counts = {
        effect: dict.fromkeys(("replicated", "reversed", "not replicated", "cannot tell"), 0) for effect in (0.0, 2.0)
    }
    claim = PaperClaim(says="a < b", on="x")
    for effect, verdicts in counts.items():
        for _ in range(400):
            fresh = []
            for shift in (effect or 3.0, effect):  # a false finding was as large as 3 standard deviations
                values = random.normal(size=(2, 5)) + 10.0
                a, b = ({seed: float(one) for seed, one in enumerate(side)} for side in (values[0] - shift, values[1]))
                fresh += with_verdicts([compared("a", "b", "x", a, b)], [])
            before, now = fresh
            if before.better:
                odds = power(before.mean or 0.0, now.error or 1.0, now.freedom, 0.05)
                verdicts[judged(ClaimResult(claim, before, "held"), now, odds)] += 1
    true, false = counts[2.0], counts[0.0]
    assert sum(true.values()) > 150 and sum(false.values()) > 300
    assert true["reversed"] == 0 and true["not replicated"] <= 0.1 * sum(true.values())
    assert false["replicated"] <= 0.05 * sum(false.values()) and false["not replicated"] >= 0.5 * sum(false.values())


def test_runs_are_evaluated_again_and_nothing_is_written(copy: Path) -> None:
    folder = copy / "studies" / "small"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for line in (("small.yaml",), ("studies/small",), ("small.yaml", "--out", "studies/small")):
        printed = tfkit("study", *line, "--recheck", 3, folder=copy)
        assert printed.exit_code == 0 and "3 of 3 runs have the scores on record" in printed.stdout, printed.output
        assert printed.stdout.count("seconds: not of its weights") == 3
    assert "9 of 9 runs have" in tfkit("study", "small.yaml", "--recheck", 20, folder=copy).stdout
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def forge(run: Path, name: str, change: Any) -> None:
    """Edit a file of a run together with its line of SHA256SUMS."""
    before = (run / name).read_bytes()
    data = json.loads(before)
    change(data)
    (run / name).write_text(json.dumps(data))
    sums = (run / "SHA256SUMS").read_text()
    old, new = (hashlib.sha256(text).hexdigest() for text in (before, (run / name).read_bytes()))
    assert old in sums
    (run / "SHA256SUMS").write_text(sums.replace(old, new))


def test_an_evaluation_forged_with_its_checksum_is_found(copy: Path) -> None:
    runs = copy / "studies" / "small" / "runs"
    run = next(path for path in sorted(runs.iterdir()) if path.name.startswith("wide") and path.name.endswith("s1"))
    true = load_run(run).evaluate("test")["loss"]
    forge(run, "evaluation.json", lambda data: data["test"].update(loss=1.79))
    assert tfkit("compare", copy / "studies" / "small", folder=copy).exit_code == 0  # the checksums agree
    printed = tfkit("study", "small.yaml", "--recheck", 20, folder=copy)
    assert printed.exit_code == 1 and "8 of 9 runs have the scores on record" in printed.stdout
    assert f"{run.name}: test.loss: its evaluation says 1.79, its weights give {true:.6g}; test.perp" in printed.stdout
    (run / WEIGHTS).write_bytes((next(runs.glob("base*s1")) / WEIGHTS).read_bytes())
    printed = tfkit("study", "small.yaml", "--recheck", 20, folder=copy)
    assert printed.exit_code == 1 and f"{run.name}: " in printed.stdout and WEIGHTS in printed.stdout


def test_runs_without_weights_cannot_be_evaluated_again(copy: Path) -> None:
    runs = copy / "studies" / "small"
    assert tfkit("study", "small.yaml", "--set", "study.keep=scores", folder=copy).exit_code == 0
    printed = tfkit("study", "small.yaml", "--recheck", 2, folder=copy)
    assert printed.exit_code == 2 and "none of its 9 finished runs has weights (study.keep: scores)" in printed.output
    assert runs.is_dir()
