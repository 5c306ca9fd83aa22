"""Results and page of a design, of runs made by hand: the truth is known, and means are computed again."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.studies.small import study
from tfkit.core.figures import Console
from tfkit.studies.arms import StudySource
from tfkit.studies.compare import print_results, study_results
from tfkit.studies.design import confirming, screening
from tfkit.studies.design_section import DesignPlan
from tfkit.studies.pictures import half_normal
from tfkit.studies.planning import make_plan
from tfkit.studies.report import StudyReport
from tfkit.studies.results import ArmResult, Cell, Results, StudyContext, results_of
from tfkit.studies.settings import PaperClaim

pytestmark = pytest.mark.full

GROUPS = (("gelu", "relu2"), ("rotary",), ("qk_norm",), ("untied",), ("deep",), ("<wide>",))
TRUE = {"rotary": -0.5, "gelu": 0.2, "untied": 0.08}  # the noise has 0.02
CHOSEN = ("gelu", "rotary", "untied", "deep")
LOSS, SCORE = "test.loss", "test.accuracy"
CLAIMS = ("rotary < baseline", "baseline > qk_norm", "gelu < baseline")


def arms_of(diverges: Callable[[set[str]], bool], ended: Sequence[float] = (1.0, 1.0)) -> list[ArmResult]:
    """12 runs of the baseline, 32 of a screen and 16 that confirm, each on its own seed; a share of both has ended."""
    random, seeds = np.random.default_rng(0), iter(range(100))

    def run(options: Sequence[str], has_ended: bool = True) -> Cell:
        seed = next(seeds)
        loss = 2.0 + sum(TRUE.get(one, 0.0) for one in options) + 0.02 * float(random.normal())
        state = "diverged" if diverges(set(options)) else "done" if has_ended else "waiting"
        scores = {LOSS: loss, SCORE: float(round(100 - 20 * loss))} if state == "done" else {}
        return Cell(seed, state, f"run-s{seed}", scores, examples={"test": 100})

    arms = [ArmResult("baseline", tuple(run(()) for _ in range(12)), parameters=10, steps=300)]
    chosen = CHOSEN if ended[0] == 1.0 else ()
    stages = {"screen": screening(GROUPS, 32), "confirm": confirming([[one] for one in chosen], 16) if chosen else []}
    for (stage, cells), share in zip(stages.items(), ended, strict=True):
        for place, options in enumerate(cells):
            name = f"{'+'.join(options) or 'baseline'}@{stage}-{place}"
            own = (run(options, place < share * len(cells)),)
            arms.append(ArmResult(name, own, parameters=10, steps=300, stage=stage, options=options))
    return arms


def results(arms: Sequence[ArmResult], **more: object) -> Results:
    """The results of a design with these arms."""
    is_known = any(arm.stage == "confirm" for arm in arms)
    claims = [PaperClaim(says=says, on=LOSS) for says in CLAIMS]
    asked = {"screen": [" | ".join(group) for group in GROUPS], "runs": 32, "confirm": {"most": 4, "runs": 16}}
    design = DesignPlan(**asked, excluded=[["deep", "untied"]], chosen=CHOSEN if is_known else ())
    context = StudyContext("few", "Which pay?", claims, planned=True, tuned_by="valid.loss")
    return results_of(replace(context, **more), arms, (LOSS, SCORE), (SCORE,), design)


def effect_of(arms: Sequence[ArmResult], stage: str, option: str, measure: str = LOSS) -> float:
    """The mean with an option minus the mean without it, as in a table of two levels."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for arm in arms:
        if arm.stage == stage:
            sides[option in arm.options] += [cell.scores[measure] for cell in arm.cells]
    return float(np.mean(sides[True]) - np.mean(sides[False]))


