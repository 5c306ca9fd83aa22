import logging
from collections import Counter

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tfkit.training.objective
from tfkit.core.component import Component
from tfkit.core.errors import DataError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.token_ids import Stream, TokenIds
from tfkit.data.tokenizer import Character, Tokenizer
from tfkit.models import build_model
from tfkit.recipe.load import load_recipe
from tfkit.training.objective import CausalLm, MaskedLm, Objective, Seq2Seq
from tfkit.training.objective.base import token_loss
from tfkit.training.objective.causal_lm import blocks, rejoined

from ..sampling import looped

LETTERS = "abcdefghijklmnopqrstuvwxyz "
PAIRS = [{"source": "hello", "target": "world wide"}, {"source": "a", "target": "bc"}, {"source": "abc", "target": "z"}]
TEXTS = [{"text": "the quick brown fox"}, {"text": "jumps"}, {"text": "over it all"}]


def tokenizer(**special: str | None) -> Tokenizer:
    config = Character.Config.model_validate({"special_tokens": {"mask": "<mask>"} | special})
    fitted: Tokenizer = config.build().fit([LETTERS])
    return fitted


def model(kind: str, head: str | dict[str, str] | None = "language_model", vocab_size: int = 40, **more) -> nn.Module:
    layer = {
        "residual": "pre_norm",
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 2},
        "feedforward": {"type": "mlp", "d_ff": 32},
    }
    shared = {"shared": True} if kind == "encoder_decoder" else {}
    recipe = {
        "type": kind,
        "d_model": 16,
        "vocab_size": vocab_size,
        "embedding": {"type": "tokens", **shared},
        "position": "sinusoidal",
        "layer": layer,
        "num_layers": 2,
        "init": {"type": "normal", "std": 0.3},
    }
    if head is not None:
        recipe["head"] = head
    return build_model(load_recipe({"tfkit": 1, "model": recipe | more}).blueprint(), seed=1).eval()


