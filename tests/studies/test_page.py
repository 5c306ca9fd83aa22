"""The page of a study: its pictures, what a stranger writes in it, and how it looks in a browser, wide and narrow."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.test_hostile_text import ACTING
from tests.studies.small import study
from tfkit.core.errors import TfkitWarning
from tfkit.reports.plots import LinearScale
from tfkit.studies.arms import Arm, StudySource
from tfkit.studies.compare import study_report
from tfkit.studies.pictures import forest
from tfkit.studies.plan import Plan
from tfkit.studies.planning import make_plan
from tfkit.studies.report import StudyReport
from tfkit.studies.results import ArmResult, Cell, Results, StudyContext, results_of
from tfkit.studies.settings import PaperClaim
from tfkit.studies.wording import front

from ..sampling import looped

pytestmark = pytest.mark.full

LOOK = """
import json, sys
from PySide6.QtCore import QTimer, QUrl
from PySide6.QtWebEngineCore import QWebEnginePage
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

class Page(QWebEnginePage):
    said = []
    def javaScriptConsoleMessage(self, level, message, line, source):
        self.said.append(message)

SCRIPT = '''
const right = [...document.querySelectorAll('body *')].filter((one) => !one.closest('.scroll, details, .off'));
const seen = (arm) => document.querySelectorAll(`g[data-arm="${arm}"]`).length
    - document.querySelectorAll(`g.off[data-arm="${arm}"]`).length;
const before = seen(1);
document.querySelector('input[data-arm="1"]').click();
JSON.stringify({
    text: document.body.innerText, wide: document.documentElement.scrollWidth, window: window.innerWidth,
    cut: right.filter((one) => one.getBoundingClientRect().right > window.innerWidth + 1).map((one) => one.outerHTML),
    areas: [...document.querySelectorAll('.area')].map((one) => one.getBoundingClientRect().height),
    strips: document.querySelectorAll('.strip').length, before, after: seen(1), baseline: seen(0),
    paper: getComputedStyle(document.body).backgroundColor,
})
'''

def look(loaded):
    page.runJavaScript(SCRIPT, lambda found: tell({**json.loads(found), "said": page.said, "loaded": loaded}))

def tell(found):
    print(json.dumps(found))
    app.quit()

app = QApplication(sys.argv[:1])
view = QWebEngineView()
page = Page(view)
view.setPage(page)
view.resize(int(sys.argv[2]), 800)
page.loadFinished.connect(lambda loaded: QTimer.singleShot(300, lambda: look(loaded)))
page.load(QUrl.fromLocalFile(sys.argv[1]))
view.show()
QTimer.singleShot(60000, app.quit)
app.exec()
"""


def made_results() -> Results:
    """Three arms with curves, one of them diverged."""
    arms = []
    for number, name in enumerate(("baseline", "better", "gone")):
        cells = []
        for seed in range(3):
            loss = 2.0 - 0.5 * number + 0.01 * seed * (1 + 0.1 * number)
            points = [{"step": step, "tokens": 9 * step, "valid.loss": loss + 1 / step} for step in (10, 20, 30)]
            state = "diverged" if name == "gone" else "done"
            scores = {} if name == "gone" else {"valid.loss": loss, "seconds": 3.0 + number, "peak_memory": 2.0**28}
            cells.append(Cell(seed, state, f"{name}-s{seed}", scores, points))
        arms.append(ArmResult(name, tuple(cells), name, parameters=1000 + number, flops=2000 + number))
    context = StudyContext("which", "A question & its <answer>.")
    return results_of(context, arms, ("valid.loss", "seconds", "peak_memory"), ())


def test_the_page_escapes_what_strangers_write(tmp_path: Path) -> None:
    plan = make_plan(
        StudySource(str(study(tmp_path, about="<script>alert(1)</script>"))), tmp_path / "out", timed=False
    )
    page = study_report(plan, tmp_path / "out").html()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    script = page.partition("<script>")[2].partition("</script>")[0]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in page  # no other script runs


HOSTILE = "=1+1 <img src=x onerror=alert(1)> \x1b[2J\u202e $\\frac{$ |"


def hostile_results() -> Results:
    """Two arms whose names, claim and description are a stranger's."""
    points = [{"step": step, "tokens": step, "valid.loss": 1.0 + step} for step in (1, 2)]
    arms = []
    for number, name in enumerate(("baseline", HOSTILE, "$\\frac{$", "_hidden")):
        cells = tuple(Cell(seed, "done", name, {"valid.loss": number + 0.1 * seed**2}, points) for seed in range(2))
        arms.append(ArmResult(name, cells, HOSTILE, parameters=10 + number, flops=20))
    claim = PaperClaim(paper=HOSTILE, says="_hidden < baseline", on="valid.loss")
    context = StudyContext(HOSTILE, HOSTILE, [claim], failed={HOSTILE: HOSTILE}, altered={HOSTILE: HOSTILE})
    return results_of(context, arms, ("valid.loss",), ())