def test_verdicts_of_a_design_come_from_its_fresh_runs() -> None:
    arms = arms_of(lambda options: False)
    found = results(arms)
    assert [(one.arm, one.against, one.measure) for one in found.comparisons] == [
        (option, "without", measure) for measure in (LOSS, SCORE) for option in CHOSEN
    ]
    for one in found.comparisons:
        assert one.mean == pytest.approx(effect_of(arms, "confirm", one.arm, one.measure))
        assert one.n == 8 and one.runs == 8
    assert [one.verdict for one in found.comparisons[:4]] == ["worse", "better", "worse", "cannot tell"]
    assert all(one.words().endswith("; untuned") for one in found.comparisons)
    assert [one.verdict for one in found.claims] == ["held", "open", "not held"]
    assert "the screen did not choose it" in found.claims[1].comparison.words()
    assert found.claims[1].comparison.arm == "without" and found.claims[1].comparison.against == "qk_norm"
    assert found.tested == 8 and found.is_refuted
    far = [replace(arm, cells=(replace(arm.cells[0], scores={LOSS: 9.0, SCORE: 1.0}),)) for arm in arms[1:33]]
    again = results([arms[0], *far, *arms[33:]])
    assert again.comparisons == found.comparisons  # the screen has no part in them
    for one in found.design.effects[LOSS] if found.design else ():
        if one.name not in GROUPS[0]:  # an option of a group is compared with the runs without the whole group
            assert one.mean == pytest.approx(effect_of(arms, "screen", one.name))


def test_reservations_stand_beside_the_verdicts_of_a_design() -> None:
    arms = arms_of(lambda options: False)
    assert {one.mark for one in results(arms, changed=("seeds: 1 -> 2",)).comparisons} == {"plan changed; untuned"}
    tune = {"train.schedule.lr": [0.1, 0.2]}
    assert {one.mark for one in results(arms, tune=tune).comparisons} == {""}
    edge = replace(arms[-1], tuned={"train.schedule.lr": 0.2}, tried=tune)
    assert {one.mark for one in results([*arms[:-1], edge], tune=tune).comparisons} == {"best at the edge"}
    for place, mark in ((-1, "seen before the plan; untuned"), (0, "seen before the plan; untuned"), (5, "untuned")):
        marked = [replace(arm, early=arm is arms[place]) for arm in arms]
        assert {one.mark for one in results(marked).comparisons} == {mark}, place
    lost = replace(arms[-1], cells=(replace(arms[-1].cells[0], state="altered", scores={}),))
    found = results([*arms[:-1], lost], altered={"run-s59": "was edited"})
    assert {one.words() for one in found.comparisons} == {"open: run-s59 was altered"}
    assert found.is_refuted and {one.verdict for one in found.claims} == {"open"}


def test_a_design_says_how_far_it_is() -> None:
    half = StudyReport(results(arms_of(lambda options: False, (0.5, 0.0))))
    assert half.results.comparisons == () and half.results.design is not None and not half.results.design.effects
    assert "On test.loss, nothing is known yet: 16 of 32 runs of the screen have ended." in half.lead()
    assert "28 of 44 runs are done, screen: 16 of 32 ended; confirm: 0 of 0 ended" in half.summary()
    assert {one.verdict for one in half.results.claims} == {"open"} and half.html() and half.latex()
    later = StudyReport(results(arms_of(lambda options: False, (1.0, 0.5))))
    assert {one.words() for one in later.results.comparisons} == {"open: not all planned runs have ended"}
    assert later.results.design is not None and len(later.results.design.effects) == 2
    assert not later.results.design.interactions and "confirm: 8 of 16 ended" in later.summary()


