import importlib
import math
import sys

import pytest
from pydantic import ValidationError

from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.training.metric import LossMetric, TextMetric

OUTPUTS = ["the cat sat on the mat .", "Hello there , general Kenobi !", "it rains"]
REFERENCES = ["the cat sat on a mat .", "hello there , General Kenobi !", "it is raining"]


def make(name, **options):
    return REGISTRY.get("metric", name).Config.model_validate(options).build()


@pytest.mark.parametrize("name", REGISTRY.names("metric"))
def test_contract(name):
    kind = REGISTRY.get("metric", name)
    assert issubclass(kind, LossMetric if kind.needs == "loss" else TextMetric)
    assert all(field.description for field in kind.Config.model_fields.values())
    metric = make(name)
    if metric.needs == "loss":
        assert math.isfinite(metric.from_loss(1.5))
        with pytest.raises(UsageError, match="is computed from the loss, not from texts"):
            metric.score(OUTPUTS, REFERENCES)
    else:
        assert metric.score(REFERENCES, REFERENCES) == pytest.approx(100)
        assert 0 <= metric.score(OUTPUTS, REFERENCES) < 100
        with pytest.raises(UsageError, match="is computed from texts, not from the loss"):
            metric.from_loss(1.0)
        with pytest.raises(UsageError, match="each output with its reference: got 1 and 2"):
            metric.score(["a"], ["a", "b"])
        with pytest.raises(UsageError, match="there are no outputs"):
            metric.score([], [])


def test_bleu_is_sacrebleus():
    sacrebleu = importlib.import_module("sacrebleu")
    assert make("bleu").score(OUTPUTS, REFERENCES) == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [REFERENCES]).score)
    assert make("bleu", lowercase=True).score(OUTPUTS, REFERENCES) > make("bleu").score(OUTPUTS, REFERENCES)
    glued, apart = ["a b, c d e"], ["a b , c d e"]
    assert make("bleu").score(glued, apart) == pytest.approx(100)
    assert make("bleu", tokenize=None).score(glued, apart) < 100


def test_chrf_is_sacrebleus():
    sacrebleu = importlib.import_module("sacrebleu")
    assert make("chrf").score(OUTPUTS, REFERENCES) == pytest.approx(sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES]).score)
    plus = sacrebleu.corpus_chrf(OUTPUTS, [REFERENCES], word_order=2).score
    assert make("chrf", word_order=2).score(OUTPUTS, REFERENCES) == pytest.approx(plus)


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_without_sacrebleu_the_extra_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UsageError, match=rf'{name} needs the package sacrebleu: pip install "tfkit\[train\]"'):
        make(name).score(OUTPUTS, REFERENCES)


def test_exact_match_and_perplexity():
    assert make("exact_match").score(["a", "b", "c ", "d"], ["a", "b", "c", "D"]) == 50
    assert make("perplexity").from_loss(math.log(7)) == pytest.approx(7)
    assert make("perplexity").from_loss(1e6) == math.inf
    assert not make("perplexity").higher_is_better and make("bleu").higher_is_better


@pytest.mark.parametrize(
    ("name", "options"), [("bleu", {"tokenize": "13b"}), ("bleu", {"lower": True}), ("chrf", {"char_order": 0})]
)
def test_wrong_options(name, options):
    with pytest.raises(ValidationError):
        make(name, **options)
