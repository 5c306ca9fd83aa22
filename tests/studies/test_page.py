"""The page of a study in a real browser, without a screen: no error in its console, every figure and picture there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.studies.small import study
from tfkit.studies.arms import StudySource
from tfkit.studies.compare import study_report
from tfkit.studies.planning import make_plan
from tfkit.studies.results import ArmResult, Cell, Results, results_of

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
    return results_of("which", arms, ("valid.loss", "seconds", "peak_memory"), (), about="A question & its <answer>.")


def test_the_page_escapes_what_strangers_write(tmp_path: Path) -> None:
    plan = make_plan(
        StudySource(str(study(tmp_path, about="<script>alert(1)</script>"))), tmp_path / "out", timed=False
    )
    page = study_report(plan, tmp_path / "out").html()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.slow
def test_the_page_in_a_real_browser(tmp_path: Path) -> None:
    pytest.importorskip("PySide6.QtWebEngineWidgets", reason="pip install PySide6, which brings a browser")
    from tfkit.studies.report import StudyReport

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
