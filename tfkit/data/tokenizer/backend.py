"""Loading of tokenizer.json files, which are validated first because some make the `tokenizers` library abort."""

from __future__ import annotations

import base64
import contextlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import tokenizers

from tfkit.core.errors import DataError
from tfkit.core.trees import JsonObject

LARGEST_ID = 2**24
GAP = 2**16  # the largest id may exceed twice the number of tokens by this much
LONGEST_PATTERN = 10_000  # maximum number of characters in a regular expression
GROWTH = 1000  # maximum number of output characters per input character
LONGEST_PREFIX = 10_000  # maximum number of characters prepended to a text
PIECES = 1000  # maximum number of special tokens added by a template
TEXTS = 2**8  # maximum number of times that the single and pair templates together repeat a text
# keys that hold a list of steps
SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")


def read_backend(text: str) -> tokenizers.Tokenizer:
    """Parse a tokenizer.json, disabling truncation and padding.

    Raise DataError if the library would reject the file or abort.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise DataError(f"not a tokenizer.json: {error}") from None
    except RecursionError:
        raise DataError("not a tokenizer.json: nested too deeply") from None
    if not isinstance(data, dict):
        raise DataError("not a tokenizer.json: expected a mapping")
    check(data)
    if data.get("truncation") is not None or data.get("padding") is not None:
        text = json.dumps({**data, "truncation": None, "padding": None})
    try:
        with panics_as_errors():
            return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"not a tokenizer.json: {error}") from None


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Convert panics of the library to DataError, such as a panic because a regular expression takes too many steps."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the class of panics cannot be imported
            raise
        raise DataError(f"the tokenizer failed: {' '.join(str(error).split())}") from None


def check(data: JsonObject) -> None:
    """Raise DataError for values that the library accepts but that would exhaust memory when texts are encoded.

    Values of wrong types are left to the library, which rejects them.
    """
    checks: list[Callable[[], None]] = [lambda: _check_vocabulary(data)]
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        steps = list(_steps(data.get(part)))
        checks += [partial(_check_patterns, part, steps), partial(_check_growth, part, steps)]
    checks.append(lambda: _check_templates(list(_steps(data.get("post_processor")))))
    for one in checks:
        with contextlib.suppress(TypeError, AttributeError, KeyError):
            one()


def check_ids(ids: Iterable[tuple[str, int]], count: int) -> None:
    """Raise DataError if ids are too sparse for a vocabulary of `count` tokens."""
    most = min(LARGEST_ID, 2 * count + GAP)
    for token, id_ in ids:
        if isinstance(id_, int) and id_ > most:
            raise DataError(
                f"the token {token!r:.60} has id {id_:,}; with {count:,} tokens, the largest id is {most:,}"
            )


def _check_vocabulary(data: JsonObject) -> None:
    vocabulary = (data.get("model") or {}).get("vocab") or ()
    added = [(token["content"], token["id"]) for token in data.get("added_tokens") or ()]
    tokens = list(vocabulary.items()) if isinstance(vocabulary, Mapping) else []
    check_ids([*tokens, *added], len(vocabulary) + len(added))


def _steps(part: object) -> Iterator[JsonObject]:
    """Yield the steps of a normalizer, decoder, etc. in order, flattening sequences."""
    waiting = [part]
    while waiting:
        step = waiting.pop()
        below = [step[key] for key in SEQUENCES if key in step] if isinstance(step, dict) else []
        if below and isinstance(below[0], list):
            waiting += reversed(below[0])
        elif isinstance(step, dict):
            yield step


def _check_patterns(part: str, steps: Iterable[JsonObject]) -> None:
    for step in steps:
        pattern = step.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
        if isinstance(regex, str) and len(regex) > LONGEST_PATTERN:
            raise DataError(
                f"{part}: a regular expression has {len(regex):,} characters; the limit is {LONGEST_PATTERN:,}"
            )
        if "precompiled_charsmap" in step:
            _check_charsmap(step["precompiled_charsmap"])


def _check_charsmap(text: str) -> None:
    """Raise DataError if the table declares more bytes than it has, as the library would allocate them."""
    try:
        table = base64.b64decode(text)
    except ValueError as error:
        raise DataError(f"normalizer: precompiled_charsmap is not base64: {error}") from None
    size = int.from_bytes(table[:4], "little")
    if len(table) >= 4 and size > len(table) - 4:
        raise DataError(f"normalizer: precompiled_charsmap declares {size:,} bytes but has {len(table) - 4:,}")


def _check_growth(part: str, steps: Iterable[JsonObject]) -> None:
    """Raise DataError if replacements can expand a text excessively.

    `grown` maps a character to the maximum number of its copies that one input character can become.
    """
    grown: dict[str, float] = defaultdict(lambda: 1.0)
    rest, before = 1.0, 0  # maximum growth of characters not in `grown`; length of the prefix
    for step in steps:
        before += len(step.get("prepend") or "")
        if "pattern" not in step or "content" not in step:
            rest = max([rest, *grown.values()])  # this step may map any character to any other one
            grown.clear()
            continue
        literal, content = step["pattern"].get("String"), step["content"]
        level = max([rest, *(grown.values() if literal is None else (grown[sign] for sign in literal))])
        level *= max(1.0, len(content) / max(1, len(literal or "")))
        if level > GROWTH:
            raise DataError(f"{part}: replacements expand one character to more than {GROWTH:,}")
        grown |= {sign: max(grown[sign], level) for sign in content}
    if before > LONGEST_PREFIX:
        raise DataError(f"{part}: {before:,} characters are prepended to every text; the limit is {LONGEST_PREFIX:,}")


def _check_templates(steps: Iterable[JsonObject]) -> None:
    """Raise DataError if templates repeat a text too often or add too many tokens."""
    repeats = 1
    for step in (step for step in steps if "single" in step):
        for template in (step["single"], step["pair"]):
            texts = sum("Sequence" in piece for piece in template)
            marks = [piece["SpecialToken"]["id"] for piece in template if "SpecialToken" in piece]
            around = sum(len(step["special_tokens"][mark]["ids"]) for mark in marks if mark in step["special_tokens"])
            if around > PIECES:
                raise DataError(f"post_processor: a template adds {around:,} tokens to a text; the limit is {PIECES:,}")
            repeats *= max(1, texts)
    if repeats > TEXTS:
        raise DataError(f"post_processor: templates repeat a text {repeats:,} times; the limit is {TEXTS}")
