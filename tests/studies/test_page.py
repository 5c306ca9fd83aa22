"""The page of a study in a real browser, without a screen: no error in its console, every figure and picture there."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.test_hostile_text import ACTING
from tests.studies.small import study
from tfkit.core.errors import TfkitWarning
from tfkit.recipe.settings.study import PaperClaim
from tfkit.studies.arms import StudySource
from tfkit.studies.compare import study_report
from tfkit.studies.planning import make_plan
from tfkit.studies.report import StudyReport
from tfkit.studies.results import ArmResult, Cell, Results, StudyContext, results_of

LOOK = """
import json, os, sys
from PySide6.QtCore import QTimer, QUrl
from PySide6.QtWebEngineCore import QWebEnginePage
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

class Page(QWebEnginePage):
    said = []
    def javaScriptConsoleMessage(self, level, message, line, source):
        self.said.append(message)

def look(loaded):
    script = "JSON.stringify({text: document.body.innerText, pictures: [...document.querySelectorAll('svg')].map("
    script += "one => one.getBoundingClientRect().height), wide: document.body.scrollWidth, window: window.innerWidth})"
    page.runJavaScript(script, lambda found: tell({**json.loads(found), "said": page.said, "loaded": loaded}))

def tell(found):
    print(json.dumps(found))
    app.quit()

app = QApplication(sys.argv[:1])
view = QWebEngineView()
page = Page(view)
view.setPage(page)
view.resize(1000, 800)
page.loadFinished.connect(look)
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
            loss = 2.0 - 0.5 * number + 0.01 * seed
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
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


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
    StudyReport(hostile_results(), {HOSTILE: (HOSTILE,)}, [(HOSTILE, HOSTILE)], HOSTILE).write(tmp_path)
    texts = {name: (tmp_path / f"report.{name}").read_text(encoding="utf-8") for name in ("html", "md")}
    texts |= {name: (tmp_path / f"results.{name}").read_text(encoding="utf-8") for name in ("csv", "json")}
    for name, text in texts.items():
        assert not ACTING.search(text), name
    assert "<img" not in texts["html"] + texts["md"]
    rows = list(csv.reader(io.StringIO(texts["csv"])))
    assert rows[3][0].startswith("'=1+1") and rows[3][4] == "1.0"
    lines = texts["md"].splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    assert all(one == next_one or 0 in (one, next_one) for one, next_one in pairwise(cells))
    assert json.loads(texts["json"])["about"] == HOSTILE
    assert texts["html"].count("_hidden") > 3 and "could not be drawn" not in texts["html"]


def test_a_picture_that_fails_loses_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("no font")

    monkeypatch.setattr("tfkit.studies.report.curves", fail)
    with pytest.warns(TfkitWarning, match="picture of valid.loss: not drawn: RuntimeError: no font"):
        StudyReport(made_results()).write(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "could not be drawn" in page and "<svg" in page


def test_a_page_that_fails_leaves_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.studies.page.html_page", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        StudyReport(made_results()).write(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.md", "results.csv", "results.json"]


@pytest.mark.slow
def test_the_page_in_a_real_browser(tmp_path: Path) -> None:
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="pip install PySide6, which brings a browser")
    report = StudyReport(made_results(), {"better": ("layer.norm: layer_norm -> rms_norm",)}, [("torch", "2.13")])
    (tmp_path / "report.html").write_text(report.html(), encoding="utf-8")
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    environment["QTWEBENGINE_CHROMIUM_FLAGS"] = "--no-sandbox --disable-gpu"
    words = [sys.executable, "-c", LOOK, str(tmp_path / "report.html")]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120, check=True)
    seen = json.loads(found.stdout.strip().splitlines()[-1])
    assert seen["loaded"]
    assert seen["said"] == []
    assert len(seen["pictures"]) == 2
    assert all(height > 100 for height in seen["pictures"])
    assert seen["wide"] <= seen["window"] + 1
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
