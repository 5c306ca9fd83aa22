"""Objectives of texts and pairs: rows as they are read, the loss token by token, and what is refused.

What holds for every objective is a contract (tfkit/contracts/objective.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.training.small import RECIPE, trained
from tfkit.core.component import Component
from tfkit.core.errors import DataError, RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.encoder import Stream, TokenIds
from tfkit.recipe.load import Recipe, load_recipe
from tfkit.training.objective import Item
from tfkit.training.objective.base import token_loss
from tfkit.training.objective.completion import blocks, rejoined

from ..sampling import looped
from .made import LETTERS, letters, model, part, rng

PAIRS = [{"source": "hello", "target": "world wide"}, {"source": "a", "target": "bc"}, {"source": "abc", "target": "z"}]
TEXTS = [{"text": "the quick brown fox"}, {"text": "jumps"}, {"text": "over it all"}]


def nats(logits: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Sum the negative logarithms token by token, the slow way."""
    probabilities = logits.double().softmax(-1)
    return -sum((probabilities[place, label].log() for place, label in enumerate(labels)), torch.zeros(()).double())


def gradients(net: nn.Module, total: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    total.backward(retain_graph=True)
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def assert_same(net: nn.Module, total: torch.Tensor, naive: torch.Tensor) -> None:
    assert total.item() == pytest.approx(naive.item(), rel=1e-5)
    for one, other in zip(gradients(net, total), gradients(net, naive), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


EXPERTS = {"type": "experts", "num_experts": 4, "num_active": 1, "expert": {"type": "mlp", "d_ff": 8}}
KINDS = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}


@looped("name", ["causal_lm", "completion", "chat", "masked_lm", "seq2seq", "denoising"])
def test_padding_is_no_load_of_experts(name: str) -> None:
    """The z-loss of a padded or packed batch is the mean over the tokens of its texts, read one by one."""
    options: dict[str, dict[str, Any]] = {
        "causal_lm": {"join": False},
        "masked_lm": {"probability": 1.0, "mask_share": 1.0, "random_share": 0.0},
    }
    objective = part(name, **options.get(name, {}))
    kind = KINDS[objective.reads]
    layer = {"feedforward": EXPERTS | {"router": {"type": "softmax", "z_loss": 1.0}}}
    more: dict[str, Any] = {"layers": {"a": layer}, "pattern": ["a*2"]}
    net = model(
        "language_model", kind, **({"decoder": {"layer": layer}} if kind == "encoder_decoder" else more)
    ).train()
    items = objective.rows.prepare(TEXTS if objective.rows.fields == ("text",) else PAIRS, letters(), None)

    def extra(batch: Any) -> float:
        learned, plain = (objective.loss(net, batch, training).total for training in (True, False))
        return (learned - plain).item() / len(batch["labels"])

    rows, numbers = objective.rows, rng()
    pieces = [rows.collate([item], numbers) for item in items]
    lengths = [batch.get("decoder_input_ids", batch["input_ids"]).shape[1] for batch in pieces]
    expected = sum(length * extra(batch) for length, batch in zip(lengths, pieces, strict=True)) / sum(lengths)
    packed = [80, 99] if "packing" in objective.capabilities else []
    batches = [rows.collate(items, rng()), *(rows.collate_packed([items], length, rng()) for length in packed)]
    assert [extra(batch) for batch in batches] == pytest.approx([expected] * len(batches), rel=1e-5)


@looped("name", REGISTRY.names("objective"))
def test_what_an_objective_needs_is_named(name: str) -> None:
    """A field of the corpus, and each special token."""
    kind = REGISTRY.get("objective", name)
    rows = part(name, **kind.example).rows
    with pytest.raises(DataError, match=f"example 1: {name} requires {' and '.join(rows.fields)}; the example has no"):
        rows.prepare([{"nothing": "a"}], letters(sentinels=9), 40)
    for role in rows.required:
        with pytest.raises(DataError, match=f"{name} requires a special token for {role}; the tokenizer has "):
            part(name, **kind.example).rows.bind(letters(sentinels=9, **{role: None}))


@looped("name", REGISTRY.names("objective"))
def test_an_objective_is_three_small_things(name: str) -> None:
    kind = REGISTRY.get("objective", name)
    for thing, most in ((kind, 15), (kind.rows_type, 28), (kind.answers_type, 15)):
        own = {one for one in dir(thing) if one[0] != "_" and not hasattr(Component, one)} if thing else set()
        assert len(own) <= most, f"{thing.__name__}: {sorted(own)}"


class TestSeq2Seq:
    def test_items_and_batch(self) -> None:
        words, objective = letters(), part("seq2seq")
        items = objective.rows.prepare(PAIRS, words, None)
        start, end, pad = (words.special_ids[role] for role in ("start", "end", "pad"))
        assert items[1]["target"].tolist() == [start, *words.encode("bc"), end]
        assert objective.rows.lengths(items).tolist() == [[6, 11], [2, 3], [4, 2]]
        batch = objective.rows.collate(items, rng())
        assert batch["input_ids"].tolist()[1] == [*words.encode("a"), end, pad, pad, pad, pad]
        assert batch["attention_mask"].sum(1).tolist() == [6, 2, 4]
        assert batch["decoder_input_ids"].tolist()[2] == [start, *words.encode("z"), *[pad] * 9]
        assert batch["labels"].tolist() == [i for item in items for i in item["target"][1:]]
        assert len(batch["predicted"]) == len(batch["labels"]) == 11 + 3 + 2
        assert set(objective.rows.collate(items[1:2] * 2, rng())) == {"input_ids", "decoder_input_ids", "labels"}
        for options, begin, finish in (
            ({}, [], [end]),
            ({"source_end": False}, [], []),
            ({"source_start": True}, [start], [end]),
        ):
            rows = part("seq2seq", **options).rows
            framed = [*begin, *words.encode("a"), *finish]
            assert rows.prepare(PAIRS, words, None)[1]["source"].tolist() == framed == rows.prompt(words.encode("a"))

    def test_loss_and_gradients_are_those_of_single_tokens(self) -> None:
        net, objective = model("language_model", "encoder_decoder"), part("seq2seq", label_smoothing=0.3)
        items = objective.rows.prepare(PAIRS, letters(), None)
        batch = objective.rows.collate(items, rng())
        naive, smooth = torch.zeros(()), torch.zeros(())
        for item in items:
            source, target = (torch.from_numpy(item[side].astype(np.int64))[None] for side in ("source", "target"))
            logits = net(source, decoder_input_ids=target[:, :-1]).logits[0]
            plain = nats(logits, target[0, 1:].tolist())
            naive = naive + plain
            smooth = smooth + 0.7 * plain - 0.3 * logits.log_softmax(-1).mean(-1).sum()
        assert objective.loss(net, batch, training=False).count == 16
        for training, expected in ((False, naive), (True, smooth)):
            assert_same(net, objective.loss(net, batch, training).total, expected)

    def test_too_long_and_empty_are_left_out_aloud(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = part("seq2seq").rows
        assert len(rows.prepare([*PAIRS, {"source": "", "target": "a"}], letters(), 6)) == 2
        assert "seq2seq: 1 of 4 examples dropped: longer than 6 tokens" in caplog.text
        assert "1 of 4 examples dropped: source or target is empty" in caplog.text
        assert len(rows.prepare(PAIRS[:1], letters(), 11)) == 1
        with pytest.raises(DataError, match="none of 1 example can be used: 0 are empty, 1 longer than 10 tokens"):
            rows.prepare(PAIRS[:1], letters(), 10)
        with pytest.raises(UsageError, match=r"seq2seq cannot be packed; set data\.batch\.pack: false"):
            rows.collate_packed([[]], 30, rng())

    def test_baseline_reads_the_targets(self) -> None:
        objective = part("seq2seq")
        items = objective.rows.prepare(PAIRS * 20, letters(), None)
        found = objective.baseline(items, items[:3])
        assert found is not None and "targets alone" in found.name and 0 < found.loss < 1


class TestCausalLm:
    def test_blocks_meet_each_target_once(self) -> None:
        cases: list[tuple[list[Any], int | None]] = [
            ([range(10)], None), ([range(3), [], range(4, 8), [9]], 3), ([[0], range(2, 10)], 1),
        ]  # fmt: skip
        for texts, end in cases:
            joined = [text for text in texts if len(text)]
            stream = [id_ for text in joined for id_ in ([] if end is None or text is joined[0] else [end]) + [*text]]
            for size in range(1, 12):
                rows = [item["text"] for item in blocks(Stream(TokenIds.of(texts), end), size)]
                assert [t for row in rows for t in row[1:]] == stream[1:]
                assert all(2 <= len(row) <= size + 1 for row in rows)
                assert rejoined(rows, 100).tolist() == stream
                assert rejoined(rows, 4).tolist()[:4] == stream[:4]
        assert not len(blocks(Stream(TokenIds.of([[1]]), None), 4)) and not len(blocks(Stream(TokenIds.of([]), 0), 4))

    def test_texts_are_joined_by_the_end_token_or_rows_of_their_own(self) -> None:
        words, rows = letters(), part("causal_lm", block=8).rows
        items = rows.prepare(TEXTS, words, 16)
        start, end = words.special_ids["start"], words.special_ids["end"]
        first, *others = [words.encode(example["text"]) for example in TEXTS]
        assert rejoined([item["text"] for item in items], 100).tolist() == first + [
            id_ for text in others for id_ in (end, *text)
        ]
        assert rows.lengths(items).tolist() == [8, 8, 8, 8, 4]
        assert len(rows.prepare(TEXTS, words, 36)) == 5 and len(part("causal_lm").rows.prepare(TEXTS, words, 36)) == 1
        assert rows.prompt([7]) == [7] and rows.prompt([]) == [end]
        alone = part("causal_lm", join=False).rows
        assert alone.prepare(TEXTS, words, None)[1]["text"].tolist() == [start, *words.encode("jumps"), end]
        assert alone.prompt([7]) == [start, 7]

    def test_loss_and_gradients_are_those_of_single_tokens(self) -> None:
        net, objective = model("language_model", "decoder"), part("causal_lm", join=False)
        items = objective.rows.prepare(TEXTS, letters(), None)
        loss = objective.loss(net, objective.rows.collate_packed([items[:2], items[2:]], 30, rng()), training=True)
        naive = torch.zeros(())
        for item in items:
            ids = torch.from_numpy(item["text"].astype(np.int64))[None]
            naive = naive + nats(net(ids[:, :-1]).logits[0], ids[0, 1:].tolist())
        assert loss.count == sum(len(item["text"]) - 1 for item in items)
        assert_same(net, loss.total, naive)

    def test_packed_rows(self) -> None:
        rows = part("causal_lm", join=False).rows
        item = rows.prepare(TEXTS, letters(), None)[1]
        batch = rows.collate_packed([[item, item]], 14, rng())
        assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 0]]
        assert batch["segment_ids"].tolist() == [[1] * 6 + [2] * 6 + [0, 0]]
        assert batch["predicted"].tolist() == list(range(12))
        with pytest.raises(UsageError, match="12 tokens exceeds its length of 11"):
            rows.collate_packed([[item, item]], 11, rng())

    def test_wrong_input(self, caplog: pytest.LogCaptureFixture) -> None:
        lone, refusals = [{"text": "a"}, {"text": ""}], (UsageError, DataError)
        for options, texts, longest, message in (
            ({}, TEXTS, None, r"set objective\.block"),
            ({"block": 32}, TEXTS, 16, r"objective\.block is 32, but .* allows at most 16 tokens"),
            ({}, lone, 16, "requires at least two tokens, got 1"),
            ({"join": False}, TEXTS, 4, r"none of 3 examples.*longer than 4"),
        ):
            with pytest.raises(refusals, match=message):
                part("causal_lm", **options).rows.prepare(texts, letters(), longest)
        assert "1 of 2 examples dropped: the text is empty" in caplog.text
        joined = part("causal_lm").rows
        with pytest.raises(UsageError, match="already full"):
            joined.collate_packed([joined.prepare(TEXTS, letters(), 16)], 99, rng())
        with pytest.raises(ValidationError):
            part("causal_lm", block=0)
        part("causal_lm").rows.prepare(TEXTS, letters(end=None), 16)
        assert "no end token" in caplog.text

    def test_a_head_that_predicts_tokens_is_needed(self) -> None:
        labels = {"labels": torch.tensor([1, 2])}
        for head, kind, message in (
            ("none", "decoder", "the model has no head; use a head such as language_model"),
            (
                {"type": "language_model", "reads": "encoder"},
                "encoder_decoder",
                "reads the encoder, but tokens are pred",
            ),
        ):
            with pytest.raises(UsageError, match=message):
                token_loss(model(head, kind), torch.zeros(1, 2, 16), labels)

    def test_baseline_reads_the_whole_stream(self) -> None:
        objective = part("causal_lm", block=4)
        items = objective.rows.prepare([{"text": "abc" * 200}], letters(), 4)
        found = objective.baseline(items, items)
        assert found is not None and found.loss < 0.05


