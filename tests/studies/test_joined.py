"""Several results.csv, judged as one study: equal to the study of all variants, and refused where they disagree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.studies.small import tfkit
from tests.studies.tables import FOLDER, Shipped
from tfkit.studies.again import APART, joined_report
from tfkit.studies.results import results_of

pytestmark = pytest.mark.full


def parts(name: str, folder: Path) -> list[Path]:
    """The results of a shipped study, one file for each variant with the baseline."""
    head, *lines = (FOLDER / f"{name}.csv").read_text().splitlines(keepends=True)
    base, *others = dict.fromkeys(line.partition(",")[0] for line in lines)
    files = [folder / f"student{number}" / "results.csv" for number in range(len(others))]
    for other, file in zip(others, files, strict=True):
        file.parent.mkdir()
        file.write_text(head + "".join(line for line in lines if line.startswith((f"{base},", f"{other},"))))
    return files


@pytest.mark.parametrize("name", ["heads", "glu-variants", "last-state", "attention-cost", "distillation"])
def test_the_verdicts_are_those_of_one_study(name: str, tmp_path: Path) -> None:
    whole = Shipped(name).results
    context = {key: getattr(whole, key) for key in ("name", "tune", "planned")}
    noisy = [one for one in whole.measure if one not in ("parameters", "flops", "cache_bytes")]
    context_of = type(whole).__mro__[1](**context)  # without the claims, which compare more pairs
    expected = results_of(context_of, whole.arms, noisy, whole.rising).comparisons
    found = joined_report(parts(name, tmp_path), noisy).results
    assert [replace(one, bounds=None) for one in found.comparisons] == [replace(one, bounds=None) for one in expected]
    assert set(found.rising) == {one for one in noisy if one in whole.rising}


def test_variants_of_one_name_are_told_apart_and_other_scores_of_the_baseline_are_marked(tmp_path: Path) -> None:
    first, second, *_ = parts("heads", tmp_path)
    second.write_text(second.read_text().replace("heads=4", "heads=1").replace("2.6741706", "2.6751706"))
    found = joined_report([first, second], []).results
    assert [arm.name for arm in found.arms] == ["baseline", f"heads=1 ({first})", f"heads=1 ({second})"]
    assert [APART in one.words() for one in found.comparisons] == [False, True]


CASES: dict[str, tuple[Any, str]] = {
    "another file": (
        lambda text: "a,b\n1,2\n",
        "b.csv:1: is not the results.csv of a study, which begins with variant",
    ),
    "empty": (lambda text: "", "b.csv:1: is not the results.csv of a study"),
    "no run": (lambda text: text[: text.index("\n") + 1], "b.csv: pass several files, each with the same baseline"),
    "a bad number": (lambda text: text.replace(",2.6", ",2.6x", 1), "b.csv:2: is not a row of results.csv"),
    "not finite": (
        lambda text: text.replace(",2.6", ",nan", 1).replace("nan", "nan\n"),
        "b.csv:2: is not a row of results",
    ),
    "a bad seed": (lambda text: text.replace(",0,done", ",x,done", 1), "b.csv:2: is not a row of results.csv"),
    "a state of no run": (lambda text: text.replace(",0,done", ",0,banana", 1), "b.csv:2: is not a row of results.csv"),
    "a row twice": (
        lambda text: text + text.splitlines()[1].rpartition(",")[0] + ",99\n",
        "is not a row of results.csv",
    ),
    "a lost count": (
        lambda text: text + text.splitlines()[1].rpartition(",")[0].replace("test.loss", "test.loss.examples") + ",\n",
        "is not a row of results.csv",
    ),
    "cut": (lambda text: text[:-20].rpartition(",")[0], ": is not a row of results.csv"),
    "the same": (None, "b.csv: has the same runs as a.csv; pass one of them"),
    "other scores": (
        lambda text: text.replace("test.loss,2.67", "test.loss,2.97"),
        "b.csv:3: baseline, seed 0: test.loss",
    ),
    "other seeds": (lambda text: text.replace("baseline,4,", "baseline,5,"), ": other runs, steps or data"),
    "other tuned values": (lambda text: text.replace("lr=0.008", "lr=0.007"), ": other runs, steps or data"),
    "only a baseline": (lambda text: text[: text.index("heads=")], "b.csv: pass several files, each with the same"),
    "a design": (lambda text: text.replace("heads=4", "gelu@screen"), "b.csv: pass several files, each with the same"),
    "another baseline": (
        lambda text: text.replace("baseline", "base"),
        "b.csv: pass several files, each with the same",
    ),
}


def test_files_that_disagree_are_refused_in_words(tmp_path: Path) -> None:
    first, second, *_ = (file.read_text() for file in parts("heads", tmp_path))
    (tmp_path / "a.csv").write_text(first)
    for name, (changed, words) in CASES.items():
        (tmp_path / "b.csv").write_text(changed(second) if changed else first)
        result = tfkit("compare", "a.csv", "b.csv", folder=tmp_path)
        assert result.exit_code == 2 and words in " ".join(result.output.split()), f"{name}: {result.output}"
    for arguments, words in (
        (["a.csv"], "a.csv: pass several files"),
        (["a.csv", "none.csv"], "none.csv: no such file"),
        (["a.csv", "."], ".: is a folder; pass results.csv files, or runs, not both"),
        (["a.csv", "b.csv", "--measure", "test.bleu"], "a.csv: 'baseline' has no test.bleu; it has test.loss"),
    ):
        (tmp_path / "b.csv").write_text(second)
        result = tfkit("compare", *arguments, folder=tmp_path)
        assert result.exit_code == 2 and words in " ".join(result.output.split()), result.output
    assert tfkit("compare", "a.csv", "b.csv", "--out", "page", folder=tmp_path).exit_code == 0
    assert "heads=4" in (tmp_path / "page" / "report.html").read_text()
