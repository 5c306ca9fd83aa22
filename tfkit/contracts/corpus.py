"""Corpora: examples have the declared fields and are reproducible."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect
from tfkit.contracts.options import is_path
from tfkit.core.errors import DataError
from tfkit.data.corpus import Corpus, Example

CORPUS = ("corpus",)


def made(case: Case, **changed: object) -> Corpus:
    """Build the corpus with changed options."""
    corpus: Corpus = case.with_(**changed).config.build()
    return corpus


@contract("every example has exactly the declared fields, each a text", "built", slots=CORPUS, every_option=True)
def check_fields(case: Case) -> None:
    """Check the fields of every example."""
    corpus = made(case)
    examples = corpus.examples()
    expect(corpus.fields, 'declares no fields; set fields = ("text",), for example')
    found = "an empty list" if examples == [] else type(examples).__name__
    expect(isinstance(examples, list) and examples, f"examples returns {found}, not a list of examples")
    for number, example in enumerate(examples, 1):
        fields = ", ".join(example) or "nothing"
        expect(set(example) == set(corpus.fields), f"example {number} has {fields}, not {', '.join(corpus.fields)}")
        for field, text in example.items():
            expect(isinstance(text, str), f"'{field}' of example {number} is of type {type(text).__name__}, not str")


@contract("reading again yields the same examples in the same order", "fields", slots=CORPUS, every_option=True)
def check_repeatable(case: Case) -> None:
    """Read a corpus twice, then another one with equal options."""
    corpus = made(case)
    first, again = corpus.examples(), corpus.examples()
    for other, how in ((again, "a second reading"), (made(case).examples(), "a second corpus with equal options")):
        if first != other:
            raise Broken(f"{how} yields {_difference(first, other)}")


def _difference(first: list[Example], second: list[Example]) -> str:
    if len(first) != len(second):
        return f"{len(second)} examples instead of {len(first)}"
    place = next(number for number, pair in enumerate(zip(first, second, strict=True), 1) if pair[0] != pair[1])
    return f"a different example number {place}"


@contract("a limit takes the first examples", "fields", slots=CORPUS)
def check_limit(case: Case) -> None:
    """Read with limit: 2, and with a limit above the number of examples."""
    examples = made(case).examples()
    two = made(case, limit=2).examples()
    expect(two == examples[:2], f"limit: 2 yields {len(two)} examples, not the first two of {len(examples)}")
    more = made(case, limit=len(examples) + 5).examples()
    expect(len(more) == len(examples), f"a limit beyond its {len(examples)} examples yields {len(more)}")
    counted = len(list(islice(made(case).read(), len(examples) + 1)))
    expect(counted == len(examples), f"reading yields {counted} examples one by one, but {len(examples)} at once")


@contract("errors for missing files name the file", "fields", slots=CORPUS)
def check_missing_file(case: Case) -> None:
    """Set each path option, one at a time, to a missing file."""
    for option, field in case.part.Config.model_fields.items():
        if not is_path(field) or option not in case.options:
            continue
        missing = str(Path("no") / "such" / "file.txt")
        try:
            made(case, **{option: missing}).examples()
        except DataError as error:
            expect("file.txt" in str(error), f"the error for a missing {option} does not name the file: {error}")
        else:
            raise Broken(f"a missing file as {option} is not reported")
