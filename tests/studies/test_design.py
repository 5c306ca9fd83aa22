"""Designs by their properties, effects by least squares written out, and what screen and confirmation promise."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tfkit.core.errors import UsageError
from tfkit.studies.design import Cells, Groups, aliases, confirming, hadamard, screening
from tfkit.studies.effects import Values, confirmed, effects, interactions, largest
from tfkit.studies.statistics import LEVEL, Comparison, Scale, holm, judged

Array = NDArray[np.float64]
TWENTY = tuple((f"option{i}",) for i in range(20))
GROUPED = (  # recipes/studies/twenty-options.yaml
    ("gelu", "relu_squared", "swiglu"),
    ("sandwich", "post_norm", "parallel"),
    ("sinusoidal", "rotary", "alibi", "t5_bias", "no_position"),
    *((f"switch{i}",) for i in range(9)),
)
SIX = tuple((letter,) for letter in "ABCDEF")
SCREEN, NOISE, CONFIRM = 56, 12, 32  # 100 runs
LOSS = "test.loss"
# first rows of the cyclic designs that Plackett & Burman (1946) printed
CYCLIC = {12: "++-+++---+-", 20: "++--++++-+-+----++-", 24: "+++++-+-++--++--+-+----"}


def signs(cells: Cells, groups: Groups) -> Array:
    """The columns of a design: 1 where an option is present, -1 where it is absent."""
    return np.array([[1.0 if option in cell else -1.0 for group in groups for option in group] for cell in cells])


def fourfold(columns: Array) -> Counter[int]:
    """How often four columns correlate so much; equivalent designs of strength 3 have equal counts."""
    return Counter(abs(int(columns[:, some].prod(1).sum())) for some in combinations(range(columns.shape[1]), 4))


@pytest.mark.full
def test_a_screen_is_a_fold_over_of_strength_three() -> None:
    for runs in (40, 48, 56, 64):
        columns = signs(screening(TWENTY, runs), TWENTY)
        assert {tuple(row) for row in columns} == {tuple(-row) for row in columns}
        # each three options have all eight combinations equally often
        assert not any(columns[:, s].prod(1).sum() for n in (1, 2, 3) for s in combinations(range(20), n))
        assert (columns.T @ columns == runs * np.eye(20)).all()
    assert screening(TWENTY, 56) == screening(TWENTY, 56)


@pytest.mark.full
def test_hadamard_matrices() -> None:
    for order in (1, 2, *range(4, 129, 4)):
        matrix = hadamard(order)
        if order in (52, 92, 100, 116):  # these need residues of prime powers, or more
            assert matrix.shape == (order, 0)
            continue
        assert (matrix @ matrix.T == order * np.eye(order)).all() and (abs(matrix) == 1).all(), order
    assert all(hadamard(order).shape[1] == 0 for order in (3, 6, 13, 26, 50))


@pytest.mark.full
def test_designs_are_equivalent_to_the_printed_ones() -> None:
    for order, row in CYCLIC.items():
        first = [1.0 if sign == "+" else -1.0 for sign in row]
        printed = np.vstack([np.roll(first, shift) for shift in range(order - 1)] + [-np.ones(order - 1)])
        printed = np.column_stack([np.ones(order), printed])
        assert (printed.T @ printed == order * np.eye(order)).all()
        assert fourfold(np.vstack([printed, -printed])) == fourfold(np.vstack([hadamard(order), -hadamard(order)])), (
            order
        )


@pytest.mark.full
def test_designs_are_equivalent_to_those_of_pydoe() -> None:
    doe = pytest.importorskip("pyDOE3")
    for order in (12, 20, 24):
        other = np.column_stack([np.ones(order), doe.pbdesign(order - 1)])
        assert fourfold(np.vstack([other, -other])) == fourfold(np.vstack([hadamard(order), -hadamard(order)])), order
    six, words = signs(confirming(SIX, 32), SIX), doe.fracfact("a b c d e abcde")
    assert len(np.unique(words, axis=0)) == len(np.unique(six, axis=0)) == 32 and fourfold(six) == fourfold(words)


@pytest.mark.full
def test_a_confirmation_has_the_highest_resolution() -> None:
    resolutions = {(6, 32): 6, (7, 64): 7, (8, 64): 5, (7, 32): 4, (8, 32): 4, (6, 16): 4, (5, 16): 5, (8, 16): 4}
    for (options, runs), resolution in resolutions.items():
        groups = [(f"o{i}",) for i in range(options)]
        columns = signs(confirming(groups, runs), groups)
        words = [
            n for n in range(1, options + 1) for s in combinations(range(options), n) if columns[:, s].prod(1).sum()
        ]
        assert min(words) == resolution, (options, runs, words)
    for options in (1, 2, 3, 5):  # full, several times
        cells = Counter(confirming(SIX[:options], 32))
        assert len(cells) == 2**options and set(cells.values()) == {32 // 2**options}


@pytest.mark.full
def test_groups_never_meet_and_are_balanced() -> None:
    for runs in (48, 56, 64):
        cells = screening(GROUPED, runs)
        for group in GROUPED:
            counts = Counter(next((option for option in group if option in cell), "") for cell in cells)
            assert all(len({*group} & {*cell}) <= 1 for cell in cells)
            assert min(counts[option] for option in group) >= runs // 2 ** len(group).bit_length(), counts
            assert counts[""] >= max(counts[option] for option in group), counts
        columns = np.column_stack([np.ones(runs), signs(cells, GROUPED)])
        assert np.linalg.matrix_rank(columns) == 21


@pytest.mark.full
def test_runs_that_make_no_design() -> None:
    cases: list[tuple[Groups, int, list[int]]] = [
        (TWENTY, 30, [40]),
        (TWENTY, 52, [40, 48, 56]),
        (TWENTY, 41, [40, 48]),
        (SIX, 64 * 2, [16, 64]),  # there are 64 cells
        (SIX[:2], 8, [4]),
        (GROUPED, 20, [32]),
    ]
    for groups, runs, possible in cases:
        with pytest.raises(UsageError, match=r"^[^\n]*$") as raised:
            screening(groups, runs)
        words = str(raised.value).split()
        assert str(runs) in words and [int(word) for word in words if word.isdigit()][2:] == possible, raised.value
        assert all(screening(groups, number) for number in possible)


@pytest.mark.full
def test_aliases() -> None:
    quarter = [(letter,) for letter in "ABCD"]
    assert aliases(confirming(quarter, 8), quarter) == {
        "A": ["B × C × D"], "B": ["A × C × D"], "C": ["A × B × D"], "D": ["A × B × C"],
    }  # fmt: skip
    assert not any(aliases(confirming(SIX, 32), SIX).values())
    lost = [cell for cell in confirming(quarter, 16) if not {"A", "B"} <= {*cell}]
    found = aliases(lost, quarter)
    assert found["A"] == ["A × B (0.87)"] and found["C"] == ["A × B × C (0.58)"]
    third = [cell for cell in confirming(SIX[:3], 8) if ("C" in cell) == (len({"A", "B"} & {*cell}) % 2 == 0)]
    assert aliases(third, SIX[:3]) == {"A": ["B × C"], "B": ["A × C"], "C": ["A × B"]}


@pytest.mark.full
def test_effects_are_differences_of_means() -> None:
    rng, names = np.random.default_rng(3), "ABCDEF"
    cells = confirming(SIX, 32)
    values = [float(value) for value in rng.normal(size=32)]
    columns, y = signs(cells, SIX), np.array(values)
    found = effects(cells, values, names, pairs=True)
    for place, one in enumerate(found[:6]):
        has = columns[:, place] > 0
        assert one.mean == pytest.approx(y[has].mean() - y[~has].mean()) and one.n == 16
    for one, (a, b) in zip(found[6:], combinations(range(6), 2), strict=True):
        means = {(i, j): y[(columns[:, a] == i) & (columns[:, b] == j)].mean() for i in (1, -1) for j in (1, -1)}
        assert one.name == f"{names[a]} × {names[b]}"
        assert one.mean == pytest.approx(means[1, 1] - means[1, -1] - means[-1, 1] + means[-1, -1])
    design = np.column_stack([np.ones(32), columns / 2])
    rest = y - design @ np.linalg.lstsq(design, y)[0]
    alone = effects(cells, values, names)
    assert {one.freedom for one in alone} == {25}
    assert alone[0].error == pytest.approx(np.sqrt(rest @ rest / 25 / 8))
    pooled = effects(cells, values, names, noise=[0.0, 1.0, 2.0, 3.0])[0]  # varies more than the others
    assert pooled.freedom == 28 and pooled.error == pytest.approx(np.sqrt((rest @ rest + 5) / 28 / 8))
    assert effects(cells, values, names, noise=[0.0, 0.001, 0.002])[0].freedom == 25  # varies less
    assert [one.mean for one in interactions(cells, values, names)] == [one.mean for one in found[6:]]


@pytest.mark.full
def test_what_the_runs_do_not_determine_is_none() -> None:
    cells, truth = confirming(SIX, 32), {"A": 1.0, "B": -2.0, "D": 0.5}

    def loss(cell: tuple[str, ...]) -> float:
        return 3.0 + sum(truth.get(option, 0.0) for option in cell) + 0.25 * ({"C", "D"} <= {*cell})

    lost: dict[str, Any] = {
        "A always": lambda cell: "A" in cell,
        "A and B": lambda cell: {"A", "B"} <= {*cell},
        "A or B": lambda cell: len({"A", "B"} & {*cell}) == 1,  # A and B are the same
        "all": lambda cell: True,
        "none": lambda cell: False,
    }
    unknown = {"A always": "A", "A and B": "", "A or B": "AB", "all": "ABCDEF", "none": ""}
    for name, is_lost in lost.items():
        values = [None if is_lost(cell) else loss(cell) for cell in cells]
        found = {one.name: one.mean for one in effects(cells, values, "ABCDEF", pairs=True)}
        assert "".join(option for option in "ABCDEF" if found[option] is None) == unknown[name], name
        for option in "ABEF":
            if found[option] is not None:
                assert found[option] == pytest.approx(truth.get(option, 0.0), abs=1e-9), (name, option)
        # where A and B are the same, C × D and E × F are as well
        assert found["C × D"] == (None if name in ("all", "A or B") else pytest.approx(0.25)), name
        assert (found["A × B"] is None) == (name != "none"), name


@pytest.mark.full
def test_the_largest_are_of_different_groups() -> None:
    cells = screening(GROUPED, 64)
    shifts = {"rotary": -3.0, "alibi": -2.5, "gelu": 1.0, "switch4": -2.0, "no_position": 4.0}
    rng = np.random.default_rng(0)
    values: Values = [sum(shifts.get(o, 0.0) for o in cell) + float(rng.normal(0, 0.1)) for cell in cells]
    found = effects(cells, values, [option for group in GROUPED for option in group])
    assert largest(found, GROUPED, 3) == ["no_position", "switch4", "gelu"]
    values = [None if "no_position" in cell else value for cell, value in zip(cells, values, strict=True)]
    found = effects(cells, values, [option for group in GROUPED for option in group])
    assert set(largest(found, GROUPED, 3)) == {"rotary", "switch4", "gelu"}


def confirmation(
    shifts: dict[str, float], lost: Any = lambda cell, value: False, rising: bool = False, seed: int = 0
) -> list[Comparison]:
    rng, cells = np.random.default_rng(seed), confirming(SIX, 32)
    values = [3.0 + sum(shifts.get(o, 0.0) for o in cell) + float(rng.normal(0, 0.1)) for cell in cells]
    scores = [None if lost(cell, value) else value for cell, value in zip(cells, values, strict=True)]
    noise = [3.0 + float(value) for value in rng.normal(0, 0.1, 12)]
    return judged(confirmed(LOSS, cells, scores, list("ABCDEF"), noise, Scale(rising=rising)), [LOSS] * rising)


@pytest.mark.full
def test_verdicts_of_confirmed_options() -> None:
    shifts = {"A": -0.5, "B": 0.5}
    for rising in (False, True):
        found = {one.arm: one for one in confirmation(shifts, rising=rising)}
        assert [found[option].verdict for option in "AB"] == (["worse", "better"] if rising else ["better", "worse"])
        assert all(found[option].verdict == "cannot tell" for option in "CDEF")
        assert found["A"].n == found["A"].runs == 16 and found["A"].freedom == 36 and found["A"].against == "without"
        assert (found["A"].low or 0) < -0.5 < (found["A"].high or 0) or (found["A"].high or 0) < 0
    # an option that always diverges; one that diverges in half of its runs; two that cannot be combined
    found = {one.arm: one for one in confirmation(shifts, lambda cell, _: "C" in cell)}
    assert found["C"].verdict == "diverged" and found["A"].verdict == "better" and found["D"].verdict == "cannot tell"
    found = {
        one.arm: one for one in confirmation(shifts, lambda cell, _: "C" in cell and ("D" in cell) == ("E" in cell))
    }
    assert found["C"].words() == "worse, diverged in 8 of 16" and found["A"].verdict == "better"
    found = {one.arm: one for one in confirmation(shifts, lambda cell, _: {"A", "B"} <= {*cell})}
    assert found["A"].words() == "better, diverged in 8 of 16" and found["B"].words() == "worse, diverged in 8 of 16"
    assert found["C"].verdict == "cannot tell" and found["C"].diverged == found["C"].diverged_against == 4
    # identical scores have no spread, all lost no verdict
    cells = confirming(SIX, 32)
    same = judged(confirmed(LOSS, cells, [2.0] * 32, list("ABCDEF"), [2.0, 2.0], Scale()), [])
    assert {one.verdict for one in same} == {"open"} and "identical differences" in same[0].words()
    gone = judged(confirmed(LOSS, cells, [None] * 32, list("ABCDEF"), [2.0, 2.1], Scale()), [])
    assert {one.verdict for one in gone} == {"open"} and "too few runs ended" in gone[0].words()


@pytest.mark.full
def test_survivors_are_not_better() -> None:
    """An option without effect, whose worst runs diverge, is not called better for those that remain."""
    false = 0
    for seed in range(80):
        cells = confirming(SIX, 32)
        values = [float(value) for value in 3.0 + np.random.default_rng(seed).normal(0, 0.1, 32)]
        worst = sorted((value for cell, value in zip(cells, values, strict=True) if "A" in cell), reverse=True)[:4]
        scores = [None if value in worst else value for value in values]
        noise = [float(value) for value in 3.0 + np.random.default_rng(seed + 1000).normal(0, 0.1, 12)]
        found = confirmed(LOSS, cells, scores, list("ABCDEF"), noise, Scale())
        false += any(p is not None and p < LEVEL for p in holm([one.p for one in found]))
    assert false <= 8  # 5 %, and two standard errors


class Study:
    """A simulated study: `real` options that make a difference of `size` standard deviations of a run.

    Interactions are half as large. The first two real options cannot meet if `meeting`: runs with both are "lost", or
    "repaired" by dropping one of the two in turn.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        groups: Groups = TWENTY,
        size: float = 1.0,
        real: int = 6,
        two: int = 0,
        three: int = 0,
        meeting: str = "",
    ) -> None:
        self.rng, self.groups, self.meeting = rng, groups, meeting
        self.options = [option for group in groups for option in group]
        group_of = {option: place for place, group in enumerate(groups) for option in group}
        first = {group_of[option]: str(option) for option in rng.permutation(self.options)}
        self.real = list(first.values())[:real]
        chosen = [(option,) for option in self.real]
        while len(chosen) < real + two + three:
            some = tuple(map(str, rng.choice(self.options, 2 if len(chosen) < real + two else 3, replace=False)))
            chosen += [some] if len({group_of[option] for option in some}) == len(some) else []
        self.terms = [
            ([self.options.index(option) for option in some], size / min(len(some), 2) * rng.choice([-1, 1]))
            for some in chosen
        ]

    def losses(self, cells: Cells) -> Array:
        """True losses of cells: a term adds half of itself, times the signs of its options."""
        columns = np.array([[1.0 if option in cell else -1.0 for option in self.options] for cell in cells])
        return np.full(len(cells), 10.0) + sum(size / 2 * columns[:, some].prod(1) for some, size in self.terms)

    def train(self, cells: Cells) -> tuple[Cells, Values]:
        """Train one run of each cell; return the cells as they were trained, and their losses."""
        done, dropped = [], 0
        for cell in cells:
            if self.meeting == "repaired" and {*self.real[:2]} <= {*cell}:
                cell, dropped = tuple(option for option in cell if option != self.real[dropped % 2]), dropped + 1
            done.append(cell)
        losses = self.losses(done) + self.rng.normal(size=len(done))
        gone = [self.meeting == "lost" and {*self.real[:2]} <= {*cell} for cell in done]
        return done, [None if lost else float(loss) for lost, loss in zip(gone, losses, strict=True)]

    def run(self) -> tuple[float, bool]:
        """Return the share of real options that were found, and True if a finding is false."""
        chosen = largest(effects(*self.train(screen_of(self.groups, SCREEN)), self.options), self.groups, 6)
        plan = [tuple(chosen["ABCDEF".index(letter)] for letter in cell) for cell in confirm_of(SIX, CONFIRM)]
        noise = [value for value in self.train([()] * NOISE)[1] if value is not None]
        tested = confirmed(LOSS, *self.train(plan), chosen, noise, Scale())
        adjusted = holm([one.p for one in tested])
        found = [one for one, p in zip(tested, adjusted, strict=True) if p is not None and p < LEVEL]
        return sum(one.arm in self.real for one in found) / max(len(self.real), 1), any(
            self.is_false(one, chosen) for one in found
        )

    def is_false(self, one: Comparison, chosen: list[str]) -> bool:
        """True if the option makes no such difference, averaged over the others chosen, without the rest."""
        if one.arm in self.real and not one.by_rank:
            return False
        cells = [tuple(o for o, on in zip(chosen, bits, strict=True) if on) for bits in product((0, 1), repeat=6)]
        has, losses = np.array([one.arm in cell for cell in cells]), self.losses(cells)
        difference = losses[has].mean() - losses[~has].mean()
        return one.by_rank or abs(difference) < 1e-9 or (difference > 0) != ((one.mean or 0.0) > 0)


