"""Tokenizers: decoding inverts encoding, and saving preserves everything. Corpora: examples are the same each time."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from itertools import islice
from pathlib import Path

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect
from tfkit.contracts.options import LINES, ODD, is_path
from tfkit.core.errors import DataError
from tfkit.core.slots import TokenizerFacts, of_kind
from tfkit.data.corpus import Corpus, Example
from tfkit.data.tokenizer import Tokenizer

TOKENIZER = ("tokenizer",)


def fitted(case: Case) -> Tokenizer:
    """Return a tokenizer fitted to the sample lines."""
    made = case.config.build().fit(list(lines_of(case)))
    if not isinstance(made, Tokenizer):
        raise Broken(f"fit returns {type(made).__name__}, not a tfkit Tokenizer")
    return made


def lines_of(case: Case) -> tuple[str, ...]:
    """Return the sample lines of the tokenizer, or ordinary ones."""
    return (case.part.samples if issubclass(case.part, TokenizerFacts) else ()) or LINES


@contract("all ids, including special ids, are within the vocabulary", "built", slots=TOKENIZER, every_option=True)
def check_ids(case: Case) -> None:
    """Encode ordinary and unusual texts; DataError is allowed only for unusual ones."""
    tokenizer = fitted(case)
    config = of_kind(case.config, TokenizerFacts.Config)
    size, bound = tokenizer.vocab_size, None if config is None else config.vocabulary_bound
    expect(size > 0, "the vocabulary is empty")
    expect(
        bound is None or size <= bound,
        f"the vocabulary has {size} tokens, more than the {bound} that the options allow",
    )
    for role, id_ in tokenizer.special_ids.items():
        expect(0 <= id_ < size, f"the {role} token has id {id_}, but the vocabulary has {size} tokens")
    for text in (*lines_of(case), *ODD):
        ids = encoded(tokenizer, text)
        if ids is None:
            expect(text not in lines_of(case), f"the training text {text!r} is refused")
            continue
        wrong = [id_ for id_ in ids if type(id_) is not int or not 0 <= id_ < size]
        expect(not wrong, f"{_short(text)} yields {wrong[:3]}, which the vocabulary of {size} does not contain")


def encoded(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """Return the ids of a text, or None if it is refused."""
    with contextlib.suppress(DataError):
        return tokenizer.encode(text)
    return None


def _short(text: str) -> str:
    return repr(text if len(text) < 40 else f"{text[:40]}...")


@contract(
    "training texts are restored exactly, and decoded texts are stable under a round trip",
    "ids",
    slots=TOKENIZER,
    every_option=True,
)
def check_round_trip(case: Case) -> None:
    """Encode and decode ordinary texts once, and unusual texts twice."""
    tokenizer = fitted(case)
    for text in lines_of(case):
        back = tokenizer.decode(tokenizer.encode(text))
        expect(back == text, f"{text!r} is decoded to {back!r}")
    for text in ODD:
        if (ids := encoded(tokenizer, text)) is None:
            continue
        once = tokenizer.decode(ids)
        twice = tokenizer.decode(tokenizer.encode(once))
        expect(twice == once, f"{_short(text)} is decoded to {_short(once)}, which is then decoded to {_short(twice)}")


@contract("encoding in a batch equals encoding separately", "ids", slots=TOKENIZER, every_option=True)
def check_batch(case: Case) -> None:
    """Compare `encode_batch` with `encode`."""
    tokenizer = fitted(case)
    together = tokenizer.encode_batch(list(lines_of(case)))
    for text, ids in zip(lines_of(case), together, strict=True):
        expect(tokenizer.encode(text) == ids, f"{text!r} has different ids in a batch and alone")


@contract("special tokens in a text are parsed only on request", "ids", slots=TOKENIZER)
def check_special_tokens(case: Case) -> None:
    """Encode texts that contain the text of a special token."""
    tokenizer = fitted(case)
    unknown = tokenizer.special_ids.get("unknown")
    for role, id_ in tokenizer.special_ids.items():
        text = tokenizer.token(id_)
        ids = encoded(tokenizer, f"the {text} cat") or []
        expect(id_ not in ids or id_ == unknown, f"the text {text!r} is parsed as the special token for {role}")
        parsed = tokenizer.encode(text, special=True)
        expect(id_ in parsed, f"{text!r} is not parsed as the special token for {role} on request")
        decoded = tokenizer.decode([id_])
        expect(text not in decoded, f"decoding does not remove the special token for {role}: {decoded!r}")


@contract("fitting to the same texts yields the same tokenizer", "ids", slots=TOKENIZER, every_option=True)
def check_refit(case: Case) -> None:
    """Fit two tokenizers to the same texts."""
    first, second = fitted(case), fitted(case)
    expect(first.to_json() == second.to_json(), "two tokenizers fitted to the same texts differ")


@contract("an empty corpus is refused", "built", slots=TOKENIZER)
def check_no_text(case: Case) -> None:
    """Fit a learned tokenizer to an empty corpus."""
    if issubclass(case.part, TokenizerFacts) and not case.part.learns:
        return
    try:
        case.config.build().fit([])
    except DataError:
        return
    raise Broken("fit accepts an empty corpus; raise a DataError")


@contract("the tokenizer survives saving and loading", "ids", slots=TOKENIZER, every_option=True)
def check_saved_tokenizer(case: Case) -> None:
    """Load a saved tokenizer.json, as a run does, and pickle the tokenizer, as data workers do."""
    tokenizer = fitted(case)
    line = lines_of(case)[0]
    ids, text = tokenizer.encode(line), tokenizer.decode(tokenizer.encode(line))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(path)
        loaded = Tokenizer.load(path)
    # safe, since these bytes were pickled here
    for how, other in (("loaded", loaded), ("pickled", pickle.loads(pickle.dumps(tokenizer)))):
        expect(other.special_ids == tokenizer.special_ids, f"the {how} tokenizer has different special tokens")
        expect(other.encode(line) == ids, f"the {how} tokenizer yields different ids for {line!r}")
        expect(other.decode(ids) == text, f"the {how} tokenizer decodes {line!r} to {other.decode(ids)!r}")


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
