"""Strategies: texts for every prompt within the rules, independent of the batch and of the cache."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from tfkit.contracts.cases import Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import expect
from tfkit.contracts.training import letters, small_model
from tfkit.core.errors import UsageError
from tfkit.core.options import Slot
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import Candidate, Search, prepare
from tfkit.generation.stepper import evaluating
from tfkit.generation.strategy import Strategy
from tfkit.generation.texts import find
from tfkit.models import Model

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
    """Prepare a search with the texts as prompts, or as sources of an encoder-decoder."""
    tokenizer = letters()
    read = [tokenizer.encode(TEXTS[row]) for row in rows]
    prompts = [[tokenizer.special_ids["start"]]] * len(read) if reads == "encoder_decoder" else read
    sources = read if reads == "encoder_decoder" else None
    room = [ROOM[row] for row in rows]
    return prepare(writer(reads), prompts, room, rules, sources=sources, seed=SEED, scored=True, **how)


def strategy_of(case: Case) -> Strategy:
    """Build the strategy with its options."""
    strategy: Strategy = case.config.build()
    return strategy


def readers(case: Case) -> list[str]:
    """Return the topologies that the strategy supports; raise Broken if there is none."""
    refusals = {}
    for reads in ("causal", "encoder_decoder"):
        try:
            strategy_of(case).check(search_of(reads))
        except UsageError as error:
            refusals[reads] = str(error)
    expect(len(refusals) < 2, f"it refuses a decoder and an encoder-decoder: {'; '.join(refusals.values())}")
    return [reads for reads in ("causal", "encoder_decoder") if reads not in refusals]


def ids_of(found: Found) -> list[list[tuple[int, ...]]]:
    """Return the ids of the candidates of each prompt."""
    return [[candidate.ids for candidate in candidates] for candidates in found]


@contract("texts of the vocabulary for every prompt, no longer than they may be, the best first", "built",
          slots=STRATEGY, every_option=True)  # fmt: skip
def check_candidates(case: Case) -> None:
    """Search prompts of different lengths, one without room, in each topology."""
    for reads in readers(case):
        with evaluating(writer(reads)):
            found = strategy_of(case).search(search_of(reads))
        expect(isinstance(found, list), f"it gives {type(found).__name__}, not a list of each prompt's candidates")
        expect(len(found) == len(TEXTS), f"of {len(TEXTS)} prompts it gives the candidates of {len(found)}")
        for row, candidates in enumerate(found):
            _are_candidates(row, candidates)


def _are_candidates(row: int, candidates: list[Candidate]) -> None:
    expect(candidates, f"prompt {row} has no candidate")
    vocab_size = letters().vocab_size
    for candidate in candidates:
        odd = [id_ for id_ in candidate.ids if not 0 <= id_ < vocab_size]
        expect(not odd, f"it writes {odd}, which are no ids of a vocabulary of {vocab_size}")
        written = len(candidate.ids)
        expect(written <= ROOM[row], f"it writes {written} tokens where there is room for {ROOM[row]}")
        numbers = math.isfinite(candidate.score) and math.isfinite(candidate.log_probability)
        expect(numbers, f"a text has the score {candidate.score} and the log-probability {candidate.log_probability}")
    scores = [candidate.score for candidate in candidates]
    expect(scores == sorted(scores, reverse=True), f"the candidates' scores {scores} do not fall")


@contract("the rules hold: what they forbid never comes, and what ends a text ends it", "candidates", slots=STRATEGY)
def check_ruled(case: Case) -> None:
    """Ban the generated tokens, then stop at the tokens generated instead, and after two tokens."""
    strategy = strategy_of(case)
    for reads in readers(case):
        common = sorted({id_ for texts in ids_of(_searched(case, reads)) for ids in texts for id_ in ids})
        banned = {"type": "banned", "tokens": common}
        freed = ids_of(find(strategy, search_of(reads, rules=_rules([banned], []))))
        written = {id_ for texts in freed for ids in texts for id_ in ids}
        expect(not written & set(common), f"it writes {sorted(written & set(common))}, which a logits rule forbids")
        expect(written, "it writes nothing where a logits rule forbids some tokens")
        ends = {"type": "end_token", "tokens": sorted(written)}
        rules = _rules([banned], [ends, {"type": "length", "tokens": 2}])
        for texts in ids_of(find(strategy, search_of(reads, rules=rules))):
            for ids in texts:
                expect(len(ids) <= 2, f"it goes on to {len(ids)} tokens where a stop rule ends a text at 2")
                after = written & set(ids)
                expect(not after, f"it leaves {sorted(after)} in a text, which a stop rule ends there and cuts off")


def _rules(logits: list[dict[str, Any]], stop: list[dict[str, Any]]) -> Rules:
    rules = [Slot("logits").validate(part) for part in logits]
    return bound_rules(rules, [Slot("stop").validate(part) for part in stop], letters())


def _searched(case: Case, reads: str, rows: Sequence[int] = range(len(TEXTS)), **how: Any) -> Found:
    return find(strategy_of(case), search_of(reads, rows, **how))


@contract("one seed gives the same texts, whatever else draws random numbers", "candidates", slots=STRATEGY)
def check_seeded(case: Case) -> None:
    """Search twice with different global RNG states."""
    for reads in readers(case):
        before = random.getstate()
        found = []
        try:
            for state in (1, 2):
                torch.manual_seed(state)
                random.seed(state)
                found.append(ids_of(_searched(case, reads)))
        finally:
            random.setstate(before)
        expect(found[0] == found[1], "searching twice with one seed it finds two different texts")


@contract("a prompt's texts do not depend on what stands beside it", "seeded", slots=STRATEGY, every_option=True)
def check_beside(case: Case) -> None:
    """Compare with single prompts and with another order."""
    for reads in readers(case):
        together = ids_of(_searched(case, reads))
        backwards = ids_of(_searched(case, reads, range(len(TEXTS))[::-1]))[::-1]
        for row, expected in enumerate(together):
            alone = ids_of(_searched(case, reads, [row]))[0]
            expect(alone == expected, f"prompt {row} alone has other texts than beside {len(TEXTS) - 1} others")
            expect(backwards[row] == expected, f"prompt {row} has other texts where the others come in another order")


@contract("the same texts with a decode state and without", "seeded", slots=STRATEGY)
def check_stateless(case: Case) -> None:
    """Search with and without a decode state."""
    for reads in readers(case):
        kept, anew = (ids_of(_searched(case, reads, use_cache=use)) for use in (True, False))
        expect(kept == anew, "without a decode state it finds other texts")


@contract("the model is left as it was", "candidates", slots=STRATEGY)
def check_untouched(case: Case) -> None:
    """Compare weights, training mode and requires_grad before and after."""
    for reads in readers(case):
        model = writer(reads)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        with evaluating(model):
            strategy_of(case).search(search_of(reads))
            expect(not any(part.training for part in model.modules()), "it leaves the model in training mode")
        expect(all(weight.requires_grad for weight in model.parameters()), "it freezes weights of the model")
        changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
        expect(not changed, f"it changes the model's weights: {', '.join(changed)}")


@contract("a listener is told each token of the best text, or nothing at all", "candidates", slots=STRATEGY)
def check_told(case: Case) -> None:
    """Compare the streamed tokens with the result."""
    for reads in readers(case):
        told: list[list[int]] = [[] for _ in TEXTS]
        strategy = strategy_of(case)
        found = find(strategy, search_of(reads, on_token=lambda row, token, told=told: told[row].append(token)))
        for row, candidates in enumerate(found):
            best = list(candidates[0].ids) if strategy.streams else []
            expect(told[row] == best, f"of prompt {row} it tells {told[row]}, and finds {list(candidates[0].ids)}")
