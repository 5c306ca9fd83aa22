"""Texts beyond what memory holds are refused unread; those beyond `max_length` are told of."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

import tfkit
from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation import texts
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.stepper import Stepper
from tfkit.generation.writer import LengthWarning, Writer, make_writer
from tfkit.models import Model
from tfkit.recipe.settings.sections import Generate

from ..sampling import looped

LONG = 12  # max_length
POSITIONS = ["sinusoidal", "rotary", "alibi", "t5_bias", None]


@cache
def model(position: str | None, pair: bool = False) -> Model:
    layer = {
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 2},
        "feedforward": {"type": "mlp", "d_ff": 8},
    }
    sizes = {"d_model": 8, "vocab_size": tokenizer().vocab_size, "num_layers": 1, "max_length": LONG}
    parts = {"embedding": "tokens", "position": position, "layer": layer, "head": "language_model"}
    kind = "encoder_decoder" if pair else "decoder"
    return tfkit.build({"tfkit": 1, "model": {"type": kind, **sizes, **parts}})


@cache
def tokenizer() -> Tokenizer:
    fitted: Tokenizer = Slot("tokenizer").validate("character").build().fit(["abcd"])
    return fitted


def writer(position: str | None, count: int | None = None, pair: bool = False, **options: Any) -> Writer:
    start = 1 if pair else None
    decoder = StepDecoder(model(position, pair), options.get("quantize"))
    return make_writer(decoder, tokenizer(), Generate(stop=()), start, count, options)  # type: ignore[arg-type]


def ids(length: int) -> list[int]:
    return [5] * length


def told(writer: Writer, length: int) -> list[str]:
    """What is warned of when it writes after a prompt of that length."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        writer.write([ids(length)])
    return [str(one.message) for one in found if issubclass(one.category, LengthWarning)]


@looped("position", POSITIONS)
def test_texts_beyond_max_length_are_told_of_whatever_the_position(position: str | None) -> None:
    assert told(writer(position, LONG - 3), 4) == []  # the last token that is written is never read
    (grown,) = told(writer(position, LONG - 2), 4)
    assert grown.startswith(f"a text exceeds the model's max_length of {LONG} tokens; ")
    assert told(writer(position, 1), LONG) == []
    (longer,) = told(writer(position, 4), LONG + 1)
    assert longer.startswith(f"a prompt is longer than the model's max_length of {LONG} tokens; ")


def test_learned_positions_end_a_text_and_that_is_told_where_more_was_asked_for() -> None:
    assert told(writer("learned"), 4) == []
    assert told(writer("learned", LONG - 3), 4) == []
    (ended,) = told(writer("learned", LONG), 4)
    assert ended == f"a text ended before {LONG} new tokens, as the model has no further positions"
    with pytest.raises(UsageError, match=f"has {LONG + 1} tokens, but this model reads at most {LONG}"):
        writer("learned").write([ids(LONG + 1)])


def test_a_stream_and_a_source_are_told_of_too() -> None:
    with pytest.warns(LengthWarning, match="a text exceeds the model's max_length"):
        "".join(writer("rotary", LONG).stream(ids(4)))
    (source,) = told(writer("rotary", 2, pair=True), LONG + 1)
    assert source.startswith(f"a source is longer than the model's max_length of {LONG} tokens; ")


def test_a_warning_comes_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.generation.writer.find", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(LengthWarning, match="a prompt is longer"), warnings.catch_warnings():
        warnings.simplefilter("error")
        writer("rotary").write([ids(100 * LONG)])


def test_a_prompt_of_a_megabyte_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be read for hours."""
    monkeypatch.setattr("tfkit.generation.writer.find", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(UsageError, match=r"a prompt has 1,000,000 tokens; .* is 1,200 .* max_length of 12"):
        writer("rotary").write([ids(1_000_000)])
    with pytest.raises(UsageError, match="a source has 1,000,000 tokens"):
        writer("rotary", pair=True).write([ids(1_000_000)])


WIDE: list[tuple[dict[str, Any], str]] = [
    ({"type": "beam", "num_beams": 1_024}, "a prompt with 1,024 texts need at least"),
    ({"type": "beam", "num_beams": 1_000, "n_best": 1_000}, "a prompt with 1,000 texts"),
    ({"type": "diverse_beam", "num_beams": 1_000, "groups": 10}, "a prompt with 1,000 texts"),
    ({"type": "sample", "n_best": 1_000}, "a prompt with 1,000 texts"),
]


@pytest.mark.parametrize(("strategy", "message"), WIDE, ids=str)
def test_more_texts_than_memory_holds_are_refused(
    strategy: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "free_memory", lambda device: 2**20)
    wide = writer("rotary", strategy=strategy)
    with pytest.raises(
        UsageError, match=rf"^{message}.* MiB of memory, but only 1\.0 MiB are free; at most [\d,]+ texts"
    ):
        wide.check()  # as the command does before it reads a text
    with pytest.raises(UsageError, match=message):
        wide.write([ids(1)])


def test_prompts_count_as_many_as_are_followed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "free_memory", lambda device: 100_000)
    writer("rotary", 1, batch_size=10).write([ids(1)] * 200)
    with pytest.raises(UsageError, match=r"^200 prompts need at least"):
        writer("rotary", 1, batch_size=1000).write([ids(1)] * 200)
    with pytest.raises(UsageError, match=r"^50 prompts with 4 texts each need at least"):
        writer("rotary", 1, strategy="beam").write([ids(1)] * 50)


@pytest.mark.parametrize("name", ["greedy", "sample", "beam", "diverse_beam", "contrastive"])
def test_a_strategy_says_how_many_texts_it_follows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    logits = Stepper.logits

    def counted(stepper: Stepper) -> Any:
        widths.append(stepper.rows)
        return logits(stepper)

    monkeypatch.setattr(Stepper, "logits", counted)
    options = {"beam": {"num_beams": 3}, "diverse_beam": {"num_beams": 4, "groups": 2}, "sample": {"n_best": 5}}
    strategy = {"type": name, **options.get(name, {})}
    writer("rotary", 4, strategy=strategy, seed=0).write([ids(2)])
    assert max(widths) == Slot("strategy").validate(strategy).build().texts_at_once
