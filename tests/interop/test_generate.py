"""What is found here is what Hugging Face's `generate` finds: the same texts, token by token, and their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.core.options import Slot
from tfkit.generation.rules import Rules
from tfkit.generation.search import Candidate, prepare
from tfkit.generation.stop import EndToken
from tfkit.generation.texts import find

from .parity import PAD, Pair, Row, make, padded
from .rows import ROWS

pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
NEW = 14  # tokens at most
CLASSES = (
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "MarianMTModel",
    "BertLMHeadModel",
)
KINDS = [next(row for row in ROWS if row.model == name) for name in CLASSES]
QUICK = {"LlamaForCausalLM", "MarianMTModel"}  # of the other kinds, and of most options, the proofs are slow
LENGTHS = [6, 3, 9, 1, 6]


@dataclass
class Two:
    """The same model twice, what it reads, and the token that ends a text."""

    pair: Pair
    prompts: list[list[int]]
    sources: list[list[int]] | None
    call: dict[str, Tensor]  # the same for theirs
    end: int

    def theirs(self, **options: Any) -> tuple[list[list[int]], list[float]]:
        """Their texts without the end token, those of one prompt after each other, and their scores."""
        from transformers import GenerationConfig

        settings = {"max_new_tokens": NEW, "eos_token_id": self.end, "pad_token_id": PAD, "bos_token_id": PAD} | options
        if self.sources is not None:
            settings["decoder_start_token_id"] = self.prompts[0][0]
        # their T5 makes a cache for as many layers as its encoder has
        settings["use_cache"] = "T5" not in self.pair.row.model
        config = GenerationConfig(**settings, return_dict_in_generate=True, output_scores=True)
        self.pair.theirs.generation_config = config
        out = self.pair.theirs.generate(**self.call, generation_config=config)
        begun = 1 if self.sources is not None else self.call["input_ids"].shape[1]
        scores = getattr(out, "sequences_scores", None)
        return [self.cut(row[begun:].tolist()) for row in out.sequences], [] if scores is None else scores.tolist()

    def cut(self, ids: list[int]) -> list[int]:
        return ids[: ids.index(self.end)] if self.end in ids else ids

    def ours(self, strategy: Any, logits: list[Any] = [], ends: bool = True, **how: Any) -> list[list[Candidate]]:  # noqa: B006
        rule = EndToken(EndToken.Config())
        rule.ends = frozenset({self.end} if ends else ())
        rules = [Slot("logits").validate(part).build() for part in logits]
        for made in rules:
            made.bind(SimpleNamespace(vocab_size=self.pair.blueprint.last.vocab_size, token=str))
        how = {"sources": self.sources, "scored": True} | how
        search = prepare(self.pair.ours, self.prompts, NEW, Rules(rules, [rule]), **how)
        return find(Slot("strategy").validate(strategy).build(), search)


def marked(row: Row) -> Any:
    return pytest.param(row, id=str(row), marks=[] if row.model in QUICK else [pytest.mark.slow])


@pytest.fixture(scope="module", params=map(marked, KINDS))
def two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    row: Row = request.param
    pair = make(row, tmp_path_factory.mktemp("theirs"))
    reads = row.kind == "encoder_decoder"
    tokens, real = padded(LENGTHS, "right" if reads else "left")
    texts = [ids[mask.bool()].tolist() for ids, mask in zip(tokens, real, strict=True)]
    call = {"input_ids": tokens, "attention_mask": real}
    made = Two(pair, [[3]] * len(texts) if reads else texts, texts if reads else None, call, -1)
    # a token that comes in the middle of texts, so that some end early and others late
    found = Counter(
        token for text in made.ours({"type": "beam", "n_best": 4}, ends=False) for c in text for token in c.ids[2:]
    )
    made.end = found.most_common(2)[-1][0]
    yield made


def agree(two: Two, theirs: dict[str, Any], strategy: dict[str, Any], logits: list[Any] | None = None) -> None:
    texts, scores = two.theirs(**theirs)
    found = [candidate for candidates in two.ours(strategy, logits or []) for candidate in candidates]
    assert [list(candidate.ids) for candidate in found] == texts
    torch.testing.assert_close([candidate.score for candidate in found][: len(scores)], scores, rtol=1e-4, atol=1e-4)


def test_greedy(two: Two) -> None:
    assert [list(found[0].ids) for found in two.ours("greedy")] == two.theirs()[0]


def options(alpha: float, early: bool | str) -> Any:
    quick = (alpha, early) in ((1.0, False), (-1.0, True))
    return pytest.param(alpha, early, marks=[] if quick else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("alpha", "early"),
    [options(alpha, early) for early in (False, True, "never") for alpha in (1.0, 0.0, 2.0, -1.0, 0.6)],
)
def test_beams(two: Two, alpha: float, early: bool | str) -> None:
    both = {"num_beams": 4, "length_penalty": alpha, "early_stopping": early}
    agree(two, {**both, "num_return_sequences": 4}, {"type": "beam", **both, "n_best": 4})


@pytest.mark.full
@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param({"repetition_penalty": 1.4}, marks=pytest.mark.slow),
        pytest.param({"no_repeat_ngram_size": 2}, marks=pytest.mark.slow),
        pytest.param({"min_new_tokens": 9}, marks=pytest.mark.slow),
        pytest.param({"bad_words_ids": [[5], [7], [12], [27], [30], [51]]}, marks=pytest.mark.slow),
        {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3, "min_new_tokens": 6},
    ],
    ids=["repetition", "ngram", "least", "banned", "all"],
)
def test_rules(two: Two, theirs: dict[str, Any]) -> None:
    banned = [token for (token,) in theirs.get("bad_words_ids", []) if token != two.end]  # theirs never ban an end
    ours = {
        "repetition_penalty": {"type": "repetition_penalty", "penalty": theirs.get("repetition_penalty")},
        "no_repeat_ngram_size": {"type": "no_repeat_ngram", "size": theirs.get("no_repeat_ngram_size")},
        "min_new_tokens": {"type": "min_length", "tokens": theirs.get("min_new_tokens"), "ends": [two.end]},
        "bad_words_ids": {"type": "banned", "tokens": banned},
    }
    logits = [ours[name] for name in theirs]
    assert [list(found[0].ids) for found in two.ours("greedy", logits)] == two.theirs(**theirs)[0]
    both = {"num_beams": 3, "length_penalty": 0.7}
    agree(two, {**both, "num_return_sequences": 2, **theirs}, {"type": "beam", **both, "n_best": 2}, logits)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_forced_beginning(two: Two, beams: int) -> None:
    if two.sources is None:
        pytest.skip("theirs force the token after the start token of an encoder-decoder only")
    strategy: Any = {"type": "beam", "num_beams": beams} if beams > 1 else "greedy"
    agree(two, {"num_beams": beams, "forced_bos_token_id": 9}, strategy, [{"type": "forced", "tokens": [9]}])