def test_the_whole_page_of_a_design(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = arms_of(lambda options: {"gelu", "deep"} <= options and len(options) > 3)
    changes = {"gelu": ("model.layer.feedforward.activation: relu -> gelu",)}
    report = StudyReport(results(arms), changes)
    report.write(tmp_path)
    _, answer, average, *_ = report.lead()
    assert answer.startswith(
        "On test.loss after 300 steps, of 4 options chosen by the screen, in 16 fresh runs: 1 better"
    )
    assert "an average over the other options" in average and "The screen only chose" in average
    titles = [section.title for section in report.sections()]
    assert titles[:6] == [
        f"{LOSS} (less is better)",
        "Claims",
        f"{SCORE} (more is better)",
        f"{LOSS} in the screen",
        f"{SCORE} in the screen",
        "Aliases in the screen",
    ]
    assert {"Options that exclude each other", "Diverged runs by option", "Noise floor"} <= {*titles}
    assert sum("Interactions on" in title for title in titles) == 2
    assert not any("while training" in title or "against its cost" in title for title in titles)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    forest, _, rest = page.partition('<div class="forest">')[2].partition("</table>")
    assert forest.count('<div class="row') == 6 and forest.count('class="dot"') <= 12  # the baseline's alone
    assert "model.layer.feedforward.activation" in rest and "<wide>" not in page and "&lt;wide&gt;" in page
    assert "could not be drawn" not in page and len(page) < 120_000
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "never in one run" in text and "diverge" in text and "least squares" in text
    design = json.loads((tmp_path / "results.json").read_text())["design"]
    assert design["runs"] == {"screen": [32, 32], "confirm": [16, 16]} and design["chosen"] == [*CHOSEN]
    assert [*design["effects"]] == [LOSS, SCORE] and len(design["effects"][LOSS]) == 7
    assert {*design["interactions"][LOSS][0]} == {"name", "mean", "error", "freedom", "n"}
    for option, counts in design["diverged"].items():
        cells = [(arm.options, arm.cells[0].state == "diverged") for arm in arms[1:]]
        sides = [[is_lost for own, is_lost in cells if (option in own) == has] for has in (True, False)]
        assert counts == [n for side in sides for n in (sum(side), len(side))] and sum(counts[::2]) > 0
    latex = (tmp_path / "results.tex").read_text()
    (better,) = [one for one in report.results.comparisons if one.arm == "rotary" and one.measure == LOSS]
    assert f"rotary; untuned & \\textbf{{{better.mean:.4g} [" in latex and latex.count(r"\\") == 6
    rows = list(csv.reader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert len({tuple(row[:2]) for row in rows[1:]}) == 12 + 32 + 16
    print_results(report, Console())
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("the screen did not choose it", "Aliases in the screen", "gelu × rotary"))


def test_a_half_normal_plot_names_what_stands_out() -> None:
    found = results(arms_of(lambda options: False)).design
    assert found is not None
    picture = half_normal(found.effects[LOSS], CHOSEN)
    sizes = {one.name: abs(one.mean or 0.0) / (one.error or 1.0) for one in found.effects[LOSS]}
    dots = re.findall(r'<circle( class="ring")? cx="([\d.]+)%" cy="([\d.-]+)%" r="4"><title>([^<]+)', picture)
    order = [name.replace("&lt;", "<").replace("&gt;", ">") for *_, name in dots]
    assert order == sorted(sizes, key=lambda name: sizes[name])
    assert [bool(ring) for ring, *_ in dots] == [name not in CHOSEN for name in order]
    across, up = ([float(one) for one in column] for column in list(zip(*dots, strict=True))[1:3])
    assert across == sorted(across) and up == sorted(up, reverse=True)
    names = re.findall(r'text-anchor="end">([^<]+)</text>', picture.partition("noise-band")[2])
    top = float(re.findall(r'noise-band" width="100%" y="([\d.]+)%', picture)[0])
    assert {*names} == {*CHOSEN} and up[-1] < top < up[0]  # rotary is outside the band, qk_norm within
    assert half_normal([], ()) == ""


def test_noise_of_another_folder_is_that_of_the_baseline(tmp_path: Path) -> None:
    variants = {"gelu": {"model.layer.feedforward.activation": "gelu"}}
    asked = {"screen": ["gelu", "wide", "norm=rms_norm"], "runs": 8, "confirm": {"most": 2, "runs": 4}}
    file = study(tmp_path, more={"variants": variants}, design=asked)
    plan = make_plan(StudySource(str(file)), tmp_path / "out", timed=False)
    assert plan.design is not None
    scores = {str(seed): {"valid.loss": float(seed)} for seed in (1, 2, 3)}
    design = plan.design.model_copy(update={"noise": "elsewhere", "scores": scores})
    plan = replace(plan, design=design, arms=(replace(plan.arms[0], seeds=()), *plan.arms[1:]))
    found = study_results(plan, tmp_path / "out")
    assert len(found.arms[0].cells) == 3 and not found.comparisons
    noise = found.noise["valid.loss"]
    assert noise is not None and (noise.mean, noise.sd) == (2.0, 1.0)
