"""Logits rules, stop rules and strategies: texts obey the rules and do not depend on the batch or the cache."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.options import LINES
from tfkit.contracts.training import letters, small_model
from tfkit.core.bounds import Tree
from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.generation.logits import LogitsRule
from tfkit.generation.logits.base import PADDING
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import Candidate, Search, prepare
from tfkit.generation.stepper import evaluating
from tfkit.generation.stop import StopRule, WrittenRow
from tfkit.generation.strategy import Strategy
from tfkit.generation.texts import find
from tfkit.models import Model

LOGITS, STOP = ("logits",), ("stop",)
ROWS, TIME = 4, 7
WRITTEN = (0, 3, 1, 5)  # number of generated tokens per row


def rule_of(case: Case) -> Any:
    """Build the rule, bound to a vocabulary of letters."""
    rule: LogitsRule | StopRule = case.config.build()
    rule.bind(letters())
    return rule


def call(rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, the ids of each row (some repeated, the last row shorter), and the number of generated tokens."""
    tokenizer = letters()
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(rows, tokenizer.vocab_size, generator=generator)
    texts = ["the the", "a cat a", "banana ", "see see"]
    ids = torch.tensor([tokenizer.encode(texts[row % len(texts)]) for row in range(rows)])
    ids[-1, :2] = PADDING
    return logits, ids, torch.tensor(WRITTEN[:rows])


@contract(
    "forward returns logits of the same shape and allows at least one token in each row",
    "built",
    slots=LOGITS,
    every_option=True,
)
def check_logits(case: Case) -> None:
    """Apply the rule to rows at different steps of a search."""
    logits, ids, new = call()
    changed = rule_of(case).forward(logits, ids, new)
    expect(isinstance(changed, Tensor), f"forward returns {type(changed).__name__}, not a tensor")
    expect(changed.shape == logits.shape, f"logits of shape {list(logits.shape)} become {list(changed.shape)}")
    expect(changed.dtype == logits.dtype, f"logits of dtype {logits.dtype} become {changed.dtype}")
    numbers = bool((changed == changed).all()) and not bool((changed == float("inf")).any())
    expect(numbers, "a logit becomes +inf or NaN; use -inf to exclude a token")
    possible = (changed > float("-inf")).any(dim=1)
    expect(bool(possible.all()), f"row {int((~possible).int().argmax())} allows no token")


@contract("inputs are not modified", "logits", slots=LOGITS, every_option=True)
def check_in_place(case: Case) -> None:
    """Compare the inputs with copies made before the call."""
    inputs = call()
    kept = [tensor.clone() for tensor in inputs]
    rule_of(case).forward(*inputs)
    for name, tensor, before in zip(("logits", "ids", "new"), inputs, kept, strict=True):
        expect(torch.equal(tensor, before), f"modifies its input {name}")


@contract("each row depends only on its own tokens", "logits", slots=LOGITS, every_option=True)
def check_rows(case: Case) -> None:
    """Compare with a second call, with single rows, and with more left padding."""
    rule, (logits, ids, new) = rule_of(case), call()
    whole = rule.forward(logits, ids, new)
    expect(torch.equal(rule.forward(logits, ids, new), whole), "a second call returns different logits")
    for row in range(ROWS):
        alone = rule.forward(logits[row : row + 1], ids[row : row + 1], new[row : row + 1])
        expect(torch.equal(alone, whole[row : row + 1]), f"row {row} has different logits alone than in a batch")
    padding = torch.full((ROWS, 2), PADDING)
    wider = rule.forward(logits, torch.cat((padding, ids), dim=1), new)
    expect(torch.equal(wider, whole), "more left padding changes the logits")


def rows_of(texts: tuple[str, ...]) -> list[WrittenRow]:
    """Return the rows of a search that generates the texts, at every step up to the end token."""
    tokenizer = letters()
    prompt = tokenizer.encode("the ")
    end = tokenizer.special_ids["end"]

    def decode(before: Sequence[int], ids: Sequence[int]) -> str:
        return tokenizer.decode(ids)

    rows: list[WrittenRow] = []
    for text in texts:
        ids = [*tokenizer.encode(text), end]
        rows += [WrittenRow(prompt, ids[:time], 0.5 * time, decode) for time in range(1, len(ids) + 1)]
    return rows