def test_no_file_of_a_report_lets_a_stranger_s_text_act(tmp_path: Path) -> None:
    results = hostile_results()
    arms = tuple(Arm(arm.name) for arm in results.arms)
    plan = Plan(HOSTILE, HOSTILE, arms, (0, 1), ({},), ("valid.loss",), 1, about=HOSTILE, text=HOSTILE, made=HOSTILE)
    StudyReport(results, {HOSTILE: (HOSTILE,)}, [(HOSTILE, HOSTILE)], plan).write(tmp_path)
    texts = {name: (tmp_path / f"report.{name}").read_text(encoding="utf-8") for name in ("html", "md")}
    texts |= {name: (tmp_path / f"results.{name}").read_text(encoding="utf-8") for name in ("csv", "json", "tex")}
    texts |= {"jsonl": (tmp_path / "findings.jsonl").read_text(encoding="utf-8")}
    for name, text in texts.items():
        assert not ACTING.search(text), name
    assert "<img" not in texts["html"] + texts["md"]
    rows = list(csv.reader(io.StringIO(texts["csv"])))
    first = next(row for row in rows if row[0].startswith("'=1+1"))
    assert first[5:] == ["valid.loss", "1.0"]
    lines = texts["md"].splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    assert all(one == next_one or 0 in (one, next_one) for one, next_one in pairwise(cells))
    assert json.loads(texts["json"])["about"] == HOSTILE
    assert [row["question"] for row in map(json.loads, texts["jsonl"].splitlines())][:1] == [HOSTILE]
    assert "\\_hidden" in texts["tex"] and "\\$\\textbackslash{}frac\\{\\$" in texts["tex"]
    assert texts["html"].count("_hidden") > 3 and "could not be drawn" not in texts["html"]


def test_a_picture_that_fails_loses_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("no font")

    monkeypatch.setattr("tfkit.studies.report.curves", fail)
    with pytest.warns(TfkitWarning, match="the figure of valid.loss could not be drawn: RuntimeError: no font"):
        StudyReport(made_results()).write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "could not be drawn" in page and "<svg" in page


def test_a_page_that_fails_leaves_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.reports.page.html_page", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        StudyReport(made_results()).write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "report.md",
        *(f"results.{one}" for one in ("csv", "json", "tex")),
    ]


def test_a_forest_row_has_the_difference_of_each_seed() -> None:
    results = made_results()
    rows = forest(results, "valid.loss").split('<div class="row')[2:]
    assert [re.findall(r'class="name">(\w+)', row) for row in rows] == [["baseline"], ["better"], ["gone"]]
    assert [row.count('class="dot"') for row in rows] == [3, 3, 0]
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)%', rows[1])]  # -0.5, -0.499, -0.498
    (mean,) = re.findall(r'<svg x="([\d.]+)%" y="36%"', rows[1])
    assert dots == sorted(dots) and float(mean) == pytest.approx(dots[1], abs=0.02) and dots[2] < 50
    assert "diverged in 3 of 3" in rows[2] and "better" in rows[1]


def test_a_forest_points_to_what_is_far_away() -> None:
    values = {"baseline": 2.0, **{f"arm{number}": 2.0 + 0.01 * number for number in range(1, 6)}, "far": 9.0}
    arms = [
        ArmResult(name, tuple(Cell(seed, "done", "", {"valid.loss": value + 1e-4 * seed**2}) for seed in range(2)))
        for name, value in values.items()
    ]
    results = results_of(StudyContext("far"), arms, ("valid.loss",), ())
    *near, far = forest(results, "valid.loss").split('<div class="row')[2:]
    assert '<svg x="100%"' in far and not any('<svg x="100%"' in row for row in near)
    assert 'class="dot"' not in far and "+7" in far


def test_a_forest_is_cut_at_what_can_be_read() -> None:
    """An arm that is far away and varies much: the bars of the others keep their lengths, its own has an arrow."""

    def picture(*far: float) -> list[str]:
        values = {"baseline": [2.0, 2.01, 1.99], "a": [2.05, 2.07, 2.03], "b": [1.9, 1.93, 1.91], "far": [*far]}
        arms = [
            ArmResult(name, tuple(Cell(seed, "done", "", {"valid.loss": one}) for seed, one in enumerate(own)))
            for name, own in values.items()
            if own
        ]
        return forest(results_of(StudyContext("cut"), arms, ("valid.loss",), ()), "valid.loss").split(
            '<div class="row'
        )[2:]

    (_, near, *_), with_far = picture(), picture(9.0, 2.5, 5.0)
    lengths = [float(x) for x in re.findall(r'class="mean"|<svg x="([\d.]+)%" y="36%"', near) if x]
    kept = [float(x) for x in re.findall(r'<svg x="([\d.]+)%" y="36%"', with_far[1])]
    assert abs(kept[0] - 50) > 0.2 * abs(lengths[0] - 50) > 0
    assert with_far[-1].count('<svg x="100%"') == 2 and "M-5-4" in with_far[-1]  # the bar's end, and the mean
    assert not any("M-5-4" in row for row in picture()) and "M-9-6" not in with_far[1]


