"""Mixtures hold each corpus's share at any length, in its own order, and say where one of them ends."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tfkit.core.errors import DataError, RecipeError
from tfkit.data.corpus import Corpus, Mixture

WEIGHTS = (5.0, 2.0, 0.5)


@pytest.fixture(autouse=True)
def texts(tmp_path: Path) -> Path:
    for name, lines in (("a", 400), ("b", 300), ("c", 5)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(1, lines + 1)))
    return tmp_path


def mixed(folder: Path, names: str = "abc", weights: tuple[float, ...] = WEIGHTS, **options: Any) -> Corpus:
    of = [
        {"corpus": {"type": "text", "files": str(folder / f"{name}.txt")}, "weight": weight}
        for name, weight in zip(names, weights, strict=False)
    ]
    corpus: Corpus = Mixture.Config.model_validate({"of": of, **options}).build()
    return corpus


def lines(corpus: Corpus) -> list[str]:
    return [example["text"] for example in corpus.examples()]


def test_each_beginning_holds_the_shares(texts: Path) -> None:
    found, total = lines(mixed(texts, size=600, repeat=True)), sum(WEIGHTS)
    assert len(found) == 600
    for length in range(1, 601):
        counts = Counter(line[0] for line in found[:length])
        assert all(abs(counts[name] - length * weight / total) < 2 for name, weight in zip("abc", WEIGHTS, strict=True))
    for name, there in (("a", 400), ("b", 300), ("c", 5)):  # each in its own order, from the beginning again
        own = [int(line.split()[1]) for line in found if line[0] == name]
        assert own == [number % there + 1 for number in range(len(own))]


def test_the_order_is_that_of_the_seed(texts: Path) -> None:
    first, again, other = (lines(mixed(texts, "ab", size=100, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert sum(line[0] == "a" for line in other) in (71, 72)
    assert first != sorted(first) and lines(mixed(texts, "ab", size=100, limit=30)) == first[:30]


def test_a_corpus_that_ends_is_the_end_or_named_or_repeated(texts: Path) -> None:
    whole = lines(mixed(texts))
    assert sum(line[0] == "c" for line in whole) == 5 and 70 < len(whole) < 95
    with pytest.raises(DataError, match=r"c\.txt: of\[2\] with 5 examples ends after \d+ of 600 examples of the mix"):
        lines(mixed(texts, size=600))
    with pytest.raises(ValidationError, match="with repeat: true, a mixture is endless; set size"):
        mixed(texts, repeat=True)
    (texts / "c.txt").write_text("")
    with pytest.raises(DataError, match=r"c\.txt: the file is empty"):
        lines(mixed(texts, size=600, repeat=True))


def test_an_example_is_located_in_its_own_corpus(texts: Path) -> None:
    corpus = mixed(texts, "ca", (1.0, 1.0), size=40, repeat=True)
    for number, line in enumerate(lines(corpus), 1):
        name, own = line.split()
        assert corpus.where(number) == f"{texts}/{name}.txt:{own}"
    (texts / "pairs.tsv").write_text("a\tb\nc\n")
    broken = {"corpus": {"type": "parallel_tsv", "file": str(texts / "pairs.tsv")}}
    with pytest.raises(DataError, match=r"pairs\.tsv:2: "):
        Mixture.Config.model_validate({"of": [broken, broken]}).build().examples()


def test_corpora_of_other_fields_are_refused(texts: Path) -> None:
    of = [{"corpus": {"type": "docstrings"}}, {"corpus": {"type": "copying"}}]
    with pytest.raises(ValidationError, match=r"of\[1\] has source, target, length; of\[0\] has text"):
        Mixture.Config.model_validate({"of": of})
    for wrong in ([], of[:1], [{**of[0], "weight": 0}, of[0]]):
        with pytest.raises(ValidationError):
            Mixture.Config.model_validate({"of": wrong})


def test_paths_within_a_mixture_are_those_of_the_recipe(texts: Path) -> None:
    pytest.importorskip("torch", reason="recipes are read with torch")
    from tfkit.recipe.load import load_recipe

    file = texts / "mine.yaml"
    of = "[{corpus: {type: text, files: a.txt}, weight: 2}, {corpus: {type: text, files: gone.txt}}]"
    file.write_text(f"extends: gpt-docstrings\ndata:\n  train: {{type: mixture, of: {of}}}\n")
    recipe = load_recipe(file)
    assert recipe.data is not None and recipe.data.train.files_read() == (f"{texts}/a.txt", f"{texts}/gone.txt")
    (fault,) = recipe.missing_files()
    assert str(fault).startswith(f"{file}:3:") and f"no such file: {texts}/gone.txt" in str(fault)
    file.write_text(file.read_text().replace("weight: 2", "wieght: 2"))
    with pytest.raises(RecipeError, match=r"data\.train\.of\[0\]\.wieght: unknown option.*'weight'"):
        load_recipe(file)


def test_a_wrong_weight_is_one_fault(texts: Path) -> None:
    pytest.importorskip("torch", reason="recipes are read with torch")
    from tfkit.recipe.load import load_recipe

    file = texts / "mine.yaml"
    one, other = "{corpus: {type: text, files: a.txt}, weight: 0}", "{corpus: {type: text, files: b.txt}}"
    for of, said in (
        (f"[{one}, {other}]", "data.train.of[0].weight: must be greater than 0, got 0"),
        (f"[{other}]", "data.train.of: needs at least two corpora"),
        ("[]", "data.train.of: needs at least two corpora"),
    ):
        file.write_text(f"extends: gpt-docstrings\ndata:\n  train: {{type: mixture, of: {of}}}\n")
        with pytest.raises(RecipeError) as error:
            load_recipe(file)
        (fault,) = error.value.faults
        assert said in str(fault)


# --- shares by temperature


def heated(folder: Path, temperature: float, **options: Any) -> Mixture:
    of = [{"corpus": {"type": "text", "files": str(folder / f"{name}.txt"), **options}} for name in "abc"]
    values = {"of": of, "temperature": temperature, "size": 900, "repeat": True}
    corpus: Mixture = Mixture.Config.model_validate(values).build()
    return corpus


@pytest.mark.parametrize("temperature", [0.5, 1, 1 / 0.7, 5, 100.0, 1e9])
def test_a_temperature_gives_each_corpus_its_share(temperature: float, texts: Path) -> None:
    sizes = {"a": 400, "b": 300, "c": 5}
    powers = {name: math.pow(size, 1 / temperature) for name, size in sizes.items()}
    found = lines(heated(texts, temperature))
    for length in (90, 300, 900):
        counts = Counter(line[0] for line in found[:length])
        for name, power in powers.items():
            assert abs(counts[name] - length * power / sum(powers.values())) < 2, (temperature, name)
    assert found == lines(heated(texts, temperature)), "the same order again"
    assert lines(heated(texts, temperature, limit=5)) == lines(heated(texts, 1e9, limit=5)), "the limit is the size"
    if temperature == 1:
        assert found == lines(mixed(texts, weights=(400, 300, 5), size=900, repeat=True))


def test_a_temperature_needs_sizes_and_no_weights(texts: Path) -> None:
    text = {"type": "text", "files": str(texts / "a.txt")}
    for other, options, message in (
        ({"corpus": text, "weight": 1}, {"temperature": 5}, "temperature: 5 and of[1].weight: 1 both set the shares"),
        ({"corpus": "docstrings"}, {"temperature": 5}, "the size of of[1] ('docstrings') is unknown"),
        ({"corpus": text}, {"temperature": 0}, "greater than or equal to 0.1"),
    ):
        with pytest.raises(ValidationError, match=re.escape(message)):
            Mixture.Config.model_validate({"of": [{"corpus": text}, other], **options})
    pair = [{"corpus": {"type": name, "count": count}} for name, count in (("copying", 90), ("reversal", 10))]
    drawn = Mixture.Config.model_validate({"of": pair, "temperature": 2, "size": 40, "repeat": True}).build()
    drawn.also = ("corpus",)
    assert Counter(example["corpus"] for example in drawn.examples()) == {"0": 30, "1": 10}, "3 to 1"


def test_an_example_names_its_corpus_if_asked(texts: Path) -> None:
    of = [{"corpus": {"type": "text", "files": str(texts / f"{name}.txt")}} for name in "ab"]
    corpus = Mixture.Config.model_validate({"of": [{**of[0], "name": "first"}, of[1]], "size": 20}).build()
    assert all(example.keys() == {"text"} for example in corpus.examples())
    corpus.also = ("corpus",)
    assert all((one["text"][0], one["corpus"]) in (("a", "first"), ("b", "1")) for one in corpus.examples())
    corpus.also = ("corpus", "year")
    with pytest.raises(DataError, match=r"[ab]\.txt:1: no field 'year'; 'text' has text"):
        corpus.examples()