@contract("done is a boolean and deterministic", "built", slots=STOP, every_option=True)
def check_done(case: Case) -> None:
    """Call `done` at each step of two texts, then backwards, with the same rule and with a new one."""
    rows, rule = rows_of(LINES[:2]), rule_of(case)
    answers = [rule.done(row) for row in rows]
    for answer in answers:
        expect(isinstance(answer, bool), f"done returns {answer!r}, not True or False")
    for place in reversed(range(len(rows))):
        again = rule.done(rows[place]), rule_of(case).done(rows[place])
        expect(
            again == (answers[place],) * 2, f"done for a text of {len(rows[place].ids)} tokens depends on earlier calls"
        )


@contract("only the end of a text is cut", "done", slots=STOP, every_option=True)
def check_cut(case: Case) -> None:
    """Check that the remaining ids and text are prefixes."""
    rule = rule_of(case)
    for row in rows_of(LINES[:2]):
        ids, text = list(rule.cut_ids(row.ids)), rule.cut_text(row.text)
        expect(ids == list(row.ids)[: len(ids)], f"cut_ids turns {list(row.ids)} into {ids}, which is not a prefix")
        expect(row.text.startswith(text), f"cut_text turns {row.text!r} into {text!r}, which is not a prefix")
    expect(list(rule.cut_ids([])) == [] and rule.cut_text("") == "", "extends an empty text")


STRATEGY = ("strategy",)
TEXTS = ("the cat", "a", "sees a house")
ROOM = (4, 3, 0)
SEED = 5
Found = list[list[Candidate]]


@cache
def writer(reads: str) -> Model:
    """Return a small model that generates letters."""
    return small_model(reads, "language_model", letters().vocab_size)


def search_of(reads: str, rows: Sequence[int] = range(len(TEXTS)), rules: Rules | None = None, **how: Any) -> Search:
    """Return a search with the texts as prompts, or as sources of an encoder-decoder."""
    tokenizer = letters()
    read = [tokenizer.encode(TEXTS[row]) for row in rows]
    prompts = [[tokenizer.special_ids["start"]]] * len(read) if reads == "encoder_decoder" else read
    sources = read if reads == "encoder_decoder" else None
    room = [ROOM[row] for row in rows]
    return prepare(writer(reads), prompts, room, rules, sources=sources, seed=SEED, scored=True, **how)


def strategy_of(case: Case) -> Strategy:
    """Build the strategy of the case."""
    strategy: Strategy = case.config.build()
    return strategy


def readers(case: Case) -> list[str]:
    """Return the topologies that the strategy supports; raise Broken if it supports none."""
    found, refusals = [], []
    for reads in ("causal", "encoder_decoder"):
        try:
            strategy_of(case).check(search_of(reads))
            found.append(reads)
        except UsageError as error:
            refusals.append(str(error))
    expect(found, f"supports neither a decoder nor an encoder-decoder: {'; '.join(refusals)}")
    return found


def ids_of(results: Found) -> list[list[tuple[int, ...]]]:
    """Return the ids of the candidates for each prompt."""
    return [[candidate.ids for candidate in candidates] for candidates in results]


@contract("every prompt gets candidates within vocabulary and limit, best first", "built",
          slots=STRATEGY, every_option=True)  # fmt: skip
def check_candidates(case: Case) -> None:
    """Search with prompts of different lengths, one of them without room for new tokens, in each topology."""
    for reads in readers(case):
        with evaluating(writer(reads)):
            results = strategy_of(case).search(search_of(reads))
        kind = type(results).__name__
        expect(isinstance(results, list), f"search returns {kind}, not a list of candidates per prompt")
        expect(len(results) == len(TEXTS), f"returns candidates for {len(results)} of {len(TEXTS)} prompts")
        for row, candidates in enumerate(results):
            _are_candidates(row, candidates)


def _are_candidates(row: int, candidates: list[Candidate]) -> None:
    expect(candidates, f"prompt {row} has no candidate")
    vocab_size = letters().vocab_size
    for ids, score, log_probability in ((one.ids, one.score, one.log_probability) for one in candidates):
        odd = [id_ for id_ in ids if not 0 <= id_ < vocab_size]
        expect(not odd, f"generates the ids {odd}, which the vocabulary of {vocab_size} does not contain")
        expect(len(ids) <= ROOM[row], f"generates {len(ids)} tokens; the limit is {ROOM[row]}")
        numbers = math.isfinite(score) and math.isfinite(log_probability)
        expect(numbers, f"score {score} or log-probability {log_probability} is not finite")
    scores = [candidate.score for candidate in candidates]
    expect(scores == sorted(scores, reverse=True), f"the candidates' scores {scores} are not in descending order")


