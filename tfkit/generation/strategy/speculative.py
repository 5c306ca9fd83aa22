"""Speculative decoding: several drafted tokens are verified in one forward pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import Names, RunPath
from tfkit.core.registry import register
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.view import argmax
from tfkit.generation.decoder import StepDecoder
from tfkit.generation.search import IMPOSSIBLE, Candidate, Search
from tfkit.generation.stepper import Stepper, check_ids, evaluating, most_positions
from tfkit.generation.strategy.base import Load, Strategy
from tfkit.generation.strategy.rows import Texts, draw, gains_of
from tfkit.models import Model

LONGEST = 3  # maximum length of lookup n-grams: longer n-grams rarely repeat
Likely = Callable[[Tensor], Tensor]  # scores [... vocab] -> probabilities [... vocab]


class Drafter(Protocol):
    """Proposes the next tokens."""

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        """Return at most `count` tokens, and the distributions they were drawn from, [tokens vocab]."""
        ...

    def settle(self, kept: int, token: int) -> None:
        """Keep the first `kept` guesses and append `token`."""
        ...


class ModelDrafter:
    """Drafts with a smaller model; `search` is a search of the smaller model with one prompt."""

    def __init__(self, search: Search, likely: Likely, stream: random.Random) -> None:
        self.rules = search.rules
        self.stepper = search.stepper()
        self.likely = likely
        self.stream = stream
        self.bound = most_positions(search.model, search.model.blueprint.last.side)
        self.guessed = 0

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        distributions: list[Tensor] = []
        tokens: list[int] = []
        if self.bound is not None:  # the draft model may be limited to fewer positions
            count = min(count, self.bound - self.stepper.ids.shape[1] + 1)
        for _ in range(count):
            stepper = self.stepper
            scores = self.rules.scores(stepper.logits(), stepper.tokens(), stepper.written(), stepper.left())
            if float(scores.max()) == IMPOSSIBLE:
                break
            distributions.append(self.likely(scores))
            token = draw(distributions[-1], [self.stream])
            self.stepper.append(token)
            tokens.append(int(token))
        self.guessed = len(tokens)
        return tokens, torch.cat(distributions) if distributions else torch.empty(0, 0)

    def settle(self, kept: int, token: int) -> None:
        self.stepper.rewind(self.guessed - kept)
        self.stepper.append(torch.tensor([token], device=self.stepper.ids.device))


class LookupDrafter:
    """Drafts what followed an earlier occurrence of the last tokens (prompt lookup).

    Yang et al. 2023, arXiv 2304.04487.
    """

    def __init__(self, search: Search) -> None:
        self.vocab_size = search.model.blueprint.last.vocab_size or 0
        self.device = next(search.model.parameters()).device
        self.text = torch.tensor(search.prompts[0])
        self.guesses = self.text[:0]

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        self.guesses = self._follows()[:count]
        certain = torch.nn.functional.one_hot(self.guesses, self.vocab_size).double()
        return self.guesses.tolist(), certain.to(self.device)

    def _follows(self) -> Tensor:
        """Return the tokens after the latest earlier occurrence of the longest repeated suffix."""
        for size in range(LONGEST, 0, -1):
            if len(self.text) <= size:
                continue
            same = (self.text[:-1].unfold(0, size, 1) == self.text[-size:]).all(dim=1)
            if bool(same.any()):
                return self.text[int(same.nonzero()[-1]) + size :]
        return self.text[:0]

    def settle(self, kept: int, token: int) -> None:
        self.text = torch.cat((self.text, self.guesses[:kept], torch.tensor([token])))


class HeadDrafter:
    """Drafts with further heads of the model: the first predicts the token after next, the second the one after it.

    Heads read the hidden state that the last token was chosen from (Gloeckle et al. 2024, arXiv 2404.19737).
    """

    def __init__(self, search: Search, stepper: Stepper, heads: Sequence[nn.Module], likely: Likely) -> None:
        self.rules, self.stream = search.rules, search.streams[0]
        self.stepper, self.heads, self.likely = stepper, heads, likely
        self.vocab_size = search.model.blueprint.last.vocab_size
        self.hidden: Tensor | None = None  # [1 1 d_model]; None before the prompt is read
        self.guessed = 0

    def guess(self, count: int) -> tuple[list[int], Tensor]:
        hidden, ids = self.hidden, self.stepper.tokens()
        distributions: list[Tensor] = []
        for place, head in enumerate(self.heads[:count] if hidden is not None else ()):
            logits = head(hidden)[:, -1]  # [1 vocab]
            left = self.stepper.left()
            rest = None if left is None else left - place
            scores = self.rules.scores(logits, ids, self.stepper.written() + place, rest)
            if float(scores.max()) == IMPOSSIBLE:
                break
            distributions.append(self.likely(scores))
            ids = torch.cat((ids, draw(distributions[-1], [self.stream]).view(1, 1)), dim=1)
        self.guessed = len(distributions)
        tokens: list[int] = ids[0, ids.shape[1] - self.guessed :].tolist()
        return tokens, torch.cat(distributions) if distributions else torch.empty(0, 0)

    def settle(self, kept: int, token: int) -> None:
        if self.stepper.hidden is not None:
            at = self.stepper.hidden.shape[1] - 1 - self.guessed + kept
            self.hidden = self.stepper.hidden[:, at : at + 1]


MOST = 32  # maximum length of a draft; a windowed decode state can be rewound this far


class HeadDraft(BaseModel):
    """Drafts of further heads of the same model."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, title="HeadDraft")

    head: str | Annotated[Names, Field(min_length=1)] = Field(
        description="entries of model.heads that predict the token after next, the one after it, and so on"
    )

    @property
    def heads(self) -> tuple[str, ...]:
        return (self.head,) if isinstance(self.head, str) else self.head


