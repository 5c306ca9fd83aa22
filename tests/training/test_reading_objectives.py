"""The objectives that say something about a text, against their formulas; and what they predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tfkit.core.errors import DataError, UsageError
from tfkit.training.objective.labels import ordered
from tfkit.training.objective.reading import cut_pair
from tfkit.training.objective.span import best_span, covering
from tfkit.training.objective.token_classification import cuts, first_tokens

from .made import batch_of, letters, model, part

LABELLED = [
    {"text": "good film", "label": "for"},
    {"text": "bad", "label": "against"},
    {"text": "so so", "label": "neither"},
]
TAGGED = [{"text": "the cat sat", "tags": "D N V"}, {"text": "a dog", "tags": "D N"}]
QUESTIONS = [
    {"question": "who sat", "context": "the cat sat on a mat", "answer": "the cat"},
    {"question": "where", "context": "on a mat it sat", "answer": "a mat"},
]


def test_labels_are_in_the_order_of_their_names_and_numbers_of_their_size() -> None:
    assert ordered(["b", "a", "b"]) == ("a", "b")
    assert ordered(["10", "9", "-1"]) == ("-1", "9", "10")


class TestClassification:
    def test_loss_is_the_cross_entropy_of_the_labels(self) -> None:
        objective, net = part("classification"), model({"type": "classifier", "num_classes": 3})
        batch = batch_of(objective, LABELLED)
        assert objective.rows.labels == ("against", "for", "neither")
        assert batch["labels"].tolist() == [1, 0, 2]
        loss = objective.loss(net, batch, training=False)
        logits = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        probabilities = logits.log_softmax(-1)
        expected = -sum(probabilities[row, label].item() for row, label in enumerate([1, 0, 2]))
        assert loss.count == 3 and loss.total.item() == pytest.approx(expected, rel=1e-5)
        smooth = part("classification", label_smoothing=0.5)
        batch_of(smooth, LABELLED)
        assert smooth.loss(net, batch, training=False).total.item() == pytest.approx(loss.total.item())
        assert smooth.loss(net, batch, training=True).total.item() != pytest.approx(loss.total.item())

    def test_pairs_have_types_and_a_separator(self) -> None:
        words, objective = letters(), part("classification")
        pair = [{"text": "ab", "second": "c", "label": "x"}, {"text": "a", "second": "bcde", "label": "y"}]
        batch = batch_of(objective, pair)
        start, end, separator = (words.special_ids[role] for role in ("start", "end", "separator"))
        assert batch["input_ids"][0].tolist()[:6] == [start, *words.encode("ab"), separator, *words.encode("c"), end]
        assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]
        cut = objective.rows.prepare(pair, words, 6)
        assert [len(item["text"]) for item in cut] == [6, 6]
        assert [len(part) for part in cut_pair(np.arange(9), np.arange(3), 6)] == [3, 3]
        assert [len(part) for part in cut_pair(np.arange(9), np.arange(2), 6)] == [4, 2]

    def test_prediction(self) -> None:
        objective, net = part("classification"), model({"type": "classifier", "num_classes": 3}, max_length=8)
        objective.rows.prepare(LABELLED, letters(), None)
        long, short, empty = objective.answers.predict(
            net, [{"text": "a very long text"}, {"text": "bad"}, {"text": ""}], letters()
        )
        assert list(short) == ["text", "label", "probability", "labels"]
        assert sum(short["labels"].values()) == pytest.approx(1)
        assert list(short["labels"].values()) == sorted(short["labels"].values(), reverse=True)
        assert short["label"] == next(iter(short["labels"])) and long["labels"].keys() == empty["labels"].keys()
        alone = objective.answers.predict(net, [{"text": "bad"}], letters())[0]
        assert alone["probability"] == pytest.approx(short["probability"], abs=1e-6)
        nameless = part("classification")
        nameless.rows.bind(letters())
        assert set(nameless.answers.predict(net, [{"text": "bad"}], letters())[0]["labels"]) == {"0", "1", "2"}

    def test_a_head_by_name_and_a_causal_model(self) -> None:
        heads = {"kind": {"type": "classifier", "num_classes": 3, "pool": "last"}}
        net = model("language_model", "decoder", heads=heads)
        objective = part("classification", head="kind")
        loss = objective.loss(net, batch_of(objective, LABELLED), training=True)
        loss.total.backward()
        assert all(weight.grad is not None for weight in net.heads["kind"].parameters())
        with pytest.raises(UsageError, match=r"trains the model's head 'other', which is missing"):
            part("classification", head="other").loss(net, batch_of(objective, LABELLED), training=True)

    def test_wrong_input(self, caplog: pytest.LogCaptureFixture) -> None:
        objective = part("classification")
        objective.rows.prepare([*LABELLED, {"text": " ", "label": "for"}], letters(), 6)
        assert "1 of 4 examples dropped: the text is empty" in caplog.text
        assert "2 of 4 texts are truncated to 6 tokens" in caplog.text
        assert len(objective.rows.prepare([LABELLED[0], {"text": "a", "label": "new"}], letters(), None)) == 1
        assert "1 of 2 examples dropped: not in the training corpus: 'new'" in caplog.text
        with pytest.raises(DataError, match="none of 1 example can be used: not in the training corpus: 'new'"):
            objective.rows.prepare([{"text": "a", "label": "new"}], letters(), None)
        with pytest.raises(UsageError, match="the head has 2 classes, but the training corpus has 3 labels"):
            objective.attach(model({"type": "classifier", "num_classes": 2}))
        with pytest.raises(DataError, match="are too short for a text"):
            objective.rows.prepare(LABELLED, letters(), 3)

    def test_baseline(self) -> None:
        objective = part("classification")
        items = objective.rows.prepare([*LABELLED, LABELLED[0]], letters(), None)
        found = objective.baseline(items, items)
        assert found is not None and found.name == "most frequent label" and found.accuracy == 0.5


class TestTokenClassification:
    def test_the_loss_is_of_the_first_token_of_each_word(self) -> None:
        objective, net = part("token_classification"), model({"type": "token_classifier", "num_classes": 3})
        batch = batch_of(objective, TAGGED)
        assert objective.rows.labels == ("D", "N", "V") and batch["labels"].tolist() == [0, 1, 2, 0, 1]
        width = batch["input_ids"].shape[1]
        # start, then the letters: a word begins after each space
        assert batch["predicted"].tolist() == [1, 5, 9, width + 1, width + 3]
        logits = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.flatten(0, 1)
        probabilities = logits.log_softmax(-1)
        places = zip(batch["predicted"].tolist(), [0, 1, 2, 0, 1], strict=True)
        loss = objective.loss(net, batch, training=False)
        assert loss.count == 5
        wanted = -sum(probabilities[place, tag].item() for place, tag in places)
        assert loss.total.item() == pytest.approx(wanted, rel=1e-5)

    def test_first_tokens(self) -> None:
        # "ab c": a token that is a space only, one that begins with the space, and one that goes on
        assert [list(one) for one in first_tokens("ab c", [(0, 1), (1, 2), (2, 4)])] == [[0, 1], [0, 2]]
        assert [list(one) for one in first_tokens("ab c", [(0, 2), (2, 3), (3, 4)])] == [[0, 1], [0, 2]]
        assert [list(one) for one in first_tokens("ab c d", [(0, 2), (5, 6)])] == [[0, 2], [0, 1]]

    def test_cuts_fall_before_words(self) -> None:
        assert list(cuts(10, np.asarray([0, 3, 6, 8]), 4)) == [(0, 3), (3, 6), (6, 10)]
        assert list(cuts(9, np.asarray([0]), 4)) == [(0, 4), (4, 8), (8, 9)]
        assert list(cuts(5, np.asarray([0, 2]), None)) == [(0, 5)]

    def test_prediction_keeps_every_word(self) -> None:
        objective, net = part("token_classification"), model({"type": "token_classifier", "num_classes": 3})
        objective.rows.prepare(TAGGED, letters(), None)
        short = model({"type": "token_classifier", "num_classes": 3}, max_length=8)  # and the same weights
        for one in (net, short):
            long, empty = objective.answers.predict(one, [{"text": "the cat sat on  a mat"}, {"text": ""}], letters())
            assert long["words"] == ["the", "cat", "sat", "on", "a", "mat"] and len(long["tags"]) == 6
            assert set(long["tags"]) <= {"D", "N", "V"} and min(long["probabilities"]) > 0
            assert objective.answers.text(long) == " ".join(long["tags"]) and empty["words"] == empty["tags"] == []
        alone = objective.answers.predict(net, [{"text": "a dog"}], letters())[0]
        beside = objective.answers.predict(net, [{"text": "the cat sat on a mat"}, {"text": "a dog"}], letters())[1]
        assert alone["tags"] == beside["tags"]
        assert alone["probabilities"] == pytest.approx(beside["probabilities"], abs=1e-6)

    def test_wrong_input(self, caplog: pytest.LogCaptureFixture) -> None:
        objective = part("token_classification")
        with pytest.raises(DataError, match="example 1: 1 tags for 2 words"):
            part("token_classification").rows.prepare([{"text": "a b", "tags": "X"}], letters(), None)
        objective.rows.prepare(TAGGED, letters(), None)
        items = objective.rows.prepare([{"text": "the cat ran", "tags": "D X V"}], letters(), None)
        assert items[0]["tags"].tolist() == [0, 2] and np.flatnonzero(items[0]["firsts"]).tolist() == [1, 9]
        assert "1 of 3 tags dropped: not in the training corpus: 'X'" in caplog.text
        with pytest.raises(DataError, match="or none of their tags is in the training corpus"):
            objective.rows.prepare([{"text": "a", "tags": "X"}], letters(), None)


class TestSpan:
    def test_the_loss_is_over_the_places_of_the_context(self) -> None:
        objective, net = part("span"), model("span")
        batch = batch_of(objective, QUESTIONS)
        logits = net(
            input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"),
            token_type_ids=batch["token_type_ids"],
        ).logits  # fmt: skip
        expected = 0.0
        for row, (example, question) in enumerate(zip(QUESTIONS, ("who sat", "where"), strict=True)):
            first = 1 + len(question) + 1  # start and separator
            inside = logits[row, first : first + len(example["context"])].log_softmax(0)
            begin = example["context"].index(example["answer"])
            expected -= (inside[begin, 0] + inside[begin + len(example["answer"]) - 1, 1]).item()
        loss = objective.loss(net, batch, training=False)
        assert loss.count == 4 and loss.total.item() == pytest.approx(expected, rel=1e-5)

    def test_prediction_is_a_piece_of_the_context(self) -> None:
        objective = part("span", longest_answer=4)
        objective.rows.bind(letters())
        for longest in (None, 16):
            net = model("span", **({} if longest is None else {"max_length": longest}))
            for example, said in zip(QUESTIONS, objective.answers.predict(net, QUESTIONS, letters()), strict=True):
                assert said["answer"] == example["context"][said["begin"] : said["end"]]
                assert len(said["answer"]) <= 4 and 0 < said["probability"] <= 1

    def test_best_span(self) -> None:
        logits = torch.tensor([[0.0, 9.0], [5.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        assert best_span(logits, 2)[:3] == (9.0, 0, 0)  # an end before its begin is none
        assert best_span(logits[1:], 2)[:3] == (6.0, 0, 1)
        assert best_span(logits[1:], 3)[:3] == (8.0, 0, 2)

    def test_covering(self) -> None:
        places = [(0, 3), (3, 7), (8, 9)]
        assert covering(places, 4, 9) == (1, 2) and covering(places, 0, 3) == (0, 0)
        assert covering(places[1:], 2, 5) is None and covering(places[:2], 4, 9) is None

    def test_the_answer_is_at_its_offset(self) -> None:
        rows = part("span").rows
        one = {"question": "who", "context": "a cat, the cat", "answer": "cat"}
        firsts = []
        for more in ({}, {"answer_start": "2"}, {"answer_start": "11"}):
            (item,) = rows.prepare([one | more], letters(), None)
            firsts.append(int(np.flatnonzero(item["answer"])[0] - np.flatnonzero(item["inside"])[0]))
        assert firsts == [2, 2, 11]
        for start in ("3", "-1", "99", "x"):
            with pytest.raises(
                DataError, match=f"example 1: answer_start {start} is not the offset of the answer 'cat'"
            ):
                rows.prepare([one | {"answer_start": start}], letters(), None)

    def test_windows_cover_the_context(self, caplog: pytest.LogCaptureFixture) -> None:
        objective = part("span")
        context = "x" * 30 + "yes" + "x" * 9
        examples = [{"question": "w", "context": context, "answer": "yes"}]
        items = objective.rows.prepare(examples, letters(), 18)
        assert items and all(len(item["text"]) <= 18 for item in items)
        assert all(item["answer"].sum() == 3 for item in items)
        with pytest.raises(DataError, match=r"none of 1 example .* is not in the context"):
            objective.rows.prepare([{**examples[0], "answer": "no"}], letters(), 18)
        with pytest.raises(DataError, match="a question of 20 tokens leaves no room"):
            objective.rows.prepare([{**examples[0], "question": "q" * 20}], letters(), 18)


class TestRegression:
    def test_loss_and_prediction(self) -> None:
        objective, net = part("regression"), model({"type": "regression", "pool": "mean"})
        batch = batch_of(objective, [{"text": "ab", "label": "1.5"}, {"text": "abcd", "label": "-2"}])
        values = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = objective.loss(net, batch, training=False)
        assert loss.total.item() == pytest.approx(((values[0] - 1.5) ** 2 + (values[1] + 2) ** 2).item(), rel=1e-5)
        said = objective.answers.predict(net, [{"text": "ab"}], letters())
        assert said[0]["value"] == pytest.approx(values[0].item(), abs=1e-5)
        assert float(objective.answers.text(said[0])) == said[0]["value"]
        for label in ("many", "nan", "inf", ""):
            with pytest.raises(DataError, match=f"example 1: the label is '{label}'; regression requires numbers"):
                part("regression").rows.prepare([{"text": "a", "label": label}], letters(), None)
