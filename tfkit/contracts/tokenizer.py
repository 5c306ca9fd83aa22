"""Tokenizers: decoding inverts encoding, and a saved tokenizer is identical."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import Broken, expect
from tfkit.contracts.samples import LINES, ODD
from tfkit.core.errors import DataError
from tfkit.core.slots import TokenizerFacts, of_kind
from tfkit.data.tokenizer import Tokenizer

TOKENIZER = ("tokenizer",)


def fitted(case: Case) -> Tokenizer:
    """Return a tokenizer fitted to the sample lines."""
    made = case.config.build().fit(list(LINES))
    if not isinstance(made, Tokenizer):
        raise Broken(f"fit gives {type(made).__name__}, not a tfkit Tokenizer")
    return made


@contract(
    "ids are whole numbers within the vocabulary, of any text, and special ids too",
    "built",
    slots=TOKENIZER,
    every_option=True,
)
def check_ids(case: Case) -> None:
    """Encode ordinary and odd texts; texts without ids must raise DataError."""
    tokenizer = fitted(case)
    config = of_kind(case.config, TokenizerFacts.Config)
    size, bound = tokenizer.vocab_size, None if config is None else config.vocabulary_bound
    expect(size > 0, "the vocabulary is empty")
    expect(bound is None or size <= bound, f"the vocabulary has {size} tokens, more than its bound of {bound}")
    for role, id_ in tokenizer.special_ids.items():
        expect(0 <= id_ < size, f"the {role} token has id {id_}, and the vocabulary {size} tokens")
    for text in (*LINES, *ODD):
        try:
            ids = tokenizer.encode(text)
        except DataError:
            expect(text not in LINES, f"{text!r}, a text it was fitted to, is refused")
            continue
        wrong = [id_ for id_ in ids if type(id_) is not int or not 0 <= id_ < size]
        expect(not wrong, f"{_shown(text)} gives {wrong[:3]}, which are no ids of a vocabulary of {size}")


def _shown(text: str) -> str:
    return repr(text if len(text) < 40 else f"{text[:40]}...")


@contract(
    "what is encoded is decoded: the very text it was fitted to, and of any other what it made of it",
    "ids",
    slots=TOKENIZER,
    every_option=True,
)
def check_round_trip(case: Case) -> None:
    """Check that ordinary texts are restored exactly, and that decoded odd texts are stable."""
    tokenizer = fitted(case)
    for text in LINES:
        back = tokenizer.decode(tokenizer.encode(text))
        expect(back == text, f"{text!r} comes back as {back!r}")
    for text in ODD:
        try:
            once = tokenizer.decode(tokenizer.encode(text))
        except DataError:
            continue
        twice = tokenizer.decode(tokenizer.encode(once))
        expect(twice == once, f"{_shown(text)} comes back as {_shown(once)}, and that as {_shown(twice)}")


@contract("many texts at once give what each alone gives", "ids", slots=TOKENIZER, every_option=True)
def check_batch(case: Case) -> None:
    """Compare `encode_batch` with `encode`."""
    tokenizer = fitted(case)
    together = tokenizer.encode_batch(list(LINES))
    for text, ids in zip(LINES, together, strict=True):
        expect(tokenizer.encode(text) == ids, f"{text!r} has other ids in a batch than alone")


@contract("special tokens are never read from a text unless that is asked for", "ids", slots=TOKENIZER)
def check_special_tokens(case: Case) -> None:
    """Encode texts containing each special token."""
    tokenizer = fitted(case)
    unknown = tokenizer.special_ids.get("unknown")
    for role, id_ in tokenizer.special_ids.items():
        text = tokenizer.token(id_)
        try:
            ids = tokenizer.encode(f"the {text} cat")
        except DataError:
            ids = []
        expect(id_ not in ids or id_ == unknown, f"the text {text!r} is read as the special token for {role}")
        asked = tokenizer.encode(text, special=True)
        expect(id_ in asked, f"{text!r} is not read as the special token for {role} when that is asked for")
        shown = tokenizer.decode([id_])
        expect(text not in shown, f"decoding shows the special token for {role}: {shown!r}")


@contract("the same texts give the same tokenizer", "ids", slots=TOKENIZER, every_option=True)
def check_refit(case: Case) -> None:
    """Fit twice."""
    first, second = fitted(case), fitted(case)
    expect(first.to_json() == second.to_json(), "fitted twice to the same texts it gives two different files")


@contract("no text at all is refused", "built", slots=TOKENIZER)
def check_no_text(case: Case) -> None:
    """Fit a learning tokenizer to nothing."""
    if issubclass(case.part, TokenizerFacts) and not case.part.learns:
        return
    try:
        case.config.build().fit([])
    except DataError:
        return
    raise Broken("fitted to no text at all it gives a tokenizer; a DataError would say what is wrong")


@contract("the tokenizer comes back from its file", "ids", slots=TOKENIZER, every_option=True)
def check_saved_tokenizer(case: Case) -> None:
    """Load the saved tokenizer.json as a run does, and pickle it as data workers do."""
    tokenizer = fitted(case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        tokenizer.save(path)
        loaded = Tokenizer.load(path)
    # unpickles only what was pickled here
    for how, other in (("loaded", loaded), ("pickled", pickle.loads(pickle.dumps(tokenizer)))):
        ids, text = tokenizer.encode(LINES[0]), tokenizer.decode(tokenizer.encode(LINES[0]))
        expect(other.special_ids == tokenizer.special_ids, f"the {how} tokenizer has other special tokens")
        expect(other.encode(LINES[0]) == ids, f"the {how} tokenizer gives other ids for {LINES[0]!r}")
        expect(other.decode(ids) == text, f"the {how} tokenizer decodes {LINES[0]!r} to {other.decode(ids)!r}")