@register("strategy", "speculative")
class Speculative(Strategy):
    """Accepts a drafted token x with probability min(1, p(x) / q(x)), else draws from max(0, p - q).

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). The output has the distribution of
    `sample`, or equals `greedy`; drafts only change the speed. Prompts are processed one by one.
    """

    rewinds: ClassVar = True

    class Config(Strategy.Config):
        draft: RunPath | HeadDraft | None = Field(
            None,
            description="run of a smaller model with the same vocabulary, or further heads of this model; none: draft "
            "from repetitions in the text",
        )
        tokens: Annotated[int, Field(ge=1, le=MOST)] = Field(4, description="maximum number of drafted tokens per step")
        sampled: bool = Field(
            False, description="draw tokens like `sample`; false: choose the most likely token like `greedy`"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            heads = self.draft.heads if isinstance(self.draft, HeadDraft) and facts.blueprint is not None else ()
            for name in heads:
                head = facts.head(name)
                if head is None:
                    yield Problem("draft.head", f"the model has no head '{name}' in its `heads`")
                elif head.reads == "encoder" or head.pooling() is not None or head.classes() is not None:
                    message = f"the head '{name}' ({head.part.part_name}) does not predict tokens from the last stack"
                    yield Problem("draft.head", message)

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.draws = config.sampled
        self.draft: StepDecoder | None = None

    def bind(self, tokenizer: Tokenizer, load: Load) -> None:
        if isinstance(self.config.draft, str):
            draft, other = load(self.config.draft)
            difference = difference_between(tokenizer, other) or difference_between(tokenizer.source, other.source)
            if difference:
                raise UsageError(
                    f"generate.strategy.draft: {self.config.draft} has a different vocabulary: {difference}"
                )
            self.draft = draft

    def check(self, search: Search) -> None:
        super().check(search)
        models = [search.model] if self.draft is None else [search.model, self.draft.model]
        for model in models:
            if model.caches:
                try:
                    model.new_state().check_rewind(0)
                except UsageError as error:
                    raise UsageError(
                        "generate.strategy: speculative decoding removes rejected tokens from the decode state, "
                        f"but {error}"
                    ) from None
        if isinstance(self.config.draft, HeadDraft):
            self._heads(search.model, self.config.draft)
        if self.draft is None:
            return
        own, other = (_writes(model) for model in models)
        if own != other:
            raise UsageError(f"generate.strategy.draft: {self.config.draft} is {other}, but this model is {own}")
        if search.prompts:
            try:
                check_ids(self.draft.model, search.prompts, search.sources)
                self.draft.model.extra(search.inputs_of(self.draft.model, range(len(search.prompts))))
            except UsageError as error:
                raise UsageError(f"generate.strategy.draft: {self.config.draft}: {error}") from None

    def search(self, search: Search) -> list[list[Candidate]]:
        rows = [search.of([row]) for row in range(len(search.prompts))]
        if not isinstance(self.config.draft, str):
            return [[self._written(row, row.stepper())] for row in rows]
        if self.draft is None:
            raise UsageError(f"generate.strategy.draft: the run {self.config.draft} is not loaded; call bind() first")
        with evaluating(self.draft.model):
            draft = self.draft.current()
            return [[self._written(row, row.stepper(), draft)] for row in rows]

    def _drafter(self, search: Search, stepper: Stepper, draft: Model | None) -> Drafter:
        if isinstance(self.config.draft, HeadDraft):
            return HeadDrafter(search, stepper, self._heads(search.model, self.config.draft), self.likely)
        if draft is None:
            return LookupDrafter(search)
        return ModelDrafter(replace(search, model=draft), self.likely, search.streams[0])

    def _heads(self, model: Model, draft: HeadDraft) -> list[nn.Module]:
        """Return the drafting heads. Raise UsageError if the model lacks one, or it does not predict tokens."""
        for name in draft.heads:
            if name not in model.heads:
                raise UsageError(f"generate.strategy.draft.head: this model has no head '{name}' in its `heads`")
        weight = next(model.parameters())
        hidden = torch.zeros(1, 1, model.blueprint.last.d_model, dtype=weight.dtype, device=weight.device)
        with evaluating(model):
            for name in draft.heads:
                shape = tuple(model.heads[name](hidden).shape)
                if shape != (1, 1, model.blueprint.last.vocab_size):
                    raise UsageError(f"generate.strategy.draft.head: the head '{name}' does not predict tokens")
        return [model.heads[name] for name in draft.heads]

    def _written(self, search: Search, stepper: Stepper, draft: Model | None = None) -> Candidate:
        drafter = self._drafter(search, stepper, draft)
        texts = Texts(search)
        while texts.open:
            left = search.room[0] - len(texts.written[0])
            guesses, drawn_from = drafter.guess(stepper.ahead(min(self.config.tokens, left - 1)))
            if guesses:
                stepper.append(torch.tensor([guesses], device=stepper.ids.device))
            scores = scores_after(search, stepper, len(guesses))
            tokens = self.judged(self.likely(scores), guesses, drawn_from, search.streams[0])
            kept = torch.tensor(tokens, device=scores.device)
            seconds = search.seconds()
            gains = gains_of(scores[: len(kept)], kept, search.scored or self.config.sampled).tolist()
            for token, gain in zip(tokens, gains, strict=True):
                if texts.open:
                    texts.add_to(0, token, gain, seconds)
            stepper.rewind(len(guesses) - len(tokens) + 1)
            stepper.append(kept[-1:])
            drafter.settle(len(tokens) - 1, tokens[-1])
        return texts.candidates()[0]

    def judged(self, likely: Tensor, guesses: list[int], drawn_from: Tensor, stream: random.Random) -> list[int]:
        """Return the accepted guesses and one more token.

        `likely` [guesses+1 vocab] has the probabilities of the target model, `drawn_from` [guesses vocab] those of the
        draft.
        """
        for place, token in enumerate(guesses):
            p, q = likely[place], drawn_from[place]
            if not stream.random() * float(q[token]) < float(p[token]):
                rest = (p - q).clamp(min=0)
                return [*guesses[:place], int(draw((rest if bool(rest.any()) else p)[None], [stream]))]
        return [*guesses, int(draw(likely[-1:], [stream]))]

    def likely(self, scores: Tensor) -> Tensor:
        """Return the probabilities to draw from, [rows vocab]; one-hot for the most likely token without sampling."""
        if self.config.sampled:
            return scores.softmax(dim=-1)
        return torch.nn.functional.one_hot(argmax(scores), scores.shape[-1]).to(scores.dtype)


def scores_after(search: Search, stepper: Stepper, count: int) -> Tensor:
    """Return the scores before and after each of the last `count` tokens, [count+1 vocab]."""
    logits, ids = stepper.last_logits(count + 1)[0], stepper.tokens()
    scores = []
    for place, back in enumerate(range(count, -1, -1)):  # `back` is the number of drafted tokens after this place
        written, left = stepper.written() - back, stepper.left()
        left = None if left is None else left + back
        scores.append(search.rules.scores(logits[place : place + 1], ids[:, : ids.shape[1] - back], written, left))
    return torch.cat(scores)


def _writes(model: Model) -> str:
    """Describe the properties that draft and target model must share."""
    plan = model.blueprint
    return f"{'a decoder' if plan.encoder is None else 'an encoder-decoder'} of {plan.last.vocab_size} tokens"


def difference_between(tokenizer: Tokenizer, other: Tokenizer) -> str:
    """Describe the first difference between two vocabularies; "" if they are equal."""
    if tokenizer.vocab_size != other.vocab_size:
        return f"{other.vocab_size} tokens, not {tokenizer.vocab_size}"
    names = (map(one.backend.id_to_token, range(tokenizer.vocab_size)) for one in (other, tokenizer))
    pairs = zip(range(tokenizer.vocab_size), *names, strict=True)
    return next(
        (
            f"its token {id_} is {draft_token!r}, not {token!r}"
            for id_, draft_token, token in pairs
            if draft_token != token
        ),
        "",
    )
