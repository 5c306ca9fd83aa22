"""Designs of two levels (Box, Hunter & Hunter 2005, chapters 5 to 7): the options present in each run of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import combinations, compress
from operator import xor

import numpy as np

from tfkit.core.errors import UsageError
from tfkit.studies.statistics import Array

Cells = Sequence[tuple[str, ...]]  # the options present in each run
Groups = Sequence[Sequence[str]]  # the options of a group exclude one another
MOST_RUNS, SEARCHES, FEW = 512, 100, 8  # FEW: columns up to which the best fraction is searched for
SAME, PARTLY, NAMED = 0.99, 0.2, 3  # correlations of aliases; number of aliases named


def screening(groups: Groups, runs: int, most: int = 0) -> list[tuple[str, ...]]:
    """Return the options of each run, of resolution IV or higher; groups of several as near to it as possible."""
    options, columns = sum(map(len, groups)), sum(len(group).bit_length() for group in groups)
    numbers = range(options + 1, min(most or 2**columns, MOST_RUNS) + 1)
    if runs in numbers and (cells := _assigned(groups, runs)):
        return cells
    near = [numbers, [n for n in numbers[::-1] if n < runs], [n for n in numbers if n > runs]]
    found = sorted({next((n for n in some if _assigned(groups, n)), 0) for some in near} - {0})
    use = " or ".join(map(str, found)) or "fewer options"
    raise UsageError(f"no design has {runs} runs of {options} options; use {use}")


def confirming(groups: Groups, runs: int) -> list[tuple[str, ...]]:
    """Return the options of each run, of the highest resolution possible; the same cell may occur several times."""
    return screening(groups, runs, MOST_RUNS)


def _assigned(groups: Groups, runs: int) -> list[tuple[str, ...]]:
    """Code the options of a group in binary, in the columns of least variance, then least aliasing (Xu 2003)."""
    widths, best = [len(group).bit_length() for group in groups], (math.inf, math.inf, np.zeros((0, 0)))
    table = _table(sum(widths), runs)
    for seed in range(SEARCHES if table.shape[1] >= sum(widths) else 0):
        bits = table[:, np.random.default_rng(seed).permutation(table.shape[1])[: sum(widths)]]
        parts = zip(groups, np.split(bits, np.cumsum(widths)[:-1], axis=1), strict=True)
        # a code beyond the options means none of them, as 0 does
        levels = [np.equal.outer(part @ 2 ** np.arange(part.shape[1]), np.arange(len(g)) + 1) for g, part in parts]
        x = np.column_stack([np.ones(runs), *levels])
        if np.linalg.matrix_rank(x) == x.shape[1]:
            variance = round(float(np.linalg.inv(x.T @ x).diagonal()[1:].max()), 9)
            aliasing = float((np.square((2 * bits - 1) @ (2 * bits - 1).T) ** 2).sum())
            best = min(best, (variance, aliasing, x[:, 1:]), key=lambda one: one[:2])
    return [tuple(compress((option for group in groups for option in group), row)) for row in best[2]]


def _table(columns: int, runs: int) -> Array:
    """Return columns of bits, of resolution IV or higher: at least `columns`, or fewer if this is impossible."""
    if columns <= FEW and 2 * columns <= runs == 1 << (basic := runs.bit_length() - 1):
        masks = sorted(range(1, runs), key=int.bit_count)  # a column is the parity of some digits of the run's number
        masks = [*masks[:basic][:columns], *max(combinations(masks[basic:], max(0, columns - basic)), key=_words)]
        return np.array([[float((run & mask).bit_count() % 2) for mask in masks] for run in range(runs)])
    half = hadamard(0 if runs % 2 else runs // 2)
    return np.vstack([half > 0, half < 0]).astype(float)  # a fold-over


def _words(added: Sequence[int]) -> list[int]:  # the greatest list is that of minimum aberration (Fries & Hunter 1980)
    sets = [some for size in range(1, len(added) + 1) for some in combinations(added, size)]
    return sorted(len(some) + reduce(xor, some).bit_count() for some in sets)


def hadamard(order: int) -> Array:
    """Build a Hadamard matrix from residues of a prime (Paley 1933) or as a product; without columns if impossible."""
    if order <= 2:
        return np.array([[1.0, 1.0], [1.0, -1.0]])[:order, :order]
    for prime, rest in ((order - 1, 3), (order // 2 - 1, 1)):
        if order % 4 == 0 and prime % 4 == rest and all(prime % divisor for divisor in range(2, math.isqrt(prime) + 1)):
            signs = np.where(np.isin(np.arange(prime), np.arange(1, prime) ** 2 % prime), 1.0, -1.0)
            core = np.pad(signs[np.subtract.outer(np.arange(prime), np.arange(prime))], (1, 0), constant_values=1.0)
            if rest == 1:
                np.fill_diagonal(core, 0.0)
                core = np.kron(core, [[1, 1], [1, -1]]) + np.kron(np.eye(prime + 1), [[1, -1], [-1, -1]])
            return np.array(core, float)
    factors = (n for n in range(2, math.isqrt(order) + 1) if order % n == 0)
    products = (np.array(np.kron(hadamard(n), hadamard(order // n)), float) for n in factors)
    return next((product for product in products if product.size), np.zeros((order, 0)))


def aliases(cells: Cells, groups: Groups) -> dict[str, list[str]]:
    """Name the interactions of two or three options that an option's effect is aliased with, and how closely."""
    options, named = [option for group in groups for option in group], {}
    sets = [s for n in (1, 2, 3) for s in combinations(options, n) if all(len({*s} & {*g}) < 2 for g in groups)]
    present = {option: np.array([option in cell for cell in cells], float) for option in options}
    products = np.array([np.prod([present[option] - present[option].mean() for option in s], 0) for s in sets])
    products -= products.mean(1, keepdims=True)
    estimates = np.linalg.pinv(products[: len(options)]).T
    sizes = np.outer(np.linalg.norm(estimates, axis=1), np.linalg.norm(products, axis=1))
    for option, shares in zip(options, np.abs(estimates @ products.T) / np.maximum(sizes, 1e-9), strict=True):
        mixed = [(len(s), -share, " × ".join(s)) for s, share in zip(sets, shares, strict=True) if share > PARTLY]
        strongest = sorted(one for one in mixed if one[0] > 1)[:NAMED]
        named[option] = [name + f" ({-share:.2f})" * bool(-share < SAME) for _, share, name in strongest]
    return named
