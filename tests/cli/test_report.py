"""`tfkit report`: one page of a run or of a study, whatever the run lacks, and what no page is written of."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tests.studies.small import replaced, study
from tests.studies.small import tfkit as command
from tests.training.small import ENCODER, RECIPE, small, trained
from tfkit.core.rooms import pages
from tfkit.storage import checksums

from .test_hostile_text import ACTING
from .typed import refused, typed

pytestmark = pytest.mark.full

HOSTILE = "<img src=x onerror=alert(1)> </script> \u202e {{ 7 * 7 }}"


class Tags(HTMLParser):
    """The names of all tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(name for name, _ in attrs)}


def reported(folder: Path, out: Path, *words: object) -> str:
    """The page of a run or a study."""
    done = typed("report", folder, "--out", out, *words)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return out.read_text(encoding="utf-8")


def free(run: Path, folder: Path) -> Path:
    """A copy of a run without a manifest, whose files a test may change."""
    shutil.copytree(run, folder)
    (folder / checksums.SUMS).unlink(missing_ok=True)
    return folder


def of(page: str, title: str) -> str:
    """A section of a page."""
    return page.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]


def is_alone(page: str) -> None:
    """A page refers to nothing outside it, and only its own scripts run."""
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"url\(|@import", style)
    tags = Tags()
    tags.feed(page)
    assert not tags.found & {"img", "link", "iframe", "object", "base", "src", "href", "onerror", "onload", "onclick"}
    allowed = re.findall(r"'sha256-([^']+)'", page)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts] == allowed
    assert "@media print" in page and "prefers-color-scheme: dark" in page
    assert not ACTING.search(page)


def test_the_page_of_a_run_has_all_that_is_on_record(pair: Path, tmp_path: Path) -> None:
    page = reported(pair, tmp_path / "page.html")
    is_alone(page)
    assert "Training is finished." in page and "<details open>" in page
    assert 'class="tf"' in of(page, "Architecture") and "<title>model." in of(page, "Architecture")
    shown = typed("show", pair).stdout
    for figure in re.findall(r"\d+,\d+", shown):
        assert figure in page
    assert of(page, "Curve").count('class="plot"') == 2 and "validation" in of(page, "Curve")
    assert all(line.split()[0] in of(page, "Samples") for line in ("the 0 cats", "die 0 Kätzchen"))
    assert 'id="large"' in of(page, "Attention") and "decoder.layers.0.cross_attention" in of(page, "Attention")
    recipe = (pair / "recipe.yaml").read_text()
    again = of(page, "How to do it again")
    assert "tfkit train recipe.yaml --out pair\ntfkit evaluate pair\ntfkit prove pair" in again
    assert recipe.splitlines()[1] in of(page, r"The recipe (recipe.yaml)")
    assert (pair / checksums.SUMS).read_text().split()[0] in page and "torch" in of(page, "Made with")


