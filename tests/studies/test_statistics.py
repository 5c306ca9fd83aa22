"""Intervals, Holm's correction and verdicts, held against figures that were made otherwise."""

from __future__ import annotations

import inspect
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tfkit.studies.board import examples_of
from tfkit.studies.results import ArmResult, Cell, results_of
from tfkit.studies.statistics import Comparison, claim_verdict, compared, holm, judged, share_step, spread
from tfkit.training.folder import RunFolder


def comparison(*differences: float, measure: str = "valid.loss", diverged: int = 0) -> Comparison:
    ours: dict[int, float | None] = {seed: 5.0 + value for seed, value in enumerate(differences)}
    ours |= {100 + seed: None for seed in range(diverged)}
    theirs: dict[int, float | None] = dict.fromkeys(ours, 5.0)
    return compared("arm", "baseline", measure, ours, theirs)


def test_the_interval_and_p_are_those_of_the_paired_t_test() -> None:
    generator = np.random.default_rng(3)
    ours, theirs = generator.normal(size=7), generator.normal(size=7)
    found = compared("a", "b", "valid.loss", dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.mean == pytest.approx(float(np.mean(ours - theirs)))
    seed = {
        "rng" if "rng" in inspect.signature(stats.bootstrap).parameters else "random_state": np.random.default_rng(1)
    }
    boot = stats.bootstrap((ours - theirs,), np.mean, method="percentile", **seed)
    assert found.boot_low == pytest.approx(boot.confidence_interval.low, abs=0.1)
    assert found.boot_high == pytest.approx(boot.confidence_interval.high, abs=0.1)


def test_t_by_hand() -> None:
    """1, 2, 3: the mean 2, its standard error 1 / sqrt(3), t(2) at 0.975 4.302653."""
    found = comparison(1.0, 2.0, 3.0)
    reach = 4.302653 / math.sqrt(3)
    assert (found.low, found.high) == (pytest.approx(2 - reach, abs=1e-5), pytest.approx(2 + reach, abs=1e-5))


def test_pairs_are_by_seed_and_what_is_missing_is_left_out() -> None:
    found = compared("a", "b", "valid.loss", {0: 1.0, 1: 5.0, 2: None, 4: 1.0}, {0: 0.0, 1: 3.0, 2: 1.0, 3: 9.0})
    assert (found.n, found.mean, found.runs, found.diverged) == (2, 1.5, 4, 1)


def test_holm_by_hand() -> None:
    """Of 0.01, 0.04, 0.03, 0.005 (Holm 1979): 0.03, 0.06, 0.06, 0.02; a None is no comparison."""
    assert holm([0.01, None, 0.04, 0.03, 0.005]) == [
        pytest.approx(0.03),
        None,
        pytest.approx(0.06),
        pytest.approx(0.06),
        pytest.approx(0.02),
    ]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("differences", "rising", "verdict"),
    [
        ((-1.0, -1.1, -0.9, -1.05, -0.95), (), "better"),
        ((-1.0, -1.1, -0.9, -1.05, -0.95), ("valid.loss",), "worse"),
        ((1.0, 1.1, 0.9, 1.05, 0.95), (), "worse"),
        ((1.0, -1.1, 0.9, -1.05, 0.95), (), "within the noise"),
        ((-1.0,), (), "open: 1 pair of runs"),
        ((), (), "open: 0 pairs of runs"),
        ((0.5, 0.5, 0.5), (), "open: identical differences"),
        ((0.0, 0.0), (), "open: identical differences"),
        ((0.1 + 0.2, 0.3), (), "open: identical differences"),
        ((0.5, 0.5, 0.50001), (), "worse"),
    ],
)
def test_a_verdict_in_words(differences: tuple[float, ...], rising: tuple[str, ...], verdict: str) -> None:
    (found,) = judged([comparison(*differences)], rising)
    assert found.words() == verdict


def test_equal_differences_are_no_verdict() -> None:
    for ours, theirs in (({0: 99.33, 1: 99.33}, {0: 99.0, 1: 99.0}), ({0: 99.33, 1: 98.33}, {0: 99.0, 1: 98.0})):
        found = compared("x", "b", "a", ours, theirs)
        assert (found.n, found.p, found.boot_low, found.is_identical) == (2, None, None, True)
        assert found.low is not None and found.mean is not None and found.low < found.mean == pytest.approx(0.33)
        (one,) = judged([found], ("a",))
        assert one.words() == "open: identical differences"
        assert claim_verdict(one, rising=True) == "open"