@looped(
    ("low", "high", "labels"),
    [
        (1.81, 1.97, ["1.85", "1.90", "1.95"]),
        (-0.012, 0.012, ["-0.010", "-0.005", "0.000", "0.005", "0.010"]),
        (99_500, 108_100, ["100k", "102k", "104k", "106k", "108k"]),
        (2.6e8, 2.9e8, ["260M", "270M", "280M", "290M"]),
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_round(low: float, high: float, labels: list[str]) -> None:
    assert [label for _, label in LinearScale(low, high).ticks()] == labels


def test_the_front_respects_the_noise() -> None:
    """A cheaper variant beats another one only if it is not worse; a better one only beyond the noise of seeds."""
    noise = (-0.02, 0.0, 0.02)
    table = {
        "baseline": (2.0, 100),
        "luck": (1.999, 100),
        "surely": (1.5, 100),
        "cheap": (1.999, 50),
        "dear": (1.5, 200),
    }
    arms = []
    for place, (name, (loss, parameters)) in enumerate(table.items()):
        values = [loss + noise[(seed + place) % 3] for seed in range(3)]
        cells = tuple(Cell(seed, "done", "", {"valid.loss": value}) for seed, value in enumerate(values))
        arms.append(ArmResult(name, cells, parameters=parameters))
    results = results_of(StudyContext("front"), arms, ("valid.loss",), ())
    assert front(results, "valid.loss", "parameters") == {"surely", "cheap"}
    assert front(replace(results, arms=tuple(arms[:2])), "valid.loss", "parameters") == {
        "baseline",
        "luck",
    }


def test_the_page_says_what_better_means_and_latex_marks_it() -> None:
    report = StudyReport(made_results())
    _, answer, terms, *_ = report.lead()
    assert answer == "On valid.loss, of 2 variants against baseline: 1 better (better); 1 diverged (gone)."
    assert terms.startswith("Better means lower valid.loss or lower seconds or lower peak_memory beyond the noise")
    lines = report.latex().splitlines()
    assert "better & \\textbf{1.511 $\\pm$ 0.011} & 4.0 & 256.0 MiB \\\\" in lines
    assert any(line.startswith("baseline & 2.010 $") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_in_a_real_browser(width: int, scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="pip install PySide6, which brings a browser")
    report = StudyReport(made_results(), {"better": ("layer.norm: layer_norm -> rms_norm",)}, [("torch", "2.13")])
    (tmp_path / "report.html").write_text(report.html(), encoding="utf-8")
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    flags = f"--no-sandbox --disable-gpu --blink-settings=preferredColorScheme={int(scheme == 'light')}"
    environment["QTWEBENGINE_CHROMIUM_FLAGS"] = flags
    words = [sys.executable, "-c", LOOK, str(tmp_path / "report.html"), str(width)]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True)
    seen = json.loads(found.stdout.strip().splitlines()[-1])
    assert seen["loaded"]
    assert seen["said"] == []
    assert len(seen["areas"]) == 2 + 4 and all(height > 100 for height in seen["areas"])  # curves and costs
    assert seen["strips"] == 3 * 4  # an axis and three arms for each measure
    assert seen["window"] == width and seen["wide"] <= width and seen["cut"] == []
    assert seen["before"] > 0 and seen["after"] == 0 and seen["baseline"] > 0
    assert seen["paper"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
    for text in (
        "A question & its <answer>.",
        "Noise floor",
        "diverged in 3 of 3",
        "better",
        "layer.norm",
        "256.0 MiB",
    ):
        assert text in seen["text"]
    for one in report.results.comparisons:
        assert one.words() in seen["text"]


def test_losses_of_several_tokenizers_stand_beside_bits() -> None:
    scores = {"a": {"valid.loss": 1.5, "valid.bits_per_symbol": 2.25}, "b": {"valid.loss": 1.0}}
    arms = [ArmResult(name, (Cell(0, "done", name, known),)) for name, known in scores.items()]
    results = results_of(StudyContext("x"), arms, ("valid.loss",), ())
    title = "Losses per token of several tokenizers, which do not compare"
    for changes, rows in (
        (
            {"b": ("data.tokenizer: word -> bpe",)},
            {"a": "valid.bits_per_symbol 2.25", "b": "set train.metrics: [bits_per_symbol]"},
        ),
        ({"b": ("data.train: x -> y",)}, None),
    ):
        report = StudyReport(results, changes)
        found = report.lists().get(title)
        assert found is None if rows is None else dict(found or ()) == rows
        assert (title in report.markdown()) == (rows is not None)
    costs = results_of(StudyContext("x"), arms, ("seconds",), ())
    assert title not in StudyReport(costs, {"b": ("data.tokenizer: word -> bpe",)}).lists()
