"""Encoding of rendered conversations: only the template writes control tokens, a message contains text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

import tokenizers

from tfkit.core.errors import DataError
from tfkit.data.chat import Rendered
from tfkit.data.tokenizer import Tokenizer

MARK = "\ufdef"  # replaces a control token while the text around it is encoded; not a character
Encoded = tuple[list[int], list[tuple[int, int]]]  # ids with their character spans


class ControlTokens:
    """Encoder of conversations for a tokenizer.

    Control tokens are the special tokens, and added tokens between signs, such as <think>.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokens = tokenizer.backend.get_added_tokens_decoder()
        added = {one.content: id_ for id_, one in tokens.items() if _acts(one)}
        self.special = {role: tokenizer.token(id_) for role, id_ in tokenizer.special_ids.items()}
        self.ids = {text: tokenizer.special_ids[role] for role, text in self.special.items()} | added
        plain = {one.content for one in tokens.values() if not one.special} - set(self.special.values())
        self.control = {text: text not in plain for text in self.ids}  # control tokens; True if they are special
        model = json.loads(tokenizer.to_json())["model"]
        unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else model.get("unk_token")
        self._unknown = tokenizer.id(unknown) if unknown else tokenizer.special_ids.get("unknown")
        self._numbers = frozenset(self.ids.values()) - {self._unknown}
        self._pattern = re.compile("|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or "(?!)")

    @staticmethod
    def of(tokenizer: Tokenizer) -> ControlTokens:
        """Return the encoder of a tokenizer, created once."""
        return _control_of(tokenizer)

    def encode(self, texts: Sequence[Rendered]) -> list[list[int]]:
        """Return the ids of rendered conversations."""
        found = self.tokenizer.encode_batch([one.text for one in texts], special=True)
        pairs = zip(texts, found, strict=True)
        return [ids if self._are_written(one, ids) else self.encode_with_places(one)[0] for one, ids in pairs]

    def encode_with_places(self, rendered: Rendered) -> Encoded:
        """Return the ids of a conversation and their character spans. Raise DataError if a message acts as control."""
        text, twin = rendered.text, rendered.twin
        ((ids, places),) = self.tokenizer.encode_with_places([text], special=True)
        if self._are_written(rendered, ids):
            return ids, places
        if MARK in text:
            raise DataError(f"a message contains the code point U+{ord(MARK):04X}, which is no character; remove it")
        found_ids = zip(*self.tokenizer.encode_with_places([twin], special=True)[0], strict=True)
        control = [(id_, a, b) for id_, (a, b) in found_ids if id_ in self._numbers and text[a:b] == twin[a:b]]
        starts, ends = [0, *(b for _, _, b in control)], [*(a for _, a, _ in control), len(text)]
        marked = MARK.join(text[a:b] for a, b in zip(starts, ends, strict=True))
        ((ids, places),) = self._text_only.encode_with_places([marked])
        shift, written = 0, iter(control)
        ids = [self._moved.get(id_, id_) for id_ in ids]
        for number, (a, b) in enumerate(places):
            if marked[a:b] == MARK:
                ids[number], *span = next(written)
                places[number], shift = (span[0], span[1]), span[1] - b
            elif ids[number] in self._numbers:
                raise DataError(f"the tokenizer reads {text[a + shift : b + shift]!r} in a message as a control token")
            else:
                places[number] = a + shift, b + shift
        return ids, places

    def _are_written(self, rendered: Rendered, ids: Sequence[int]) -> bool:
        """True if the control tokens are those that the template has written."""
        written = [self.ids[found[0]] for found in self._pattern.finditer(rendered.twin)]
        unknown = "" if self._unknown is None else self.tokenizer.token(self._unknown)
        literal = unknown and rendered.text.count(unknown) > rendered.twin.count(unknown)
        return not literal and [id_ for id_ in ids if id_ in self._numbers] == [
            id_ for id_ in written if id_ != self._unknown
        ]

    @cached_property
    def _moved(self) -> dict[int, int]:
        """Id of each added token in `_text_only`, which numbers them itself, and in the tokenizer."""
        added = self._text_only.backend.get_added_tokens_decoder()
        return {id_: self.tokenizer.id(one.content) for id_, one in added.items() if one.content != MARK}

    @cached_property
    def _text_only(self) -> Tokenizer:
        """A tokenizer without the control tokens, in which MARK is a token."""
        data = json.loads(self.tokenizer.to_json())
        model, hidden = data["model"], {name: f"{MARK}{id_}" for name, id_ in self.ids.items()}
        data["added_tokens"] = [one for one in data["added_tokens"] if one["content"] not in hidden]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {hidden.get(name, name): id_ for name, id_ in model["vocab"].items()}
        else:
            model["vocab"] = [[hidden.get(name, name), score] for name, score in model["vocab"]]
        if "unk_token" in model:
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        if "merges" in model:
            model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & hidden.keys()]
        backend = tokenizers.Tokenizer.from_str(json.dumps(data))
        backend.add_tokens([tokenizers.AddedToken(MARK, normalized=False)])
        return Tokenizer(backend, {})


_control_of = lru_cache(maxsize=4)(ControlTokens)


def _acts(token: tokenizers.AddedToken) -> bool:
    """True if an added token acts as control; added words and runs of spaces are text."""
    text = token.content
    signs = not text[:1].isalnum() and not text[-1:].isalnum() and any(map(str.isalnum, text)) and " " not in text
    return bool(text.strip()) and (token.special or signs)
