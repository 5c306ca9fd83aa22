"""Text generation with the model, tokenizer and settings of a run, and warnings about lengths never trained."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfkit.core.blueprint import StackPlan
from tfkit.core.bounds import COUNT, ROWS, SEED
from tfkit.core.component import Config
from tfkit.core.errors import TfkitWarning, UsageError
from tfkit.core.synonyms import nearest
from tfkit.data.tokenizer import Tokenizer
from tfkit.generation.decoder import StepDecoder, check_quantize
from tfkit.generation.prompts import Ids, Source, extra_rows
from tfkit.generation.rules import Rules, bound_rules
from tfkit.generation.search import Candidate, Search, prepare, step_of
from tfkit.generation.shorthands import OF_STRATEGIES, RULES, GenerateOptions, Keywords
from tfkit.generation.stepper import most_positions
from tfkit.generation.strategy import Strategy
from tfkit.generation.texts import check_invariant, check_room, check_stream, final_tokens, find
from tfkit.models import Model
from tfkit.recipe.architecture.prepare import Parts, parts_of
from tfkit.recipe.settings.sections import Generate

BEYOND = 100  # maximum length of a prompt, as a multiple of max_length


class LengthWarning(TfkitWarning):
    """A text that exceeds the model's `max_length`, or was cut off there before the requested length."""


def warn_of_prompts(search: Search) -> None:
    """Warn if a prompt or source is longer than `max_length`, before anything is computed.

    Raise UsageError beyond BEYOND * max_length tokens, which would take hours to compute.
    """
    read: list[tuple[Sequence[Source], str, StackPlan]] = [(search.prompts, "prompt", search.model.blueprint.last)]
    if search.sources is not None and search.model.blueprint.encoder is not None:
        read.append((search.sources, "source", search.model.blueprint.encoder))
    for rows, name, plan in read:
        longest, trained = max(map(len, rows), default=0), plan.max_length
        if trained is not None and longest > BEYOND * trained:
            raise UsageError(
                f"a {name} has {longest:,} tokens; the limit for this model is {BEYOND * trained:,} "
                f"({BEYOND} times its max_length of {trained:,}); shorten the {name}"
            )
        if trained is not None and longest > trained:
            _warn(
                f"a {name} is longer than the model's max_length of {trained:,} tokens; positions beyond it are "
                "untrained"
            )


def warn_of_texts(search: Search, candidates: Sequence[Sequence[Candidate]], requested: int | None) -> None:
    """Warn if a text exceeds `max_length`, or was cut off there before `requested` new tokens."""
    longest = search.model.blueprint.last.max_length
    if most_positions(search.model, search.model.blueprint.last.side) is not None:
        if requested is not None and any(_cut(search, row, texts, requested) for row, texts in enumerate(candidates)):
            _warn(f"a text ended before {requested:,} new tokens, as the model has no further positions")
    elif longest is not None:
        grown = any(  # the last token is never fed to the model
            len(prompt) <= longest < len(prompt) + max((len(text.ids) for text in texts), default=0) - 1
            for prompt, texts in zip(search.prompts, candidates, strict=True)
        )
        if grown:
            _warn(f"a text exceeds the model's max_length of {longest:,} tokens; positions beyond it are untrained")


def _cut(search: Search, row: int, texts: Sequence[Candidate], requested: int) -> bool:
    """True if a text ended because the model has no further positions."""
    room, prompt = search.room[row], search.prompts[row]
    full = (text for text in texts if len(text.ids) == room < requested)
    return any(not search.rules.done(prompt, text.ids, 0.0) for text in full)


def _warn(message: str) -> None:
    warnings.warn(message, LengthWarning, stacklevel=2)


CUT = "the text is cut off: it ended before it satisfied generate.logits"


@dataclass(frozen=True)
class GeneratedText:
    """A decoded candidate: the text after the prompt, its ids and scores.

    If masks were filled in, `text` is the whole text and `ids` are the tokens that replace the masks. `cut` is True if
    the text ended before it satisfied a logits rule such as `regex` or `choices`.
    """

    text: str
    ids: tuple[int, ...]
    log_probability: float
    score: float
    cut: bool = False


