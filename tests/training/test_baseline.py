import math
from collections import defaultdict

import numpy as np
import pytest

from tfkit.training.objective.baseline import KneserNey, _discounts, evenly, ngram_baseline, unigram_baseline

from ..sampling import looped

VOCAB = 6


def rows(seed, number, length, vocab=VOCAB):
    """Rows of a Markov chain, so that contexts matter."""
    random = np.random.default_rng(seed)
    table = np.random.default_rng(0).dirichlet(np.full(vocab, 0.4), size=vocab)
    made = []
    for _ in range(number):
        row = [int(random.integers(vocab))]
        while len(row) < length:
            row.append(int(random.choice(vocab, p=table[row[-1]])))
        made.append(np.asarray(row))
    return made


class Naive:
    """The textbook's formula with dicts, n-gram by n-gram."""

    def __init__(self, train, vocab, order, discounts):
        self.vocab, self.order = vocab, order
        raw = [defaultdict(float) for _ in range(order + 1)]
        for row in train:
            whole = [vocab] * (order - 1) + row.tolist()
            for end in range(order, len(whole)):
                for n in range(1, order + 1):
                    raw[n][tuple(whole[end - n + 1 : end + 1])] += 1
        self.counts = raw
        for n in range(1, order):
            self.counts[n] = defaultdict(float)
            for gram in raw[n + 1]:
                self.counts[n][gram[1:]] += 1
        self.discounts = [None, *(discounts(np.asarray(list(c.values()))) for c in self.counts[1:])]

    def probability(self, context, token):
        chance = 1 / self.vocab
        for n in range(1, self.order + 1):
            before = tuple(context[len(context) - n + 1 :])
            following = {g[-1]: c for g, c in self.counts[n].items() if g[:-1] == before}
            total = sum(following.values())
            if total:
                off = {t: self.discounts[n][min(int(c), 3)] for t, c in following.items()}
                own = following.get(token, 0) - off.get(token, 0)
                chance = own / total + sum(off.values()) / total * chance
        return chance


@looped("order", [1, 2, 3, 5])
def test_equals_the_textbook(order):
    train, valid = rows(1, 12, 40), rows(2, 3, 15)
    naive = Naive(train, VOCAB, order, _discounts)
    expected = []
    for row in valid:
        whole = [VOCAB] * (order - 1) + row.tolist()
        probabilities = (naive.probability(whole[:end], whole[end]) for end in range(order, len(whole)))
        expected.extend(-math.log(chance) for chance in probabilities)
    assert KneserNey(VOCAB, order).fit(train).nats(valid) == pytest.approx(expected)


@pytest.mark.full
@looped("order", [1, 2, 4, 5])
@looped("context", [[0], [3, 3, 3, 3, 3], [1, 2], [5, 4, 3, 2, 1, 0], [6, 6]])
def test_probabilities_sum_to_one(order, context):
    vocab = 7  # token 6 is never seen
    model = KneserNey(vocab, order).fit(rows(3, 4, 200))
    nats = np.asarray([model.nats([np.asarray([*context, token])])[-1] for token in range(vocab)])
    assert np.exp(-nats).sum() == pytest.approx(1, abs=1e-9)
    assert (nats > 0).all() and np.isfinite(nats).all()


def test_limits():
    many = [np.arange(10)] * 100
    assert evenly(many, 1000) is many
    assert sum(map(len, evenly(many, 300))) <= 300 and len(evenly(many, 300)) >= 25
    assert len(evenly([np.arange(50)], 20)[0]) == 20


def test_most_frequent_token():
    found = unigram_baseline(np.asarray([1, 1, 1, 2]), np.asarray([1, 2, 3]), 4)
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.loss == pytest.approx(-(math.log(4 / 8) + math.log(2 / 8) + math.log(1 / 8)) / 3)


def test_nothing_to_measure():
    assert ngram_baseline(rows(1, 2, 9), [np.asarray([1])], VOCAB) is None
    assert unigram_baseline(np.asarray([1]), np.asarray([], dtype=int), 4) is None