class TestMaskedLm:
    def test_long_texts_are_cut_not_lost(self) -> None:
        words, rows = letters(), part("masked_lm").rows
        items = rows.prepare(TEXTS, words, 8)
        start, end = words.special_ids["start"], words.special_ids["end"]
        assert rows.lengths(items).tolist() == [8, 8, 8, 3, 7, 8, 7]
        assert all(item["text"][0] == start and item["text"][-1] == end for item in items)
        inner = [int(id_) for item in items for id_ in item["text"][1:-1]]
        assert inner == [id_ for example in TEXTS for id_ in words.encode(example["text"])]
        bare = letters(start=None, end=None)
        assert part("masked_lm").rows.prepare(TEXTS, bare, None)[1]["text"].tolist() == bare.encode("jumps")

    def test_shares(self) -> None:
        words, objective = letters(), part("masked_lm")
        items = objective.rows.prepare([{"text": LETTERS * 100}] * 20, words, None)
        batch = objective.rows.collate(items, rng())
        original = torch.from_numpy(np.stack([item["text"] for item in items]).astype(np.int64)).flatten()
        places, labels = batch["predicted"], batch["labels"]
        assert original[places].tolist() == labels.tolist()
        hidden = batch["input_ids"].flatten()
        untouched = torch.ones(len(hidden), dtype=torch.bool)
        untouched[places] = False
        assert torch.equal(hidden[untouched], original[untouched])
        assert len(places) / (20 * 2700) == pytest.approx(0.15, abs=0.006)
        now = hidden[places]
        masked, same = now == words.special_ids["mask"], now == labels
        assert masked.float().mean().item() == pytest.approx(0.8, abs=0.02)
        assert same.float().mean().item() == pytest.approx(0.1 + 0.1 / 27, abs=0.015)
        others = set(now[~masked & ~same].tolist())
        assert others == set(words.encode(LETTERS))  # every ordinary token, and none that is special

    def test_at_least_one_a_row_and_no_special_token(self) -> None:
        words, objective = letters(), part("masked_lm", probability=1e-9)
        items = objective.rows.prepare([{"text": "a#b"}, {"text": "xyz" * 9}, {"text": "c"}], words, None)
        seen: Counter[int] = Counter()
        for seed in range(40):
            batch = objective.rows.collate(items, rng(seed))
            assert (batch["predicted"] // batch["input_ids"].shape[1]).tolist() == [0, 1, 2]
            assert not set(batch["labels"].tolist()) & set(words.special_ids.values())
            seen[int(batch["predicted"][0])] += 1
        assert set(seen) == {1, 3}  # either letter of the first text, never its unknown character

    @pytest.mark.parametrize("packed", [False, True])
    def test_loss_and_gradients_are_those_of_single_tokens(self, packed: bool) -> None:
        net, objective = model("masked_lm"), part("masked_lm", probability=0.5)
        items = objective.rows.prepare(TEXTS, letters(), None)
        rows = [items[:2], items[2:]] if packed else [[item] for item in items]
        batch = objective.rows.collate_packed(rows, 30, rng()) if packed else objective.rows.collate(items, rng())
        assert ("attention_mask" in batch) is not packed
        width = batch["input_ids"].shape[1]
        targets = dict(zip(batch["predicted"].tolist(), batch["labels"].tolist(), strict=True))
        naive, met = torch.zeros(()), 0
        for row, group in enumerate(rows):
            start = row * width
            for item in group:
                ids = batch["input_ids"].flatten()[start : start + len(item["text"])][None]
                logits = net(ids).logits[0]
                for place in range(len(item["text"])):
                    if start + place in targets:
                        naive = naive + nats(logits[place][None], [targets[start + place]])
                        met += 1
                start += len(item["text"])
        loss = objective.loss(net, batch, training=True)
        assert loss.count == met == len(targets)
        assert_same(net, loss.total, naive)

    def test_wrong_input(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(DataError, match="rows of 2 tokens are too short"):
            part("masked_lm").rows.prepare(TEXTS, letters(), 2)
        with pytest.raises(DataError, match="none of 2 examples can be used: the text is empty, or has only unknown"):
            part("masked_lm").rows.prepare([{"text": ""}, {"text": "##"}], letters(), None)
        assert "2 of 2 examples dropped" in caplog.text
        with pytest.raises(ValidationError, match=r"add up to 1\.3, but must not exceed 1 in total"):
            part("masked_lm", mask_share=0.8, random_share=0.5)

    def test_baseline_is_of_ordinary_tokens(self) -> None:
        objective = part("masked_lm")
        items = objective.rows.prepare([{"text": "aaab"}] * 50, letters(), None)
        found = objective.baseline(items, items)
        assert found is not None and found.accuracy == pytest.approx(0.75)
        size = letters().vocab_size
        expected = -(0.75 * np.log(151 / (200 + size)) + 0.25 * np.log(51 / (200 + size)))
        assert found.loss == pytest.approx(expected)


def item(source: list[int], target: list[int]) -> Item:
    return {"source": np.asarray(source, np.int32), "target": np.asarray([1, *target, 2], np.int32)}


def recipe(**data: Any) -> Recipe:
    probe = {"type": "induction", "symbols": 8, "length": 5, "shortest": 3, "following": 2}
    corpora = {split: {**probe, "split": split, "count": 20} for split in ("train", "valid", "test")}
    train = {**RECIPE["train"], "metrics": ["exact_match"], "steps": 2}
    whole = {**RECIPE, "objective": "completion", "train": train, "generate": {"max_new_tokens": 4}}
    return load_recipe({**whole, "data": {"tokenizer": "word", "batch": {"size": 4}, **corpora, **data}})


class TestCompletion:
    def test_the_loss_is_that_of_the_targets_alone(self) -> None:
        items = [item([5, 6, 7], [8, 9]), item([4], [3, 3, 3]), item([], [10])]
        net, made = model("language_model", "decoder"), part("completion")
        expected = torch.zeros(())
        for one in items:
            row, first = (
                torch.from_numpy(np.concatenate([one["source"], one["target"]])).long()[None],
                len(one["source"]),
            )
            expected = expected + nats(net(row[:, :-1]).logits[0, first:], row[0, first + 1 :].tolist())
        batch = made.rows.collate(items, rng())
        assert made.rows.lengths(items).tolist() == [6, 5, 2] and batch["input_ids"].shape == (3, 6)
        for given in (batch, made.rows.collate_packed([items[:2], items[2:]], 12, rng())):
            loss = made.loss(net, given, training=False)
            assert loss.count == 3 + 4 + 2 and loss.total.item() == pytest.approx(expected.item(), rel=1e-5)

    @pytest.mark.full
    def test_a_run_is_trained_measured_and_writes_what_comes_after_a_source(self, tmp_path: Any) -> None:
        run = trained(recipe(), tmp_path / "run")
        assert set(run.evaluate("test")) == {"loss", "exact_match"}
        (written,) = run.generate(["na nb nc na"])
        assert "na nb nc na" not in written
        assert not written.startswith(" ")  # the target is a text of its own, and no continuation of the source
        assert run.samples(2, "test")[0].source

    def test_what_does_not_fit_is_left_out_or_refused(self, caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
        trained(recipe(train={"type": "copying", "length": 12, "count": 30}, batch={"length": 10}), tmp_path / "run")
        assert "source and target are longer than 10 tokens" in caplog.text
        with pytest.raises(RecipeError, match="source"):
            recipe(train="docstrings")
        with pytest.raises(RecipeError, match="'completion' requires rows of at least 3 tokens"):
            recipe(batch={"length": 2})
        data = {"tokenizer": "word", "train": "copying"}
        with pytest.raises(RecipeError, match="completion"):
            load_recipe("bert-base", overrides={"objective": "completion", "data": data})
