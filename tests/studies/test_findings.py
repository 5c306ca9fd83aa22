"""results.csv and findings.jsonl carry a study without its runs; tables of shipped studies are made from them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.studies.small import replaced, study, tfkit
from tests.studies.tables import FOLDER, Shipped, prose, section, shipped, textbook
from tfkit.studies.arms import StudySource, arms_of, study_of
from tfkit.studies.board import Board
from tfkit.studies.compare import study_report
from tfkit.studies.plan import PlannedRun, identity
from tfkit.studies.plan_file import keep_plan
from tfkit.studies.planning import make_plan
from tfkit.studies.report import StudyReport
from tfkit.studies.statistics import Comparison
from tfkit.studies.study import study as run_study

from ..documents import between, rewrite
from ..sampling import each

pytestmark = pytest.mark.full

NUMBERS = {"effect": "mean", "low": "low", "high": "high", "p": "p_holm"}
HOT = {"variants": {"hot": {"model.layer.dropout": 0.3}}}
KEYS = {
    *("question", "finding", "study", "variant", "against", "measure", "effect", "low", "high", "n", "p", "unit"),
    *("verdict", "claim", "paper", "scope", "tuned", "hashes", "versions", "status", "made"),
}


def check(one: Shipped) -> None:
    """The statistics recomputed from the csv are those of the jsonl: by tfkit, and by a plain paired t test."""
    results = one.results
    every = [*results.comparisons, *(claim.comparison for claim in results.claims)]
    decided = [found for found in results.comparisons if found.better is not None or found.verdict == "equal"]
    asked = {pair(found) for found in (*decided, *every[len(results.comparisons) :])}
    assert asked == {(frozenset((row["variant"], row["against"])), row["measure"]) for row in one.findings}
    for row in one.findings:
        key = (row["variant"], row["against"], row["measure"])
        found = next(found for found in every[::-1] if (found.arm, found.against, found.measure) == key)
        assert row.keys() == KEYS
        for name, own in NUMBERS.items():
            value = getattr(found, own)
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-6, abs=1e-12)), (key, name)
        (check_averages if results.design else check_plainly)(one, row, found, every)


def check_hashes(one: Shipped) -> None:
    """The recipes are still those that were trained, unless a value was solved for or another run is read."""
    source = StudySource(str(one.folder / f"{one.name}.yaml")).remembering()
    recipe = source.recipe()
    own = study_of(recipe)
    if own.match is not None or "runs/" in (recipe.text or ""):
        return
    known = {"": source.base(own, {})} if own.design else {}
    if not own.design:
        arms = arms_of(source, own, recipe.variant_entries)
        known = {arm.name: source.recipe(arm.variants, arm.all_values()) for arm in arms}
    for row in one.findings:
        assert identity(known["" if own.design else row["variant"]]) == row["hashes"]["recipe"], row["finding"]


def check_averages(one: Shipped, row: dict[str, Any], found: Comparison, every: list[Comparison]) -> None:
    """The confirming runs are balanced: an effect is the mean with the option minus the mean without it."""
    cells = [line for line in one.lines if line["measure"] == row["measure"] and line["variant"].endswith("@confirm")]
    has = np.array([row["variant"] in line["variant"].partition("@")[0].split("+") for line in cells])
    values = np.array([float(line["value"]) for line in cells])
    assert has.sum() == row["n"] == len(has) / 2
    assert row["effect"] == pytest.approx(values[has].mean() - values[~has].mean(), rel=1e-6)


def pair(one: Comparison) -> tuple[frozenset[str], str]:
    return frozenset((one.arm, one.against)), one.measure


def check_plainly(one: Shipped, row: dict[str, Any], found: Comparison, every: list[Comparison]) -> None:
    sides = []
    for name in (row["variant"], row["against"]):
        own = [line for line in one.lines if (line["variant"], line["measure"]) == (name, row["measure"])]
        last = own[-1]["tuned"]
        sides.append({line["seed"]: float(line["value"]) for line in own if line["tuned"] == last and line["value"]})
    pairs = np.array([(sides[0][seed], sides[1][seed]) for seed in sides[0] if seed in sides[1]])
    assert len(pairs) == row["n"]
    if len(pairs):
        assert row["effect"] == pytest.approx(pairs[:, 0].mean() - pairs[:, 1].mean(), rel=1e-6, abs=1e-12)
    sd = float(np.diff(pairs).std(ddof=1)) if len(pairs) > 1 else 0.0
    if found.p is None or found.by_rank or found.error != pytest.approx(sd / max(1, len(pairs)) ** 0.5, rel=1e-9):
        return  # pooled, at least a step of the measure, or by ranks
    p = stats.ttest_rel(pairs[:, 0], pairs[:, 1]).pvalue
    others = {pair(one): one.p for one in every if one.p is not None and pair(one) != pair(found)}
    ranked = sorted([*others.values(), p])
    largest = max(min(1.0, (len(ranked) - rank) * value) for rank, value in enumerate(ranked) if value <= p)
    assert row["p"] == pytest.approx(largest, rel=1e-6)


def simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyReport, Shipped]:
    """A study of made scores: pooled and other spreads, an accuracy, two budgets, lost runs."""
    effects = {"baseline": 0.0, "wide": -0.5, "norm=rms_norm": -0.001, "loud": 0.3, "gone": 0.0, "frail": 0.2}
    more = {
        "variants": {
            name: {"model.layer.dropout": rate}
            for name, rate in zip(("loud", "gone", "frail"), (0.1, 0.3, 0.4), strict=True)
        }
    }
    claims = [
        {"paper": "Nobody 2026", "says": "baseline < frail", "on": "valid.loss"},
        {"says": "loud > wide", "on": "valid.loss"},
    ]
    keys: dict[str, Any] = {
        "about": "Which?",
        "compare": ["wide", "norm", "loud", "gone", "frail"],
        "seeds": 5,
        "claims": claims,
    }
    keys |= {"measure": ["valid.loss", {"probe": "induction", "steps": 2}], "equal_within": {"valid.loss": 0.1}}
    keys |= {"tune": {"train.schedule.lr": [0.01, 0.05]}}
    file, draw = study(folder, more=more, **keys), np.random.default_rng(3)
    plan = make_plan(StudySource(str(file)), folder / "out", timed=False)
    noise = {(arm.name, seed, lr): draw.normal() for arm in plan.arms for seed in plan.seeds for lr in (0.01, 0.05)}

    def state(self: Board, run: PlannedRun) -> str:
        return "diverged" if run.arm == "gone" or (run.arm == "frail" and run.seed == 3 and not run.probe) else "done"

    def scores(self: Board, run: PlannedRun) -> dict[str, float]:
        if self.state(run) == "diverged":
            return {}
        lr = run.tuned["train.schedule.lr"]
        loss = (
            2.0
            + effects[run.arm]
            + (0.05 - lr)
            + 0.01 * noise[run.arm, run.seed, lr] * (20 if run.arm == "loud" else 1)
        )
        right = 50 + int(200 * (run.arm == "wide")) + round(3 * noise[run.arm, run.seed, lr])
        return {"valid.loss": loss, "seconds": 1 / 3, "parameters": 10.0, "probe.induction": 100 * right / 300}

    for name, value in (("state", state), ("scores", scores), ("examples", lambda self, run: {"probe.induction": 300})):
        monkeypatch.setattr(Board, name, value)
    report = study_report(plan, folder / "out")
    report.write(folder)
    return report, named(folder)


def named(folder: Path) -> Shipped:
    """The files of a report, with the names of those of a shipped study."""
    for ending, name in (("csv", "results.csv"), ("jsonl", "findings.jsonl")):
        (folder / name).rename(folder / f"small.{ending}")
    return Shipped("small", folder)


def test_the_csv_has_all_that_the_statistics_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, found = simulated(tmp_path, monkeypatch)
    assert found.results.comparisons == report.results.comparisons
    assert found.results.claims == report.results.claims
    check(found)
    verdicts = {one.words() for one in report.results.comparisons}
    assert any(one.pooled for one in report.results.comparisons)
    assert {"better; best at the edge", "worse; best at the edge"} <= verdicts
    assert any(words.startswith("diverged in 5 of 5") for words in verdicts)
    states = {(row["variant"], row["seed"], row["measure"]) for row in found.lines if row["state"] == "diverged"}
    assert states == {("frail", 3, ""), *(("gone", seed, "") for seed in range(5))}
    tuning = [row["measure"] for row in found.lines if row["run"] in ("baseline-lr0.01-s0", "wide-lr0.01-s0")]
    assert tuning == ["valid.loss"] * 2  # by which the values are chosen
    assert len([row for row in found.lines if row["measure"] == "parameters"]) == 5  # once for each variant
    assert not re.search("NaN|Infinity", (tmp_path / "small.jsonl").read_text())


def test_a_finding_says_what_was_seen_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = simulated(tmp_path, monkeypatch)
    claimed, greater, *others = found.findings
    assert (claimed["claim"], claimed["verdict"]) == ("baseline < frail", "open; give it 6 seeds")
    assert (greater["variant"], greater["against"], greater["verdict"]) == ("loud", "wide", "held; best at the edge")
    rows = {(row["variant"], row["measure"]): row for row in others}
    assert ("frail", "valid.loss") not in rows  # the claim has it
    assert rows["norm=rms_norm", "valid.loss"]["finding"].startswith("norm=rms_norm is within 0.1 of baseline: ")
    assert rows["norm=rms_norm", "valid.loss"]["verdict"] == "equal; best at the edge"
    wide, probed = rows["wide", "valid.loss"], rows["wide", "probe.induction"]
    assert re.fullmatch(r"wide learns faster than baseline: valid.loss -0.5.* after 2 steps", wide["finding"])
    assert (wide["unit"], probed["unit"]) == ("nats per token", "percent")
    assert wide["scope"]["budgets"] == [2] and wide["scope"]["seeds"] == [0, 1, 2, 3, 4]
    assert wide["tuned"] == "train.schedule.lr=0.05 of 0.01, 0.05 by valid.loss; at the edge"
    assert (wide["status"], wide["question"], wide["study"]) == ("one study", "Which?", "small")


def test_better_needs_a_second_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"short": {"train.steps": 2}, "long": {"train.steps": 4}, "big": {"model.d_model": 16, "train.steps": 6}}
    plan = make_plan(
        StudySource(str(study(tmp_path, sizes=sizes, compare=["norm", "hot"], seeds=4, more=HOT))),
        tmp_path / "out",
        timed=False,
    )
    assert next(arm.parameters for arm in plan.arms if arm.size == "big") > plan.arms[0].parameters
    monkeypatch.setattr(Board, "state", lambda self, run: "done")
    effects = {
        "norm=rms_norm@short": -0.5,
        "norm=rms_norm@long": -0.3,
        "norm=rms_norm@big": -0.3,
        "hot@short": -0.5,
        "hot@long": 0.5,
    }

    def scores(self: Board, run: PlannedRun) -> dict[str, float]:
        return {
            "valid.loss": 2 + effects.get(run.arm, 0.0) + 0.001 * np.random.default_rng([*run.name.encode()]).normal()
        }

    monkeypatch.setattr(Board, "scores", scores)
    study_report(plan, tmp_path / "out").write(tmp_path)
    rows = {row["variant"]: row for row in map(json.loads, (tmp_path / "findings.jsonl").read_text().splitlines())}
    for name, words in (("short", "is better than"), ("long", "is better than")):
        row = rows[f"norm=rms_norm@{name}"]
        assert f"norm=rms_norm@{name} {words} baseline@{name}" in row["finding"]
        assert row["finding"].endswith("after 2 and 4 steps") and row["scope"]["budgets"] == [2, 4]
    assert "hot@short learns faster than" in rows["hot@short"]["finding"] and rows["hot@short"]["scope"]["budgets"] == [
        2
    ]
    assert "hot@long learns more slowly than" in rows["hot@long"]["finding"]
    assert rows["hot@long"]["tuned"] == "untuned" and rows["hot@long"]["verdict"] == "worse; untuned"


def test_a_design_is_told_by_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"option{number}" for number in range(5)]
    more = {"variants": {name: {"model.layer.dropout": 0.1 * (n + 3)} for n, name in enumerate(names[:2])}}
    more["variants"] |= {"option2": {"model.layer.norm": "rms_norm"}, "option3": {"model.head.tied": False}}
    more["variants"]["option4"] = {"model.position": "rotary"}
    design = {"screen": ["option0 | option1", *names[2:]], "runs": 16, "noise": 6, "confirm": {"most": 2, "runs": 8}}
    claims = [{"says": "option3 < baseline", "on": "valid.loss"}, {"says": "option2 < baseline", "on": "valid.loss"}]
    file = study(tmp_path, more=more, design=design, claims=claims)
    effects = {"option3": -0.5, "option4": -0.3}
    monkeypatch.setattr(Board, "state", lambda self, run: "done")

    def scores(self: Board, run: PlannedRun) -> dict[str, float]:
        noise = np.random.default_rng([*run.name.encode()]).normal()
        return {"valid.loss": 2 + sum(effects.get(one, 0) for one in re.findall(r"option\d", run.arm)) + 0.01 * noise}

    monkeypatch.setattr(Board, "scores", scores)
    source, out = StudySource(str(file)), tmp_path / "out"
    for _ in range(2):  # the second plan has the cells that confirm
        plan = keep_plan(out, make_plan(source, out, timed=False))
    report = study_report(plan, out)
    report.write(tmp_path)
    found = named(tmp_path)
    assert found.results.comparisons == report.results.comparisons and found.results.claims == report.results.claims
    held, missed, *rows = found.findings
    assert (held["variant"], held["against"], held["verdict"]) == ("option3", "without", "held; untuned")
    assert held["finding"].startswith("option3 learns faster than without it: valid.loss -0.")
    assert missed["verdict"].startswith("open") and missed["effect"] is None
    assert [row["variant"] for row in rows] == ["option4"] and rows[0]["verdict"] == "better; untuned"
    assert len(held["scope"]["seeds"]) == 14 and held["hashes"]["recipe"] == plan.digests["baseline"]
    text = section(found)
    for words in ("valid.loss in the screen", "Aliases in the screen", "Interactions on valid.loss", "| option3 |"):
        assert words in text, words
    assert plan.design is not None
    known = {str(seed): {"valid.loss": 2 + 0.01 * (seed % 4)} for seed in range(100, 106)}
    elsewhere = plan.design.model_copy(update={"noise": "elsewhere", "scores": known})
    report = study_report(replace(plan, design=elsewhere, arms=(replace(plan.arms[0], seeds=()), *plan.arms[1:])), out)
    report.write(tmp_path)
    found = named(tmp_path)
    assert found.results.comparisons == report.results.comparisons
    assert len([row for row in found.lines if row["variant"] == "baseline" and row["measure"] == "valid.loss"]) == 6


def test_a_trained_study_names_its_data_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    keys = {"claims": [{"says": "wide < baseline", "on": "valid.loss"}], "compare": ["wide"]}
    done = run_study(study(tmp_path, **keys), out=tmp_path / "study", progress=False)
    (row,) = map(json.loads, (done.folder / "findings.jsonl").read_text().splitlines())
    assert {key: row["scope"][key] for key in ("data", "tokenizer", "steps")} == {
        "data": "text",
        "tokenizer": "word",
        "steps": 2,
    }
    assert re.fullmatch("[0-9a-f]{64}", row["hashes"]["recipe"]) and re.fullmatch("[0-9a-f]{12}", row["hashes"]["data"])
    assert row["hashes"]["code"] == dict(done.report.environment)["code"] and row["versions"]["torch"]
    before = {name: (done.folder / name).read_bytes() for name in ("results.csv", "findings.jsonl")}
    assert tfkit("compare", done.folder, "--out", tmp_path / "page", folder=tmp_path).exit_code == 0
    assert before == {name: (tmp_path / "page" / name).read_bytes() for name in before}
    file = done.folder / "runs" / "wide-s1" / "environment.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps({**known, "data": {"train": {"a.txt": "0" * 64}}}))
    run = json.loads((done.folder / "runs" / "wide-s1" / "run.json").read_text())
    run["starts"][0]["versions"]["code"] = "0" * 12
    (done.folder / "runs" / "wide-s1" / "run.json").write_text(json.dumps(run))
    assert tfkit("compare", done.folder, "--out", tmp_path / "page", folder=tmp_path).exit_code == 1  # altered
    (row,) = map(json.loads, (tmp_path / "page" / "findings.jsonl").read_text().splitlines())
    assert (row["hashes"]["data"], row["hashes"]["code"]) == ("several", "several")
    assert (row["verdict"].startswith("open") and row["effect"] is None) or row["p"] is None
    assert "wide,1,altered,wide-s1,,," in (tmp_path / "page" / "results.csv").read_text().splitlines()


def test_tables_are_made_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = simulated(tmp_path, monkeypatch)
    page = tmp_path / "README.md"
    page.write_text("# Studies\n\n## [small](small.yaml)\n\nSome words.\n\n<!-- small -->\n<!-- end of small -->\n")
    rewrite(page, "small", section(found))
    text = page.read_text()
    assert text.splitlines()[:8][-1] == "Which?" and text.endswith("|\n<!-- end of small -->\n")
    assert "36 runs of 6 variants, 7 diverged; seeds 0, 1, 2, 3, 4; train.schedule.lr of 0.01, 0.05, by" in text
    assert "by valid.loss in 6 of the runs" in text
    for measure in ("`valid.loss` (less is better)", "`probe.induction` (more is better)"):
        assert measure in text
    assert [one.name for one in shipped(tmp_path)] == ["small"]
    assert prose(text, found).split("\n\n")[1:2] == ["Some words."] and "valid.loss" not in prose(text, found)
    rewrite(page, "small", section(Shipped("small", tmp_path)))
    assert page.read_text() == text


def test_the_tables_of_the_shipped_studies_are_those_of_their_files() -> None:
    document = (FOLDER / "README.md").read_text("utf-8")

    def checked(one: Shipped) -> None:
        assert between(document, one.name)[1] == section(one), "run python -m tests.studies.tables"
        check(one)
        check_hashes(one)
        words = re.sub(r"arXiv \d{4}\.\d+", "", prose(document, one))
        assert not re.findall(r".*\d\.\d.*", words), "figures stand in the tables"

    each(shipped(), checked) if shipped() else pytest.skip("no study has its files")
    assert "<!-- textbook -->" not in document or between(document, "textbook")[1] == textbook()
