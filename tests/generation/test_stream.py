"""Texts in pieces: joined they are the text, whatever the tokenizer and wherever a text may still be cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import Candidate, prepare
from tfkit.generation.stop import StopRule, WrittenRow
from tfkit.generation.strategy import Greedy
from tfkit.generation.texts import final_tokens
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from .searching import best

LINES = ["the cat doesn't sit on a mat.", "Größe, 3 + 4 = 7!", "ab abc  bca\n", "a b c"]


def learned(kind: str, **options: Any) -> Tokenizer:
    fitted: Tokenizer = Slot("tokenizer").validate({"type": kind, **options}).build().fit(LINES)
    return fitted


def bytes_alone() -> Tokenizer:
    """Every byte is a token, so that most texts of ids are no characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Tokenizer(backend, {})


def byte_fallback() -> Tokenizer:
    """Pieces, and bytes for what there is no piece of; bytes that are no character spoil those before them."""
    tokens = ["▁the", "▁a", "é", *(f"<0x{byte:02X}>" for byte in (0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF))]
    backend = tokenizers.Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=[]))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    return Tokenizer(backend, {})


TOKENIZERS = {
    "character": learned("character"),
    "word": learned("word"),
    "bpe": learned("bpe", vocab_size=90),
    "wordpiece": learned("wordpiece", vocab_size=90),
    "unigram": learned("unigram", vocab_size=90),
    "bytes": bytes_alone(),
    "byte_fallback": byte_fallback(),
}


def rules_of(tokenizer: Tokenizer, *stop: Any) -> Rules:
    return bound_rules([], [Slot("stop").validate(rule) for rule in stop], tokenizer)


def pieces(rules: Rules, prompt: Sequence[int], ids: Sequence[int]) -> tuple[list[str], str]:
    """What is certain after each token until a rule ends the text, and the text."""
    shown = []
    for count in range(1, len(ids) + 1):
        shown.append(rules.certain(prompt, ids[:count]))
        if rules.done(prompt, ids[:count], 0):
            ids = ids[:count]
            break
    return shown, rules.text(prompt, rules.cut(ids))


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_certain_stays(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    id_ = st.integers(0, tokenizer.vocab_size - 1)
    prompt = data.draw(st.lists(id_, min_size=1, max_size=3))
    ids = data.draw(st.lists(id_, min_size=1, max_size=12))
    strings = data.draw(st.lists(st.text("abc e", min_size=1, max_size=3), min_size=1, max_size=2))
    keep = data.draw(st.booleans())
    ends = {"type": "end_token", "tokens": [data.draw(id_)]}
    rules = rules_of(tokenizer, ends, {"type": "strings", "strings": strings, "keep": keep})
    shown, text = pieces(rules, prompt, ids)
    for before, after in zip(shown, [*shown[1:], text], strict=True):
        assert after.startswith(before), (shown, text)


def test_a_special_token_between_two_bytes_does_not_show_half_a_character() -> None:
    kind = {"type": "unigram", "vocab_size": 300, "byte_fallback": True}
    tokenizer = Slot("tokenizer").validate(kind).build().fit(LINES)
    first, second = (tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in (0x00, 0x80))
    special = next(iter(tokenizer.special_ids.values()))
    shown, text = pieces(Rules(tokenizer=tokenizer), tokenizer.encode("a"), [first, special, second])
    assert all(text.startswith(one) for one in shown)


def test_what_is_certain_is_not_held_back() -> None:
    letters = TOKENIZERS["character"]
    rules = rules_of(letters, {"type": "strings", "strings": ["ab", "bcd"]})
    shown, text = pieces(rules, letters.encode("c"), letters.encode("ca bca cab"))
    assert shown == ["c", "c", "ca ", "ca ", "ca ", "ca bc", "ca bca ", "ca bca c", "ca bca c", "ca bca c"]
    assert text == "ca bca c"
    euro = TOKENIZERS["bytes"]
    plain = Rules(tokenizer=euro)
    assert pieces(plain, euro.encode("x"), euro.encode("a€b"))[0] == ["a", "a", "a", "a€", "a€b"]


def test_a_rule_that_cuts_in_its_own_way_keeps_all_back() -> None:
    @register("stop", "trimmed")
    class Trimmed(StopRule):
        """Ends never, and leaves the spaces out that a text ends with."""

        def done(self, row: WrittenRow) -> bool:
            return False

        def cut_text(self, text: str) -> str:
            return text.rstrip()

    letters = TOKENIZERS["character"]
    shown, text = pieces(rules_of(letters, "trimmed"), letters.encode("c"), letters.encode("ab  "))
    assert shown == ["", "", "", ""] and text == "ab"


# --- the thread


@pytest.fixture(scope="module")
def net() -> Model:
    layer = {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2}}
    recipe = {
        "type": "decoder",
        "d_model": 8,
        "vocab_size": 12,
        "num_layers": 1,
        "embedding": "tokens",
        "layer": {**layer, "feedforward": {"type": "mlp", "d_ff": 8}},
        "head": "language_model",
        "init": {"type": "normal", "std": 0.3},
    }
    return build_model(load_recipe({"tfkit": 1, "model": recipe}).blueprint(), seed=1)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tfkit stream"]


def test_tokens_come_one_by_one_and_then_the_candidate(net: Model) -> None:
    strategy = Greedy(Greedy.Config())
    *tokens, found = final_tokens(strategy, prepare(net, [[1, 2]], 7))
    assert isinstance(found, Candidate) and tuple(tokens) == found.ids and len(tokens) == 7
    assert not threads()


def test_whoever_leaves_ends_the_search(net: Model) -> None:
    listening = final_tokens(Greedy(Greedy.Config()), prepare(net, [[1, 2]], 1_000_000))
    assert isinstance(next(listening), int)
    assert len(threads()) == 1
    listening.close()
    assert not threads()


def test_what_goes_wrong_in_the_search_is_raised_where_it_is_heard(net: Model) -> None:
    class Breaks(Greedy):
        """Fails in its search."""

        def search(self, search: Any) -> Any:
            search.notify(0, 3)
            raise UsageError("this search fails")

    listening = final_tokens(Breaks(Greedy.Config()), prepare(net, [[1, 2]], 5))
    assert next(listening) == 3
    with pytest.raises(UsageError, match="this search fails"):
        next(listening)
    assert not threads()


def test_each_batch_has_its_own_time(net: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(stop=[Slot("stop").validate({"type": "time", "seconds": 4}).build()])
    clock = iter(range(1000))
    monkeypatch.setattr("tfkit.generation.search.time.monotonic", lambda: next(clock))
    assert [len(ids) for ids in best(net, [[1], [2], [3]], 30, rules, batch_size=1)] == [4, 4, 4]