def part(kind: type[Objective], **options: object) -> Objective:
    made: Objective = kind.Config.model_validate(options).build()
    return made


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def nats(logits: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Token by token, the slow way."""
    probabilities = logits.double().softmax(-1)
    return -sum((probabilities[place, label].log() for place, label in enumerate(labels)), torch.zeros(()).double())


def gradients(net: nn.Module, total: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    total.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()]


def assert_same(net: nn.Module, total: torch.Tensor, naive: torch.Tensor) -> None:
    assert total.item() == pytest.approx(naive.item(), rel=1e-5)
    for one, other in zip(gradients(net, total), gradients(net, naive), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


EXPERTS = {"type": "experts", "num_experts": 4, "num_active": 1, "expert": {"type": "mlp", "d_ff": 8}}
KINDS = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}


@looped("name", ["causal_lm", "completion", "chat", "masked_lm", "seq2seq", "denoising"])
def test_padding_is_no_load_of_experts(name):
    """The z-loss of a padded or packed batch is the mean over the tokens of its texts, read one by one."""
    options = {"causal_lm": {"join": False}, "masked_lm": {"probability": 1.0, "mask_share": 1.0, "random_share": 0.0}}
    objective = part(REGISTRY.get("objective", name), **options.get(name, {}))
    kind = KINDS[objective.reads]
    layer = {"feedforward": EXPERTS | {"router": {"type": "softmax", "z_loss": 1.0}}}
    more = {"decoder": {"layer": layer}} if kind == "encoder_decoder" else {"layers": {"a": layer}, "pattern": ["a*2"]}
    net = model(kind, **more).train()
    items = objective.rows.prepare(TEXTS if objective.rows.fields == ("text",) else PAIRS, tokenizer(), None)

    def extra(batch):
        trained, plain = (objective.loss(net, batch, training).total for training in (True, False))
        return (trained - plain).item() / len(batch["labels"])

    rows, numbers = objective.rows, rng()
    pieces = [rows.collate([item], numbers) for item in items]
    lengths = [batch.get("decoder_input_ids", batch["input_ids"]).shape[1] for batch in pieces]
    expected = sum(length * extra(batch) for length, batch in zip(lengths, pieces, strict=True)) / sum(lengths)
    packed = [80, 99] if "packing" in objective.capabilities else []
    batches = [rows.collate(items, rng()), *(rows.collate_packed([items], length, rng()) for length in packed)]
    assert [extra(batch) for batch in batches] == pytest.approx([expected] * len(batches), rel=1e-5)


@pytest.mark.parametrize("name", ["seq2seq", "causal_lm", "masked_lm"])
def test_catalogue_and_contract(name):
    kind = REGISTRY.get("objective", name)
    assert kind.reads in {"encoder_decoder", "causal", "bidirectional"} and kind.rows_type.fields and kind.heads
    config = kind.Config.model_validate({})
    assert kind.Config.model_validate({k: v for k, v in config.spelled().items() if k != "type"}) == config
    assert all(field.description for field in kind.Config.model_fields.values())
    assert f"| {name} |" in (tfkit.training.objective.__doc__ or "")


class TestSeq2Seq:
    def test_items_and_batch(self):
        words, objective = tokenizer(), part(Seq2Seq)
        items = objective.rows.prepare(PAIRS, words, None)
        start, end, pad = (words.special_ids[role] for role in ("start", "end", "pad"))
        assert items[1]["source"].tolist() == [*words.encode("a"), end]
        assert items[1]["target"].tolist() == [start, *words.encode("bc"), end]
        assert objective.rows.lengths(items).tolist() == [[6, 11], [2, 3], [4, 2]]
        batch = objective.rows.collate(items, rng())
        assert batch["input_ids"].tolist()[1] == [*words.encode("a"), end, pad, pad, pad, pad]
        assert batch["attention_mask"].sum(1).tolist() == [6, 2, 4]
        assert batch["decoder_input_ids"].tolist()[2] == [start, *words.encode("z"), *[pad] * 9]
        assert batch["labels"].tolist() == [i for item in items for i in item["target"][1:]]
        assert len(batch["predicted"]) == len(batch["labels"]) == 11 + 3 + 2
        assert objective.rows.prompt(words.encode("a")) == [*words.encode("a"), end]

    def test_no_mask_where_nothing_is_padded(self):
        objective = part(Seq2Seq)
        items = objective.rows.prepare(PAIRS[1:2] * 2, tokenizer(), None)
        assert set(objective.rows.collate(items, rng())) == {"input_ids", "decoder_input_ids", "labels"}

    def test_source_without_end(self):
        words, objective = tokenizer(), part(Seq2Seq, source_end=False)
        items = objective.rows.prepare(PAIRS, words, None)
        assert items[1]["source"].tolist() == words.encode("a") == objective.rows.prompt(words.encode("a"))

    def test_source_with_start(self):
        words, objective = tokenizer(), part(Seq2Seq, source_start=True)
        items = objective.rows.prepare(PAIRS, words, None)
        framed = [words.special_ids["start"], *words.encode("a"), words.special_ids["end"]]
        assert items[1]["source"].tolist() == framed == objective.rows.prompt(words.encode("a"))

    def test_loss_and_gradients_are_those_of_single_tokens(self):
        net, objective = model("encoder_decoder"), part(Seq2Seq, label_smoothing=0.3)
        items = objective.rows.prepare(PAIRS, tokenizer(), None)
        loss = objective.loss(net, objective.rows.collate(items, rng()), training=False)
        naive = torch.zeros(())
        for item in items:
            source, target = (torch.from_numpy(item[side].astype(np.int64))[None] for side in ("source", "target"))
            out = net(source, decoder_input_ids=target[:, :-1])
            naive = naive + nats(out.logits[0], target[0, 1:].tolist())
        assert loss.count == 16
        assert_same(net, loss.total, naive)

    def test_smoothing_in_training_only(self):
        net, objective = model("encoder_decoder"), part(Seq2Seq, label_smoothing=0.3)
        items = objective.rows.prepare(PAIRS[:1], tokenizer(), None)
        batch = objective.rows.collate(items, rng())
        out = net(batch["input_ids"], decoder_input_ids=batch["decoder_input_ids"])
        logs = out.logits[0].log_softmax(-1)
        plain = -logs.gather(1, batch["labels"][:, None]).sum()
        smooth = 0.7 * plain - 0.3 * logs.mean(-1).sum()
        assert objective.loss(net, batch, training=False).total.item() == pytest.approx(plain.item(), rel=1e-5)
        assert_same(net, objective.loss(net, batch, training=True).total, smooth)

    def test_too_long_and_empty_are_left_out_aloud(self, caplog):
        objective = part(Seq2Seq)
        examples = [*PAIRS, {"source": "", "target": "a"}]
        with caplog.at_level(logging.WARNING, "tfkit"):
            items = objective.rows.prepare(examples, tokenizer(), 6)
        assert len(items) == 2
        assert "seq2seq: 1 of 4 examples dropped: longer than 6 tokens" in caplog.text
        assert "1 of 4 examples dropped: source or target is empty" in caplog.text
        with pytest.raises(DataError, match="none of 1 example can be used: 0 are empty, 1 longer than 3 tokens"):
            objective.rows.prepare(PAIRS[:1], tokenizer(), 3)

    def test_the_limit_is_exact(self):
        assert len(part(Seq2Seq).rows.prepare(PAIRS[:1], tokenizer(), 11)) == 1
        with pytest.raises(DataError):
            part(Seq2Seq).rows.prepare(PAIRS[:1], tokenizer(), 10)

    def test_wrong_input(self):
        objective = part(Seq2Seq)
        with pytest.raises(DataError, match=r"seq2seq requires a special token for start; the tokenizer has pad, end"):
            objective.rows.prepare(PAIRS, tokenizer(start=None), None)
        with pytest.raises(DataError, match="example 1: seq2seq requires source and target; the example has text"):
            objective.rows.prepare(TEXTS, tokenizer(), None)
        items = objective.rows.prepare(PAIRS, tokenizer(), None)
        with pytest.raises(UsageError, match=r"seq2seq cannot be packed; set data\.batch\.pack: false"):
            objective.rows.collate_packed([items], 30, rng())

    def test_baseline_reads_the_targets(self):
        objective = part(Seq2Seq)
        items = objective.rows.prepare(PAIRS * 20, tokenizer(), None)
        found = objective.baseline(items, items[:3])
        assert found is not None and "targets alone" in found.name and 0 < found.loss < 1


class TestCausalLm:
    def test_blocks_meet_each_target_once(self):
        for texts, end in (([range(10)], None), ([range(3), [], range(4, 8), [9]], 3), ([[0], range(2, 10)], 1)):
            for size in range(1, 12):
                rows = [item["text"] for item in blocks(Stream(TokenIds.of(texts), end), size)]
                joined = [text for text in texts if len(text)]
                stream = [
                    id_ for text in joined for id_ in ([] if end is None or text is joined[0] else [end]) + [*text]
                ]
                assert [t for row in rows for t in row[1:]] == stream[1:]
                assert all(2 <= len(row) <= size + 1 for row in rows)
                assert rejoined(rows, 100).tolist() == stream
                assert rejoined(rows, 4).tolist()[:4] == stream[:4]
        assert not len(blocks(Stream(TokenIds.of([[1]]), None), 4)) and not len(blocks(Stream(TokenIds.of([]), 0), 4))

    def test_texts_are_joined_by_the_end_token(self):
        words, objective = tokenizer(), part(CausalLm, block=8)
        items = objective.rows.prepare(TEXTS, words, 16)
        end = words.special_ids["end"]
        ids = [words.encode(example["text"]) for example in TEXTS]
        stream = [*ids[0], end, *ids[1], end, *ids[2]]
        assert rejoined([item["text"] for item in items], 100).tolist() == stream
        assert objective.rows.lengths(items).tolist() == [8, 8, 8, 8, 4]
        assert (
            len(objective.rows.prepare(TEXTS, words, 36)) == 5
            and len(part(CausalLm).rows.prepare(TEXTS, words, 36)) == 1
        )

    def test_rows_of_their_own(self):
        words, objective = tokenizer(), part(CausalLm, join=False)
        items = objective.rows.prepare(TEXTS, words, None)
        start, end = words.special_ids["start"], words.special_ids["end"]
        assert items[1]["text"].tolist() == [start, *words.encode("jumps"), end]
        assert objective.rows.prompt([7]) == [start, 7] and part_bound(CausalLm, join=True).rows.prompt([7]) == [7]
        assert part_bound(CausalLm, join=True).rows.prompt([]) == [end]

    @pytest.mark.parametrize("packed", [False, True])
    def test_loss_and_gradients_are_those_of_single_tokens(self, packed):
        net, objective = model("decoder"), part(CausalLm, join=False)
        items = objective.rows.prepare(TEXTS, tokenizer(), None)
        batch = (
            objective.rows.collate_packed([items[:2], items[2:]], 30, rng())
            if packed
            else objective.rows.collate(items, rng())
        )
        loss = objective.loss(net, batch, training=True)
        naive = torch.zeros(())
        for item in items:
            ids = torch.from_numpy(item["text"].astype(np.int64))[None]
            naive = naive + nats(net(ids[:, :-1]).logits[0], ids[0, 1:].tolist())
        assert loss.count == sum(len(item["text"]) - 1 for item in items)
        assert_same(net, loss.total, naive)

    def test_packed_rows(self):
        objective = part(CausalLm, join=False)
        items = objective.rows.prepare(TEXTS, tokenizer(), None)
        batch = objective.rows.collate_packed([[items[1], items[1]]], 14, rng())
        assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 0]]
        assert batch["segment_ids"].tolist() == [[1] * 6 + [2] * 6 + [0, 0]]
        assert batch["predicted"].tolist() == list(range(12))
        with pytest.raises(UsageError, match="12 tokens exceeds its length of 11"):
            objective.rows.collate_packed([[items[1], items[1]]], 11, rng())

    def test_auxiliary_loss_counts_in_training_only(self):
        objective = part_bound(CausalLm, join=False)
        net = model("decoder")

        class WithRouter(nn.Module):
            head = head_of_last = net.head

            def forward(self, *args, **kwargs):
                out = net(*args, **kwargs)
                out.auxiliary_loss = torch.tensor(0.5)
                return out

        batch = objective.rows.collate(objective.rows.prepare(TEXTS, tokenizer(), None), rng())
        trained, plain = (objective.loss(WithRouter(), batch, training) for training in (True, False))
        assert trained.total.item() == pytest.approx(plain.total.item() + 0.5 * plain.count, rel=1e-6)

    def test_wrong_input(self, caplog):
        with pytest.raises(UsageError, match=r"set objective\.block"):
            part(CausalLm).rows.prepare(TEXTS, tokenizer(), None)
        with pytest.raises(UsageError, match=r"objective\.block is 32, but .* allows at most 16 tokens"):
            part(CausalLm, block=32).rows.prepare(TEXTS, tokenizer(), 16)
        with pytest.raises(DataError, match="requires at least two tokens, got 1"):
            part(CausalLm).rows.prepare([{"text": "a"}, {"text": ""}], tokenizer(), 16)
        assert "1 of 2 examples dropped: the text is empty" in caplog.text
        with pytest.raises(DataError, match=r"none of 3 examples.*longer than 4"):
            part(CausalLm, join=False).rows.prepare(TEXTS, tokenizer(), 4)
        joined = part(CausalLm)
        items = joined.rows.prepare(TEXTS, tokenizer(), 16)
        with pytest.raises(UsageError, match="already full"):
            joined.rows.collate_packed([items], 99, rng())
        with pytest.raises(ValidationError):
            part(CausalLm, block=0)
        part(CausalLm).rows.prepare(TEXTS, tokenizer(end=None), 16)
        assert "no end token" in caplog.text

    def test_a_head_that_predicts_tokens_is_needed(self):
        objective = part_bound(CausalLm, join=False)
        batch = objective.rows.collate(objective.rows.prepare(TEXTS, tokenizer(), None), rng())
        with pytest.raises(UsageError, match="the model has no head; use a head such as language_model"):
            token_loss(model("decoder", head=None), torch.zeros(3, 20, 16), batch)

    def test_a_head_that_reads_the_encoder_takes_no_loss_of_the_decoder(self):
        net = model("encoder_decoder", head={"type": "language_model", "reads": "encoder"})
        with pytest.raises(UsageError, match="reads the encoder, but tokens are predicted by the decoder"):
            token_loss(net, torch.zeros(1, 2, 16), {"labels": torch.tensor([1, 2])})

    def test_baseline_reads_the_whole_stream(self):
        objective = part(CausalLm, block=4)
        items = objective.rows.prepare([{"text": "abc" * 200}], tokenizer(), 4)
        found = objective.baseline(items, items)
        assert found is not None and found.loss < 0.05


class TestMaskedLm:
    def test_long_texts_are_cut_not_lost(self):
        words, objective = tokenizer(), part(MaskedLm)
        items = objective.rows.prepare(TEXTS, words, 8)
        start, end = words.special_ids["start"], words.special_ids["end"]
        assert objective.rows.lengths(items).tolist() == [8, 8, 8, 3, 7, 8, 7]
        assert all(item["text"][0] == start and item["text"][-1] == end for item in items)
        assert [int(i) for item in items for i in item["text"][1:-1]] == [
            i for e in TEXTS for i in words.encode(e["text"])
        ]
        bare = tokenizer(start=None, end=None)
        assert part(MaskedLm).rows.prepare(TEXTS, bare, None)[1]["text"].tolist() == bare.encode("jumps")

    def test_shares(self):
        words, objective = tokenizer(), part(MaskedLm)
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

    def test_at_least_one_a_row_and_no_special_token(self):
        words, objective = tokenizer(), part(MaskedLm, probability=1e-9)
        items = objective.rows.prepare([{"text": "a#b"}, {"text": "xyz" * 9}, {"text": "c"}], words, None)
        seen: Counter[int] = Counter()
        for seed in range(40):
            batch = objective.rows.collate(items, rng(seed))
            assert (batch["predicted"] // batch["input_ids"].shape[1]).tolist() == [0, 1, 2]
            assert not set(batch["labels"].tolist()) & set(words.special_ids.values())
            seen[int(batch["predicted"][0])] += 1
        assert set(seen) == {1, 3}  # either letter of the first text, never its unknown character

    def test_everything_can_be_chosen(self):
        objective = part(MaskedLm, probability=1.0, mask_share=1.0, random_share=0.0)
        items = objective.rows.prepare(TEXTS, tokenizer(), None)
        batch = objective.rows.collate(items, rng())
        assert len(batch["labels"]) == sum(len(example["text"]) for example in TEXTS)

    def test_a_function_of_the_generator(self):
        objective = part(MaskedLm)
        items = objective.rows.prepare(TEXTS, tokenizer(), None)
        first, again, other = (objective.rows.collate(items, rng(seed)) for seed in (1, 1, 2))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not torch.equal(first["input_ids"], other["input_ids"])

    @pytest.mark.parametrize("packed", [False, True])
    def test_loss_and_gradients_are_those_of_single_tokens(self, packed):
        net, objective = model("encoder", head="masked_lm"), part(MaskedLm, probability=0.5)
        items = objective.rows.prepare(TEXTS, tokenizer(), None)
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

    def test_wrong_input(self, caplog):
        with pytest.raises(DataError, match=r"masked_lm requires a special token for mask.*\{mask: <mask>\}"):
            part(MaskedLm).rows.prepare(TEXTS, tokenizer(mask=None), None)
        with pytest.raises(DataError, match="rows of 2 tokens are too short"):
            part(MaskedLm).rows.prepare(TEXTS, tokenizer(), 2)
        with pytest.raises(DataError, match="none of 2 examples can be used: the text is empty, or has only unknown"):
            part(MaskedLm).rows.prepare([{"text": ""}, {"text": "##"}], tokenizer(), None)
        assert "2 of 2 examples dropped" in caplog.text
        with pytest.raises(ValidationError, match=r"add up to 1\.3, but must not exceed 1 in total"):
            part(MaskedLm, mask_share=0.8, random_share=0.5)
        with pytest.raises(ValidationError):
            part(MaskedLm, probability=1.5)

    def test_baseline_is_of_ordinary_tokens(self):
        objective = part(MaskedLm)
        items = objective.rows.prepare([{"text": "aaab"}] * 50, tokenizer(), None)
        found = objective.baseline(items, items)
        assert found is not None and found.accuracy == pytest.approx(0.75)
        size = tokenizer().vocab_size
        expected = -(0.75 * np.log(151 / (200 + size)) + 0.25 * np.log(51 / (200 + size)))
        assert found.loss == pytest.approx(expected)


def part_bound(kind: type[Objective], **options: object) -> Objective:
    objective = part(kind, **options)
    objective.rows.bind(tokenizer())
    return objective


def members(kind: type) -> set[str]:
    """The public methods, facts and attributes of a class, beside those of every part."""
    declared = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", {})}
    set_up = {name for base in kind.__mro__ for name in _set_by(base)}
    return {name for name in {*dir(kind), *declared, *set_up} if name[0] != "_" and not hasattr(Component, name)}


def _set_by(kind: type) -> set[str]:
    """The attributes that a constructor sets."""
    own = vars(kind).get("__init__")
    code = getattr(own, "__code__", None)
    return set() if code is None or code.co_argcount < 2 else {name for name in code.co_names if name in SET_UP}


SET_UP = {"config", "rows", "answers", "module", "tokens", "labels", "template", "maskable", "objective"}


@looped("name", REGISTRY.names("objective"))
def test_an_objective_is_three_small_things(name):
    kind = REGISTRY.get("objective", name)
    # rows are made of texts and of vectors
    for thing, most in ((kind, 15), (kind.rows_type, 22), (kind.answers_type, 15)):
        assert thing is None or len(members(thing)) <= most, f"{thing.__name__}: {sorted(members(thing))}"


def test_members_are_counted():
    assert {"loss", "rows", "answers", "reads", "heads", "baseline"} <= members(CausalLm)
    assert {"prepare", "collate", "fields", "tokens", "labels"} <= members(CausalLm.rows_type)