screen_of, confirm_of = cache(screening), cache(confirming)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({}, (50, 95)),
        ({"three": 6}, (45, 85)),
        ({"meeting": "lost"}, (25, 80)),
        ({"meeting": "lost", "two": 6}, (25, 80)),
        ({"meeting": "repaired"}, (25, 80)),
        ({"meeting": "repaired", "two": 6}, (25, 80)),
        ({"groups": GROUPED, "two": 6}, (40, 75)),
        ({"real": 0}, (0, 0)),
    ],
    ids=str,
)
def test_screen_and_confirmation_find_what_they_promise(options: dict[str, Any], least: tuple[int, int]) -> None:
    """100 runs in all: 56 screen twenty options, 12 measure the noise, 32 confirm the six largest."""
    for size, bar in zip((1.0, 2.0), least, strict=True):
        rng, studies = np.random.default_rng(0), 250
        found, false = 100 * np.mean([Study(rng, size=size, **options).run() for _ in range(studies)], 0)
        print(f"{size:g} sd: {found:.1f} % found, false in {false:.1f} % of studies")
        assert found >= bar
        assert false <= 5 + 200 * np.sqrt(0.05 * 0.95 / studies)  # two standard errors of the simulation


@pytest.mark.full
def test_more_options_than_any_design_has() -> None:
    with pytest.raises(UsageError, match="no design has 64 runs of 600 options; use fewer options"):
        screening([[f"{number}"] for number in range(600)], 64)
