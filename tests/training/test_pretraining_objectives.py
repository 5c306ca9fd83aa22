"""Objectives that learn from text alone: what is hidden, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tfkit.core.errors import DataError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.base import continuations
from tfkit.models import Model
from tfkit.training.objective.replaced_token import ReplacedToken
from tfkit.training.objective.rewriting import random_split

from . import made
from .made import part, rng

TEXTS = [{"text": "the quick brown fox jumps over it. all is well! so it is"}, {"text": "a dog"}, {"text": "it ran"}]
GENERATOR = ReplacedToken.example["generator"]


def letters(**special: Any) -> Tokenizer:
    return made.letters(f"{made.LETTERS}.!", **({"sentinels": 9} | special))


def model(head: Any, **keys: Any) -> Model:
    return made.model(head, **{"vocab_size": letters().vocab_size, "num_layers": 1, **keys})


def test_parted_gives_every_sum() -> None:
    found = {tuple(random_split(4, 2, rng(seed)).tolist()) for seed in range(50)}
    assert found == {(1, 3), (2, 2), (3, 1)}
    assert random_split(5, 1, rng(0)).tolist() == [5] and random_split(3, 3, rng(0)).tolist() == [1, 1, 1]


class TestSpanCorruption:
    @pytest.mark.parametrize("probability", [0.15, 0.5])
    def test_source_and_target_together_are_the_text(self, probability: float) -> None:
        words, objective = letters(), part("span_corruption", probability=probability)
        for item in objective.rows.prepare(TEXTS, words, None):
            for seed in range(20):
                source, target = (one.tolist() for one in objective.rows.spoiled(item["text"], rng(seed)))
                assert (source[-1], target[0], target[-1]) == tuple(
                    words.special_ids[r] for r in ("end", "start", "end")
                )
                spans: dict[int, list[int]] = {}
                for id_ in target[1:-1]:
                    if id_ in objective.rows._sentinels:
                        last = spans.setdefault(id_, [])
                    else:
                        last.append(id_)
                restored = [
                    one for id_ in source[:-1] for one in (spans[id_] if id_ in objective.rows._sentinels else [id_])
                ]
                assert restored == item["text"].tolist()
                assert list(spans) == list(objective.rows._sentinels[: len(spans)]) and spans[list(spans)[-1]] == []
                assert (len(source), len(target) - 1) == tuple(objective.rows.lengths([item])[0])

    def test_the_share_that_is_hidden(self) -> None:
        objective = part("span_corruption")
        objective.rows.bind(letters(sentinels=50))
        _, target = objective.rows.spoiled(np.arange(200, dtype=np.int32) % 20 + 60, rng(0))
        assert len(target) - 2 - 11 == 30  # 15 % in 10 spans, and a sentinel more than those

    def test_long_texts_fit(self) -> None:
        objective = part("span_corruption", probability=0.6)
        items = objective.rows.prepare(TEXTS, letters(), 12)
        assert objective.rows.lengths(items).max() <= 12
        assert sum(len(item["text"]) for item in items) >= len(TEXTS[0]["text"])

    def test_sentinels_are_needed(self) -> None:
        with pytest.raises(DataError, match=r"the tokenizer has 0 of them; set .*sentinels: 100"):
            part("span_corruption").rows.bind(letters(sentinels=0))


class TestDenoising:
    def test_the_target_is_the_text(self) -> None:
        words, objective = letters(), part("denoising")
        mask = words.special_ids["mask"]
        seen = 0
        for item in objective.rows.prepare(TEXTS, words, None):
            for seed in range(30):
                source, target = objective.rows.spoiled(item["text"], rng(seed))
                assert target.tolist()[1:-1] == item["text"].tolist()
                assert len(source) <= objective.rows.lengths([item])[0][0]
                seen += int((source == mask).sum())
        assert seen > 60

    def test_about_the_share_is_hidden_and_sentences_move(self) -> None:
        words, plain = letters(), part("denoising", shuffle=False, probability=0.3)
        item = plain.rows.prepare([{"text": "abcdefghij " * 30}], words, None)[0]
        kept = [
            sum(plain.rows.spoiled(item["text"], rng(seed))[0] != words.special_ids["mask"]) - 2 for seed in range(20)
        ]
        assert 0.68 < np.mean(kept) / len(item["text"]) < 0.85
        mover = part("denoising", probability=0)
        item = mover.rows.prepare(TEXTS[:1], words, None)[0]
        orders = {words.decode(mover.rows.spoiled(item["text"], rng(seed))[0].tolist()) for seed in range(40)}
        assert len(orders) == 6 and " all is well!the quick brown fox jumps over it. so it is" in orders


class TestNextSentence:
    def heads(self, classes: int = 2) -> dict[str, Any]:
        return {"next_sentence": {"type": "classifier", "num_classes": classes}}

    def test_pairs(self) -> None:
        words, objective = letters(), part("next_sentence")
        lines = [{"text": text} for text in ("ab", "cd", "ef", "gh")]
        items = objective.rows.prepare(lines, words, None)
        assert [words.decode(item["second"].tolist()) for item in items] == ["cd", "ef", "gh"]
        for item in items:
            assert item["other"].tolist() not in (item["first"].tolist(), item["second"].tolist())
        batch = objective.rows.collate(items, rng(3))
        assert batch["token_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1]
        assert {tuple(objective.rows.collate(items, rng(seed))["follows"].tolist()) for seed in range(60)} >= {
            (0, 0, 0), (1, 1, 1), (0, 1, 0),
        }  # fmt: skip
        short = objective.rows.prepare([{"text": "abcdefghi"}, {"text": "klmn"}, {"text": "opqrstu"}], words, 9)
        assert objective.rows.lengths(short).max() <= 9

    def test_the_loss_is_the_sum_of_two(self) -> None:
        objective = part("next_sentence")
        net = model("masked_lm", heads=self.heads())
        batch = objective.rows.collate(objective.rows.prepare(TEXTS, letters(), None), rng(0))
        out = net(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], token_type_ids=batch["token_type_ids"]
        )
        hidden = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1)[batch["predicted"]], batch["labels"])
        follows = torch.nn.functional.cross_entropy(out.heads["next_sentence"], batch["follows"])
        loss = objective.loss(net, batch, training=False)
        assert loss.total.item() / loss.count == pytest.approx((hidden + follows).item(), rel=1e-5)

    def test_wrong_input(self) -> None:
        with pytest.raises(DataError, match="requires at least three nonempty texts"):
            part("next_sentence").rows.prepare(TEXTS[:2], letters(), None)
        with pytest.raises(UsageError, match=r"has two classes, but model\.heads\.next_sentence has 1"):
            part("next_sentence").attach(model("masked_lm", heads=self.heads(1)))


class TestReplacedToken:
    def test_the_loss_is_the_sum_of_two(self) -> None:
        objective = part("replaced_token", generator=GENERATOR, weight=3.0)
        net = model("discriminator")
        objective.attach(net)
        batch = objective.rows.collate(objective.rows.prepare(TEXTS, letters(), None), rng(0))
        generator: Any = objective.module
        guessed = generator(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = guessed.logits.flatten(0, 1)[batch["predicted"]]
        of_generator = torch.nn.functional.cross_entropy(logits, batch["labels"])
        ids = batch["original"].clone().flatten()
        probabilities = logits.softmax(-1).cumsum(-1)
        ids[batch["predicted"]] = torch.stack(
            [(row < lot * row[-1]).sum() for row, lot in zip(probabilities, batch["draws"], strict=True)]
        )
        said = net(input_ids=ids.view_as(batch["original"]), attention_mask=batch["attention_mask"]).logits
        wrong = (ids.view_as(batch["original"]) != batch["original"]).float()
        real = batch["real"]
        of_model = torch.nn.functional.binary_cross_entropy_with_logits(said[real], wrong[real])
        loss = objective.loss(net, batch, training=False)
        assert loss.total.item() / loss.count == pytest.approx((3 * of_model + of_generator).item(), rel=1e-4)
        loss.total.backward()
        assert all(weight.grad is not None for weight in generator.parameters())

    def test_the_generator_shares_the_table(self) -> None:
        net = model("discriminator")
        shared, apart = (part("replaced_token", generator=GENERATOR, shared=one) for one in (True, False))
        for objective in (shared, apart):
            objective.attach(net)
        table = net.encoder.embedding.tokens.weight
        assert any(weight is table for weight in shared.module.parameters())
        assert not any(weight is table for weight in apart.module.parameters())
        assert shared.module.head.output.weight is table
        wider = part("replaced_token", generator={**GENERATOR, "d_model": 32})
        with pytest.raises(UsageError, match=r"is 32 wide, the model's 16; set d_embedding: 16"):
            wider.attach(net)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"vocab_size": 9}, "uses the model's vocab_size"),
            ({"d_modl": 3}, "d_modl: unknown option"),
            ({"head": "discriminator"}, "a model of type encoder with a masked_lm head"),
            ({"type": "decoder"}, "a model of type encoder"),
        ],
    )
    def test_a_wrong_generator(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            part("replaced_token", generator=GENERATOR | changes)

    def test_prediction(self) -> None:
        objective, net = part("replaced_token", generator=GENERATOR), model("discriminator")
        objective.rows.bind(letters())
        said = objective.answers.predict(net, [{"text": "abc"}, {"text": "a"}], letters())
        assert said[0]["tokens"] == ["<s>", "a", "b", "c", "</s>"] and len(said[1]["replaced"]) == 3
        assert all(0 < chance < 1 for one in said for chance in one["replaced"])


class TestMaskedLm:
    def test_whole_words_are_hidden_together(self) -> None:
        words, objective = letters(), part("masked_lm", whole_words=True, mask_share=1.0, random_share=0.0)
        items = objective.rows.prepare([{"text": "the quick brown fox"}], words, None)
        mask = words.special_ids["mask"]
        found = set()
        for seed in range(60):
            row = objective.rows.collate(items, rng(seed))["input_ids"][0].tolist()[1:-1]
            hidden = "".join("_" if id_ == mask else words.token(id_) for id_ in row)
            found.add(hidden)
            pieces = [hidden[:3], hidden[3:9], hidden[9:15], hidden[15:]]  # a word begins with the space before it
            assert all(set(piece) == {"_"} or "_" not in piece for piece in pieces), hidden
        assert len(found) > 4

    def test_continuations(self) -> None:
        config = REGISTRY.get("tokenizer", "wordpiece").Config.model_validate({"vocab_size": 60})
        pieces = config.build().fit(["walking walked talking talked"] * 3)
        inside = continuations(pieces)
        assert all(inside[id_] == token.startswith("##") for token, id_ in pieces.backend.get_vocab().items())
        config = REGISTRY.get("tokenizer", "bpe").Config.model_validate({"vocab_size": 60})
        marked = config.build().fit(["walking, walked talking talked"] * 3)
        inside = continuations(marked)
        for token, id_ in marked.backend.get_vocab().items():
            assert inside[id_] == (token[0].isalnum() and id_ not in marked.special_ids.values()), token

    @pytest.mark.parametrize("kind", ["bpe", "word", "wordpiece", "character"])
    def test_fills(self, kind: str) -> None:
        options: dict[str, Any] = {"special_tokens": {"mask": "<mask>"}}
        options |= {"vocab_size": 90} if kind in ("bpe", "wordpiece") else {}
        words = REGISTRY.get("tokenizer", kind).Config.model_validate(options).build().fit(["the cat sat on a mat"] * 9)
        objective, net = part("masked_lm"), model("masked_lm", vocab_size=words.vocab_size, max_length=40)
        objective.rows.bind(words)
        two, one = objective.answers.predict(net, [{"text": "the <mask> sat <mask>"}, {"text": "<mask> cat"}], words)
        assert [len(fill) for fill in two["fills"]] == [5, 5] and len(one["fills"]) == 1
        for fill in two["fills"]:
            probabilities = [choice["probability"] for choice in fill]
            assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1 + 1e-6
        first, second = (fill[0]["token"] for fill in two["fills"])
        assert two["filled"] == f"the {first} sat {second}"
        if kind == "word":  # the mask stands for the space before its word too
            (ids,) = objective.rows.read(["the <mask> sat"], words)
            plain = words.encode("the cat sat")
            assert ids[1:-1] == [plain[0], words.special_ids["mask"], plain[2]]
        with pytest.raises(UsageError, match="replace a word with <mask>, got 'nothing'"):
            objective.answers.predict(net, [{"text": "nothing"}], words)
        with pytest.raises(UsageError, match="exceeds the model's maximum length of 40"):
            objective.answers.predict(net, [{"text": "<mask> sat" * 40}], words)