def test_the_spread_is_at_least_half_a_step() -> None:
    """0.01 and 0.02 of scores near 5, printed as 5.000: the deviation is 0.0071, and at least 0.0005 or step / 2."""
    ours, theirs = {0: 5.01, 1: 5.02}, {0: 5.0, 1: 5.0}
    as_measured, coarse = compared("a", "b", "m", ours, theirs), compared("a", "b", "m", ours, theirs, step=0.2)
    assert as_measured.p == pytest.approx(stats.ttest_1samp([0.01, 0.02], 0).pvalue)
    reach = 12.706205 * 0.1 / math.sqrt(2)
    assert (coarse.low, coarse.high) == (pytest.approx(0.015 - reach), pytest.approx(0.015 + reach))
    printed = compared("a", "b", "m", {0: 5.01, 1: 5.01 + 1e-6}, theirs)
    assert printed.p == pytest.approx(2 * stats.t(1).sf(0.0100005 / (0.0005 / math.sqrt(2))))


@pytest.mark.parametrize(
    ("scores", "examples", "step"),
    [
        ((100 * 298 / 300, 100 * 297 / 300, 100.0), 300, 100 / 300),
        ((298 / 300, 0.0), 300, 1 / 300),
        ((0.0, 100.0), 300, 100 / 300),
        ((27.31, 28.0), 300, 0.0),
        ((120.0,), 300, 0.0),
        ((-1.0,), 300, 0.0),
        ((50.0,), 0, 0.0),
    ],
)
def test_the_step_of_a_share(scores: tuple[float, ...], examples: int, step: float) -> None:
    assert share_step(scores, examples) == pytest.approx(step)


def test_an_accuracy_is_compared_by_its_examples() -> None:
    """One more of 300 right with one seed and two with the other: nothing to be told from two pairs."""

    def arm(name: str, *right: int) -> ArmResult:
        scores = [{"test.accuracy": 100 * one / 300, "test.bleu": one + 0.123} for one in right]
        return ArmResult(name, tuple(Cell(i, "done", name, one, (), {"test": 300}) for i, one in enumerate(scores)))

    arms = (arm("baseline", 297, 297), arm("b", 298, 298), arm("c", 298, 299))
    found = results_of("s", arms, ("test.accuracy",), ("test.accuracy",))
    assert [one.words() for one in found.comparisons] == ["open: identical differences", "within the noise"]
    floor = 50 / 300 * 12.706205 / math.sqrt(2)
    first = found.comparisons[0]
    assert first.high == pytest.approx(100 / 300 + floor)


def test_examples_are_those_of_the_evaluation(tmp_path: Path) -> None:
    assert examples_of(RunFolder(tmp_path)) == {}
    (tmp_path / "evaluation.json").write_text('{"test": {"examples": 300, "accuracy": 1.0}, "valid": {}, "x": 1}')
    assert examples_of(RunFolder(tmp_path)) == {"test": 300}
    (tmp_path / "evaluation.json").write_text("[1]")
    assert examples_of(RunFolder(tmp_path)) == {}


def test_divergence_is_a_result() -> None:
    all_gone, some, none_there = judged(
        [comparison(diverged=3), comparison(-1.0, -1.1, -0.9, diverged=2), comparison(-1.0, diverged=1)], ()
    )
    assert all_gone.words() == "diverged in 3 of 3"
    assert some.words() == "better, diverged in 2 of 5"
    assert none_there.words() == "diverged in 1 of 2"


def test_more_comparisons_ask_for_more() -> None:
    clear, rest = comparison(-1.0, -1.3, -0.7), [comparison(0.1, -0.2, 0.15) for _ in range(20)]
    assert judged([clear], ())[0].words() == "better"
    assert judged([clear, *rest], ())[0].words() == "within the noise"


def test_claims() -> None:
    (smaller,), (larger,), (equal,) = (
        judged([comparison(*one)], ()) for one in ((-1.0, -1.1, -0.9), (1.0, 1.1, 0.9), (0.1, -0.1, 0.05))
    )
    assert claim_verdict(smaller, rising=False) == "held"
    assert claim_verdict(larger, rising=False) == "not held"
    assert claim_verdict(equal, rising=False) == "open"


def test_a_claim_of_a_variant_that_always_diverges() -> None:
    gone = compared("a", "b", "valid.loss", {0: None, 1: None}, {0: 1.0, 1: 1.0})
    assert claim_verdict(gone, rising=False) == "not held"  # that its loss is the smaller one
    assert claim_verdict(gone, rising=True) == "held"  # that its score is the smaller one
    other = compared("b", "a", "valid.loss", {0: 1.0, 1: 1.0}, {0: None, 1: None})
    assert claim_verdict(other, rising=False) == "held"
    both = compared("a", "b", "valid.loss", {0: None}, {0: None})
    assert claim_verdict(both, rising=False) == "open"


def test_the_spread_of_one_value_has_no_deviation() -> None:
    found = spread([3.0])
    assert found is not None
    assert (found.n, found.mean, found.sd, found.low) == (1, 3.0, None, None)
    assert spread([]) is None