@contract("excluded tokens never appear, and stop rules end texts", "candidates", slots=STRATEGY)
def check_ruled(case: Case) -> None:
    """Exclude generated tokens, then stop at the tokens generated instead, and after two tokens."""
    strategy = strategy_of(case)
    for reads in readers(case):
        common = sorted(_written(_searched(case, reads)))
        banned = {"type": "banned", "tokens": common}
        written = _written(find(strategy, search_of(reads, rules=_rules([banned], []))))
        expect(not written & set(common), f"generates {sorted(written & set(common))}, which a logits rule excludes")
        expect(written, "generates nothing if a logits rule excludes some tokens")
        ends = {"type": "end_token", "tokens": sorted(written)}
        rules = _rules([banned], [ends, {"type": "length", "tokens": 2}])
        for texts in ids_of(find(strategy, search_of(reads, rules=rules))):
            for ids in texts:
                expect(len(ids) <= 2, f"generates {len(ids)} tokens, although a stop rule ends the text after 2")
                after = written & set(ids)
                expect(not after, f"keeps {sorted(after)}, which a stop rule removes")


def _written(results: Found) -> set[int]:
    return {id_ for texts in ids_of(results) for ids in texts for id_ in ids}


def _rules(logits: list[Tree], stop: list[Tree]) -> Rules:
    rules = [Slot("logits").validate(part) for part in logits]
    return bound_rules(rules, [Slot("stop").validate(part) for part in stop], letters())


def _searched(case: Case, reads: str, rows: Sequence[int] = range(len(TEXTS)), **how: Any) -> Found:
    return find(strategy_of(case), search_of(reads, rows, **how))


@contract("a seed determines the texts, independent of the global RNG", "candidates", slots=STRATEGY)
def check_seeded(case: Case) -> None:
    """Search twice with the same seed and different global RNG states."""
    for reads in readers(case):
        before = random.getstate()
        results = []
        try:
            for state in (1, 2):
                torch.manual_seed(state)
                random.seed(state)
                results.append(ids_of(_searched(case, reads)))
        finally:
            random.setstate(before)
        expect(results[0] == results[1], "two searches with the same seed find different texts")


@contract("the texts for a prompt do not depend on other prompts", "seeded", slots=STRATEGY, every_option=True)
def check_beside(case: Case) -> None:
    """Compare with each prompt alone, and with prompts in a different order."""
    for reads in readers(case):
        together = ids_of(_searched(case, reads))
        backwards = ids_of(_searched(case, reads, range(len(TEXTS))[::-1]))[::-1]
        for row, expected in enumerate(together):
            alone = ids_of(_searched(case, reads, [row]))[0]
            expect(alone == expected, f"prompt {row} has different texts alone than with {len(TEXTS) - 1} others")
            expect(backwards[row] == expected, f"prompt {row} has different texts if prompts are in a different order")


@contract("texts are the same with and without a decode state", "seeded", slots=STRATEGY)
def check_stateless(case: Case) -> None:
    """Compare searches with and without a decode state."""
    for reads in readers(case):
        kept, anew = (ids_of(_searched(case, reads, use_cache=use)) for use in (True, False))
        expect(kept == anew, "finds different texts without a decode state")


@contract("the model is not changed", "candidates", slots=STRATEGY)
def check_untouched(case: Case) -> None:
    """Compare weights, training mode and requires_grad before and after."""
    for reads in readers(case):
        model = writer(reads)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        with evaluating(model):
            strategy_of(case).search(search_of(reads))
            expect(not any(part.training for part in model.modules()), "leaves the model in training mode")
        expect(all(weight.requires_grad for weight in model.parameters()), "freezes weights of the model")
        changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
        expect(not changed, f"changes the model's weights: {', '.join(changed)}")


@contract("a listener receives every token of the best text, or nothing", "candidates", slots=STRATEGY)
def check_told(case: Case) -> None:
    """Compare the tokens that a listener receives with the result."""
    for reads in readers(case):
        heard: list[list[int]] = [[] for _ in TEXTS]
        strategy = strategy_of(case)
        results = find(strategy, search_of(reads, on_token=lambda row, token, heard=heard: heard[row].append(token)))
        for row, candidates in enumerate(results):
            best = list(candidates[0].ids)
            what = f"for prompt {row}, the listener receives {heard[row]}, but the result is {best}"
            expect(heard[row] == (best if strategy.streams else []), what)