def test_the_data_of_a_page_are_exact(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = json.loads(typed("report", pair, "--json").stdout)
    assert data["page"] is None and not list(tmp_path.iterdir())
    assert data["costs"]["total"] == json.loads(typed("show", pair, "--json").stdout)["total"]
    records = [json.loads(line) for line in (pair / "metrics.jsonl").read_text().splitlines()]
    assert data["curve"]["loss"] == [[one["step"], one["loss"]] for one in records]
    assert data["again"]["history"]["steps"] == 4 and data["again"]["recipe"] == (pair / "recipe.yaml").read_text()
    assert {"input", "output", "reference"} == set(data["samples"][0]) and data["attention"]["heads"]
    both = json.loads(typed("report", pair, "--json", "--out", "mine.html").stdout)
    assert both["page"] == "mine.html" and (tmp_path / "mine.html").is_file()
    assert typed("report", pair).stdout.startswith("report.html: ")


def test_what_a_run_lacks_is_left_out_with_the_reason(pair: Path, tmp_path: Path) -> None:
    unfinished = free(pair, tmp_path / "unfinished")
    (unfinished / "model.safetensors").unlink()
    history = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(json.dumps(history | {"finished": ""}))
    bare = free(pair, tmp_path / "bare")
    for name in ("metrics.jsonl", "evaluation.json", "run.json", "recipe.yaml", "README.md"):
        (bare / name).unlink(missing_ok=True)
    moved = free(pair, tmp_path / "moved")
    resolved = (moved / "resolved.yaml").read_text()
    (moved / "resolved.yaml").write_text(resolved.replace("a.txt", "gone.txt"))
    for folder, title, words in (
        (unfinished, "Samples", "Left out: the weights are missing"),
        (unfinished, "Attention", "Left out: the weights are missing"),
        (bare, "Curve", "There is no record of steps."),
        (moved, "Samples", "gone.txt"),
        (moved, "Attention", "gone.txt"),
    ):
        page = reported(folder, tmp_path / "page.html", "--force")
        assert words in of(page, title), (folder, title)
        is_alone(page)
    assert "Training is not finished." in reported(unfinished, tmp_path / "page.html", "--force")
    assert "There is no record of its training." in reported(bare, tmp_path / "page.html", "--force")
    given = reported(moved, tmp_path / "page.html", "--force", "--text", "the 3 cats")
    assert 'id="large"' in of(given, "Attention") and "<p>the 3 cats</p>" in of(given, "Attention")


def test_other_models_have_a_page(writer: Path, tmp_path: Path) -> None:
    plain = trained(small(tmp_path, metrics=[]), tmp_path / "plain")
    encoder = trained(small(tmp_path, metrics=[], overrides=ENCODER), tmp_path / "encoder")
    ids: dict[str, Any] = {"tfkit": 1, "model": {**RECIPE["model"], "vocab_size": 9}}
    saved = tfkit.save(tfkit.build(ids), ids, None, tmp_path / "saved")
    vectors = {"train.steps": 2, "train.epochs": None, "train.device": "cpu", "train.metrics": []}
    digits = tfkit.train(tfkit.load_recipe("digits", overrides=vectors), out=tmp_path / "digits", progress=False)
    for folder, title, words in (
        (plain.folder, "Samples", "one two"),
        (writer, "Samples", "this run has no split"),
        (encoder.folder, "Samples", "the model writes no text"),
        (encoder.folder, "Attention", 'id="large"'),
        (saved.folder, "Samples", "the recipe has no data"),
        (saved.folder, "Curve", "There is no record of steps."),
        (digits.folder, "Samples", "[8 8 1]"),
        (digits.folder, "Attention", 'id="large"'),
    ):
        page = reported(folder, tmp_path / "page.html", "--force")
        assert words in of(page, title), (folder, title)
        is_alone(page)


def test_bad_input_is_refused_in_words_and_writes_nothing(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "empty").mkdir()
    damaged = {}
    for name in ("run.json", "model.safetensors", "metrics.jsonl", "resolved.yaml"):
        damaged[name] = tmp_path / f"damaged-{name}"
        shutil.copytree(pair, damaged[name])
        (damaged[name] / name).write_bytes((damaged[name] / name).read_bytes() + b"\n")
    out = tmp_path / "out.html"
    for words, message in (
        ((pair, "--out", tmp_path / "there.html"), "there.html: already exists; choose another name, or replace it"),
        ((pair, "--out", tmp_path / "page.pdf"), "page.pdf: the suffix must be one of .html, got '.pdf'"),
        ((pair, "--out", tmp_path / "page"), "the suffix must be one of .html, got none"),
        ((pair, "--out", tmp_path), "is a folder"),
        ((tmp_path / "nothing", "--out", out), "nothing: no such folder"),
        ((tmp_path / "there.html", "--out", out), "there.html: is not a folder"),
        ((tmp_path / "empty", "--out", out), "empty: contains neither a run nor a study"),
        ((pair, "--out", out, "--text", "one " * 9_000), "shorten the source"),
        *(((folder, "--out", out), f"{name}: has changed since it was written") for name, folder in damaged.items()),
    ):
        assert message in " ".join(refused("report", *words).split()), words
    assert (tmp_path / "there.html").read_text() == "mine"
    assert not out.exists() and not list(tmp_path.glob(".*.tmp"))


def test_a_kill_while_writing_leaves_the_old_page(pair: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    program = (
        "import os, sys; from tfkit.storage import files; from tfkit.cli.main import main\n"
        "files.sync = lambda path: os.kill(os.getpid(), 9); main(sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, "report", str(pair), "--out", "page.html", "--force"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tfkit.__file__).parents[1])}
    assert subprocess.run(words, cwd=tmp_path, env=environment, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "page.html").read_text() == "mine"


def test_no_text_of_a_stranger_acts_and_no_page_is_large(pair: Path, tmp_path: Path) -> None:
    folder = free(pair, tmp_path / "<img src=x>")
    (folder / "recipe.yaml").write_text(f"# {HOSTILE}\n" + "# padding\n" * 500_000)
    known = json.loads((folder / "environment.json").read_text())
    known |= {"recipe": HOSTILE, "imported": {"from": f"/{HOSTILE}"}, "baseline": {"name": HOSTILE, "loss": 0.5}}
    (folder / "environment.json").write_text(json.dumps(known))
    (folder / "evaluation.json").write_text(json.dumps({HOSTILE: {HOSTILE: 1.0}}))
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    steps = [{**line, "step": step, f"valid.{HOSTILE}": 1 / step} for step in range(1, 10_001)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps))
    assert typed("report", folder, "--out", tmp_path / "page.html", "--text", HOSTILE).exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    is_alone(page)
    assert "<img" not in page and page.count("</script>") == page.count("<script")
    assert page.count("alert(1)") > 4 and "{{ 7 * 7 }}" in page
    assert "more characters" in page and len(page) < 2_000_000
    longest = max(re.findall(r'points="([^"]*)"', page), key=len)
    assert len(longest.split()) <= 800


def test_a_study_has_its_results_and_a_run_of_its_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    study(tmp_path, about="Which norm?")
    assert command("study", "small.yaml", "--out", "done", folder=tmp_path).exit_code == 0
    page = reported(tmp_path / "done", tmp_path / "page.html")
    is_alone(page)
    results = json.loads((tmp_path / "done" / "results.json").read_text())
    assert "<strong>Which norm?</strong>" in page and "tfkit study small.yaml --out done" in page
    for title in ("Noise floor", "Architecture (baseline-s0)", "Costs (baseline-s0)", "Attention (baseline-s0)"):
        assert of(page, title), title
    assert json.loads(typed("report", tmp_path / "done", "--json").stdout)["results"] == results
    shutil.rmtree(tmp_path / "done" / "runs")
    page = reported(tmp_path / "done", tmp_path / "page.html", "--force")
    assert "Left out: no run of the baseline has begun" in page and "0 of 4 runs are done" in page
    monkeypatch.setattr("tfkit.core.rooms.PACKAGE", tmp_path)  # without rooms that have pages
    pages.cache_clear()
    assert "contains neither" in refused("report", tmp_path / "done", "--out", tmp_path / "other.html")
    pages.cache_clear()