class CutWarning(TfkitWarning):
    """A text that ended before it satisfied the logits rules."""


def warn_of_cut(written: Sequence[GeneratedText]) -> None:
    """Issue a CutWarning for the first text that is cut off; `written` has one text per prompt."""
    number = next((number for number, text in enumerate(written, 1) if text.cut), None)
    if number is not None:
        warnings.warn(f"prompt {number}: {CUT}", CutWarning, stacklevel=3)


@dataclass(frozen=True)
class Writer:
    """A decoder with tokenizer and generation settings; `start` is the first target token of an encoder-decoder."""

    decoder: StepDecoder
    tokenizer: Tokenizer
    settings: Generate
    start: int | None
    strategy: Strategy
    rules: Rules
    seed: int | None
    max_new_tokens: int | None
    batch_size: int
    inputs: Mapping[str, object] | None = None  # extra inputs, [prompts width] or [width] each

    @property
    def model(self) -> Model:
        return self.decoder.model

    def write(self, read: Sequence[Source], scored: bool = True) -> list[list[GeneratedText]]:
        """Return the candidates for each prompt (or source), best first."""
        if not read:
            return []
        search = self._search(read, scored)
        results = find(self.strategy, search, self.batch_size)
        warn_of_texts(search, results, self.max_new_tokens)
        return [
            [self._written(prompt, candidate) for candidate in candidates]
            for prompt, candidates in zip(search.prompts, results, strict=True)
        ]

    def stream(self, read: Source) -> Generator[str, None, GeneratedText]:
        """Stream the text for one prompt (or source) in pieces, which are final once yielded.

        The generator returns the GeneratedText. Raise UsageError immediately, before the first piece, if the text
        cannot be generated or streamed. Closing the generator stops the search.
        """
        search = self._search([read], scored=False)
        check_stream(self.strategy, search)
        return self._pieces(search)

    def check(self) -> None:
        """Raise UsageError if the strategy does not support the model or the rules."""
        step = step_of(self.settings)
        self.strategy.check(Search(self.model, [], [], self.rules, step=step))
        if self.settings.invariant:
            check_invariant(next(self.model.parameters()), self.decoder.quantize, step)
        check_room(self.strategy, self.model, prompts=1)

    def _pieces(self, search: Search) -> Generator[str, None, GeneratedText]:
        (prompt,) = search.prompts
        ids: list[int] = []
        streamed = ""
        with closing(final_tokens(self.strategy, search)) as tokens:
            for item in tokens:
                if isinstance(item, Candidate):
                    warn_of_texts(search, [[item]], self.max_new_tokens)
                    written = self._written(prompt, item)
                    text = written.text
                    if not text.startswith(streamed):
                        raise UsageError(
                            "the tokenizer or a stop rule changed text that was already streamed; generate without "
                            "streaming"
                        )
                else:
                    ids.append(item)
                    text = self.rules.certain(prompt, ids)
                if len(text) > len(streamed) and text.startswith(streamed):
                    yield text[len(streamed) :]
                    streamed = text
        warn_of_cut([written])
        return written

    def _search(self, read: Sequence[Source], scored: bool) -> Search:
        pair = self.model.blueprint.encoder is not None
        ids: list[Ids] = [row for row in read if not isinstance(row, np.ndarray)]
        prompts: Sequence[Ids] = [[self._start]] * len(read) if pair else ids
        limits = [self.limit(len(ids)) for ids in read]
        search = prepare(
            self.model,
            prompts,
            limits,
            self.rules,
            sources=read if pair else None,
            inputs=extra_rows(self.inputs, len(read)),
            seed=self.seed,
            scored=scored,
            decoder=self.decoder,
            step=step_of(self.settings),
            invariant=self.settings.invariant,
        )
        warn_of_prompts(search)
        return search

    @property
    def _start(self) -> int:
        if self.start is None:
            raise UsageError("the recipe does not set model.special_ids.start, the decoder's first token")
        return self.start

    def _written(self, prompt: Ids, candidate: Candidate) -> GeneratedText:
        text = self.rules.text(prompt, candidate.ids)
        cut = not self.rules.complete(prompt, candidate.ids)
        return GeneratedText(text, candidate.ids, candidate.log_probability, candidate.score, cut)

    def limit(self, length: int) -> int:
        """Return the maximum number of new tokens for a prompt or source of this length."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        most, whole, ratio = self.settings.max_new_tokens, self.settings.max_length, self.settings.length_ratio
        if self.model.blueprint.encoder is None:
            return most if whole is None else min(most, max(1, whole - length))
        return most if ratio is None else min(most, int(ratio * length) + 10)


def make_writer(
    decoder: StepDecoder,
    tokenizer: Tokenizer,
    settings: Generate,
    start: int | None,
    most: int | None,
    options: GenerateOptions,
) -> Writer:
    """Build a Writer from the settings, overridden by options that are already checked.

    Raise RecipeError if a part is invalid, and UsageError if it does not fit the tokenizer.
    """
    options = with_short_options(options, settings)
    seed = options.get("seed")
    strategies = _chosen("strategy", options.get("strategy"), [settings.strategy])
    if len(strategies) != 1:
        raise UsageError(f"expected one strategy, got {len(strategies)}")
    strategy, logits = strategies[0].build(), _chosen("logits", options.get("logits"), settings.logits)
    if strategies[0] != settings.strategy and not strategy.draws:  # the recipe's rules for samples have no effect
        logits = [rule for rule in logits if rule not in settings.logits or not rule.build().of_sampling]
    rules = bound_rules(logits, _chosen("stop", options.get("stop"), settings.stop), tokenizer)
    return Writer(
        decoder,
        tokenizer,
        settings,
        start,
        strategy,
        rules,
        settings.seed if seed is None else seed,
        most,
        options.get("batch_size") or 64,
        options.get("inputs"),
    )


def with_short_options(options: GenerateOptions, settings: Generate) -> GenerateOptions:
    """Apply the short options, such as `temperature`, to the strategy and the logits rules."""
    short: dict[str, Any] = {name: options.get(name) for name in (*RULES, *OF_STRATEGIES)}
    if all(value is None for value in short.values()):
        return options
    option = options.get("strategy")
    strategies = _chosen("strategy", option, [settings.strategy])
    if len(strategies) != 1:
        return options
    keywords = Keywords(strategy=None if option is None else strategies[0].part.part_name, **short)
    logits = keywords.logits_over(_chosen("logits", options.get("logits"), settings.logits))
    return {**options, "strategy": keywords.strategy_over(strategies[0]), "logits": logits}


def check_options(options: Mapping[str, object], most: object = None) -> None:
    """Raise UsageError for unknown options and numbers out of range."""
    for name in options:
        if name not in GenerateOptions.__annotations__:
            hint = nearest(name, [*GenerateOptions.__annotations__, "max_new_tokens"])
            known = f"did you mean '{hint}'?" if hint else f"available: {', '.join(GenerateOptions.__annotations__)}"
            raise UsageError(f"unknown generation option '{name}'; {known}")
    numbers = {
        "max_new_tokens": (most, 0, COUNT),
        "seed": (options.get("seed"), 0, SEED),
        "batch_size": (options.get("batch_size"), 1, ROWS),
    }
    for name, (value, least, bound) in numbers.items():
        if value is not None and (type(value) is not int or not least <= value <= bound.most):
            raise UsageError(f"{name} must be a whole number from {least} to {bound.most:,}, got {value!r}")
    check_quantize(options.get("quantize"))


def _chosen(slot: str, option: Parts | None, default: Sequence[Config]) -> Sequence[Config]:
    return default if option is None else parts_of(slot, option)
