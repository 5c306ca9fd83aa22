"""Loading of tokenizer.json files, validated since some abort the library; special tokens, byte alphabets.

Tokenizers are saved as plain `tokenizer.json` files. The format has no place for roles of special tokens (pad, end), so
they are stored as names in a post-processing template that adds no tokens: `post_processor: {..., special_tokens:
{"tfkit.pad": {"ids": [0], "tokens": ["<pad>"]}}}`. Third-party files have no such template; their roles are inferred
from `COMMON_NAMES`.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import tokenizers
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from tokenizers import pre_tokenizers

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DataError
from tfkit.core.options import NonNegativeInt

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


ROLES = ("pad", "start", "end", "unknown", "mask", "separator")
COMMON_NAMES: dict[str, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "start": ("<s>", "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>"),
    "unknown": ("<unk>", "[UNK]"),
    "mask": ("<mask>", "[MASK]"),
    "separator": ("[SEP]", "<sep>", "</s>"),
}
TAG = "tag_"  # prefix of the roles of tags
SENTINEL = "<extra_id_{}>"  # T5's names for sentinel tokens, numbered from 0
_PREFIX = "tfkit."
_ROLES = "tfkit"  # marks the template that stores roles, even if it has none


class SpecialTokens(BaseModel):
    """Special tokens by role; `none` omits a role. Their ids are in this order from 0, or after those of symbols."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=True, title="SpecialTokens")

    pad: str | None = Field("<pad>", description="padding of shorter rows in a batch")
    start: str | None = Field("<s>", description="first token of a decoder's output")
    end: str | None = Field("</s>", description="end of a text")
    unknown: str | None = Field("<unk>", description="replacement for unknown text")
    mask: str | None = Field(None, description="replacement for a masked token (masked_lm)")
    separator: str | None = Field(None, description="separator between two texts in a row")
    sentinels: NonNegativeInt = Field(
        0, le=1000, description="number of sentinel tokens <extra_id_0>, ... for masked spans (span_corruption)"
    )

    @field_validator(*ROLES)
    @classmethod
    def _apart_from_text(cls, text: str | None) -> str | None:
        if text is None:
            return None
        letters = sum(character.isalnum() for character in text)
        if any(character.isspace() for character in text) or letters in (0, len(text)):
            raise ValueError(
                f"a special token must contain letters and other characters, but no spaces, such as <pad>, so that no "
                f"word of a text equals it; got {text!r}"
            )
        return text

    @model_validator(mode="after")
    def _distinct(self) -> SpecialTokens:
        roles: dict[str, str] = {}
        for role, text in self.texts().items():
            if text in roles:
                raise ValueError(f"{roles[text]} and {role} are both {text!r}; use a different text for each")
            roles[text] = role
        return self

    def texts(self) -> dict[str, str]:
        """Special tokens by role, in the order of their ids, without roles that are none."""
        roles = {role: text for role in ROLES if (text := getattr(self, role)) is not None}
        return roles | {f"sentinel_{number}": SENTINEL.format(number) for number in range(self.sentinels)}


def infer_roles(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """Infer roles in a third-party file from common token names; several roles may share a token."""
    tokens = backend.get_vocab(with_added_tokens=True)
    roles = {role: next((name for name in names if name in tokens), None) for role, names in COMMON_NAMES.items()}
    return {role: name for role, name in roles.items() if name is not None}


def with_roles(backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> tokenizers.Tokenizer:
    """Return a copy of `backend` that stores the roles and does not truncate or pad.

    Third-party files may truncate or pad silently. Their own template follows the template of roles, since the library
    panics if the order is reversed.
    """
    data = json.loads(backend.to_str())
    marks = {
        _PREFIX + role: {"id": _PREFIX + role, "ids": [backend.token_to_id(text)], "tokens": [text]}
        for role, text in special.items()
    }
    text, other = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    marks[_ROLES] = {"id": _ROLES, "ids": [], "tokens": []}
    template = {"type": "TemplateProcessing", "single": [text], "pair": [text, other], "special_tokens": marks}
    rest = own_steps(data["post_processor"])
    data["post_processor"] = {"type": "Sequence", "processors": [template, *rest]} if rest else template
    return tokenizers.Tokenizer.from_str(json.dumps({**data, "truncation": None, "padding": None}))


def roles_in(post_processor: Any) -> dict[str, str] | None:
    """Return the roles stored by `with_roles`, or None if there are none."""
    for step in filter(_is_roles, _template_steps(post_processor)):
        marks = step["special_tokens"].items()
        return {name.removeprefix(_PREFIX): mark["tokens"][0] for name, mark in marks if mark["tokens"]}
    return None


def own_steps(post_processor: Any) -> list[dict[str, Any]]:
    """Return the steps of a post-processor without the template of `with_roles`."""
    return [step for step in _template_steps(post_processor) if not _is_roles(step)]


def _template_steps(post_processor: Any) -> list[dict[str, Any]]:
    """Return the steps of a post-processor, flattening a sequence."""
    if post_processor is None:
        return []
    return list(post_processor["processors"]) if post_processor["type"] == "Sequence" else [post_processor]


def _is_roles(step: dict[str, Any]) -> bool:
    return step["type"] == "TemplateProcessing" and _ROLES in step["special_tokens"]


def check_room(vocab_size: int | None, special: SpecialTokens, others: int = 1) -> None:
    """Raise ValueError if `vocab_size` has no room for the special tokens and `others` additional tokens."""
    least = len(special.texts()) + others
    if vocab_size is not None and vocab_size < least:
        raise ValueError(f"vocab_size: {vocab_size} is too small; the minimum is {least}")


def default_unknown(options: Mapping[str, object]) -> Mapping[str, object]:
    """Set the default unknown token to none, for a vocabulary that can represent any text."""
    special = options.get("special_tokens", {})
    if isinstance(special, SpecialTokens) and "unknown" not in special.model_fields_set:
        special = special.model_dump(exclude_unset=True)
    if isinstance(special, Mapping) and "unknown" not in special:
        return {**options, "special_tokens": {**special, "unknown": None}}
    return options


def unknown_problem(special: SpecialTokens, covers: str) -> str:
    """Return the message if an unknown token and the option `covers`, which replaces it, are both set, or neither."""
    if special.unknown is None:
        return f"an unknown token is needed without {covers}; set special_tokens.unknown"
    return f"{covers} needs no unknown token; set special_tokens.unknown: none, not {special.unknown!r}"


@cache
def byte_of_letter() -> dict[str, int]:
    """Return letter -> byte: the letter with the byte's code if it is printable, else the next one from U+0100."""
    alphabet, hidden = set(pre_tokenizers.ByteLevel.alphabet()), itertools.count(256)
    return {chr(byte) if chr(byte) in alphabet else chr(next(hidden)): byte for byte in range(256)}


def token_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; other tokens, such as special tokens, are encoded as UTF-8."""
    byte_of = byte_of_letter()
    plain = all(letter in byte_of for letter in token)
    return bytes(byte_of[letter] for letter in token) if plain else token.encode()
