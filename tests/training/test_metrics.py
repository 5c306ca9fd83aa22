import importlib
import math
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.training.metric.labels import entities

from ..sampling import looped

OUTPUTS = ["the cat sat on the mat .", "Hello there , general Kenobi !", "it rains"]
REFERENCES = ["the cat sat on a mat .", "hello there , General Kenobi !", "it is raining"]


def make(name, **options):
    return REGISTRY.get("metric", name).Config.model_validate(options).build()


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


@looped("name", ["bleu", "chrf"])
def test_without_sacrebleu_the_extra_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UsageError, match=rf'{name} needs the package sacrebleu: pip install "sacrebleu'):
        make(name).score(OUTPUTS, REFERENCES)


def test_exact_match_and_perplexity():
    assert make("exact_match").score(["a", "b", "c ", "d"], ["a", "b", "c", "D"]) == 50
    assert make("perplexity").from_loss(math.log(7)) == pytest.approx(7)
    assert make("perplexity").from_loss(1e6) == math.inf
    assert not make("perplexity").higher_is_better and make("bleu").higher_is_better
    assert make("bits_per_character").from_loss(math.log(2) * 1.5) == pytest.approx(1.5)
    assert not make("bits_per_character").higher_is_better and make("bits_per_character").per_character


def test_accuracy_and_macro_f1():
    assert make("accuracy").score(["a b", "c"], ["a x", "c"]) == pytest.approx(100 * 2 / 3)
    assert make("accuracy").score(["a"], ["a b"]) == 50
    # of class a: 2 right of 2 said and 3 wanted; b: 1 of 3 and 1; c: 0 of 0 and 1
    outputs, references = ["a", "a", "b", "b", "b"], ["a", "a", "a", "b", "c"]
    assert make("macro_f1").score(outputs, references) == pytest.approx(100 * (4 / 5 + 2 / 4 + 0) / 3)
    assert make("macro_f1").score([" ".join(outputs)], [" ".join(references)]) == pytest.approx(100 * (0.8 + 0.5) / 3)


@looped(
    ("tags", "found"),
    [
        ("B-a I-a O B-b", {("a", 0, 1), ("b", 3, 3)}),
        ("B-a B-a I-b I-b", {("a", 0, 0), ("a", 1, 1), ("b", 2, 3)}),
        ("I-a I-a O I-a", {("a", 0, 1), ("a", 3, 3)}),
        ("S-a B-b I-b E-b O", {("a", 0, 0), ("b", 1, 3)}),
        ("O O", set()),
    ],
)
def test_entities_as_conlleval_reads_them(tags, found):
    assert entities(tags.split()) == found


def test_entity_f1():
    # 2 of 3 said are right, 4 are wanted
    outputs, references = ["B-a I-a O B-b", "B-a"], ["B-a I-a B-b B-b", "B-a"]
    assert make("entity_f1").score(outputs, references) == pytest.approx(100 * 2 * 3 / (3 + 4))
    assert make("entity_f1").score(["O"], ["O"]) == 0
    with pytest.raises(UsageError, match="got 'NOUN'; use accuracy or macro_f1"):
        make("entity_f1").score(["NOUN"], ["NOUN"])


def test_correlations():
    outputs, references = ["1", "2", "4", "4"], ["2", "3", "5", "1e1"]
    assert make("pearson").score(outputs, references) == pytest.approx(
        100 * np.corrcoef([1, 2, 4, 4], [2, 3, 5, 10])[0, 1]
    )
    ranked = np.corrcoef([1, 2, 3.5, 3.5], [1, 2, 3, 4])[0, 1]
    assert make("spearman").score(outputs, references) == pytest.approx(100 * ranked)
    assert make("pearson").score(["1", "1"], ["1", "2"]) == 0
    with pytest.raises(UsageError, match="spearman compares numbers, got 'one'"):
        make("spearman").score(["one"], ["1"])


def test_rouge_of_the_lead():
    metric = make("rouge", of=1, lead=True, by_length=[3])
    assert metric.config.scores() == ("rouge_1", "rouge_1.1-3", "rouge_1.4+", "rouge_1.lead")
    assert metric.groups([{"source": "a b"}], ["source"]) == {"rouge_1.1-3": [0]}
    found = metric.of_sources(["The cat sat. It slept.", "No end"], ["the cat sat", "at all"])
    assert found == {"rouge_1.lead": pytest.approx(50)}
    assert make("rouge").config.scores() == ("rouge",) and not make("rouge").of_sources(["a"], ["a"])


def test_rouge():
    outputs, references = ["The cat sat.", "a"], ["the cat, on a mat sat", "b"]
    common = {1: (3, 3 + 6), 2: (1, 2 + 5), "2": (1, 2 + 5), "L": (3, 3 + 6)}
    for of, (shared, size) in common.items():
        assert make("rouge", of=of).score(outputs, references) == pytest.approx(100 * (2 * shared / size) / 2)
    assert make("rouge").score(["sat cat the"], ["the cat sat"]) == pytest.approx(100 / 3)
    # the published rule replaces all but a-z and digits by spaces
    for text, score in (("Сегодня погода", 0), ("日本語", 0), ("Größe über", 100), ("?!", 0)):
        with pytest.warns(TfkitWarning, match="other letters, which ROUGE drops; use chrf or bleu"):
            assert make("rouge").score([text], [text]) == score


def test_wrong_options():
    for name, options in (("bleu", {"tokenize": "13b"}), ("bleu", {"lower": True}), ("chrf", {"char_order": 0})):
        with pytest.raises(ValidationError):
            make(name, **options)


def test_a_reference_that_cannot_be_compared_is_told_before():
    make("pearson").check_reference("1e3")
    with pytest.raises(UsageError, match="spearman compares numbers, got 'many'"):
        make("spearman").check_reference("many")
    make("entity_f1").check_reference("B-x I-x O")
    with pytest.raises(UsageError, match=r"entity_f1 requires tags such as .*, got 'X'"):
        make("entity_f1").check_reference("O X")
    make("bleu").check_reference("anything")
