"""Searches over several candidates: beam search, its diverse variant, and contrastive search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError
from tfkit.core.facts import RecipeFacts
from tfkit.core.options import NonNegativeFloat, TextCount
from tfkit.core.registry import register
from tfkit.functional.view import topk, wide
from tfkit.generation.search import IMPOSSIBLE, Candidate, Search
from tfkit.generation.stepper import Stepper
from tfkit.generation.stop import EndToken
from tfkit.generation.strategy.base import Strategy
from tfkit.generation.strategy.rows import Texts, gains_of, started


class BeamText(NamedTuple):
    """A partial hypothesis; `total` is the log-probability minus the penalties of the search."""

    ids: tuple[int, ...] = ()
    total: float = 0.0
    log_probability: float = 0.0


class Ended(NamedTuple):
    """A finished hypothesis and its ranking score."""

    score: float
    beam: BeamText


class Continuation(NamedTuple):
    """A token to append to the beam at `place` of a group: the new total, and the token's log-probability."""

    total: float
    gain: float
    place: int
    token: int


class BeamSearch(Strategy):
    """Beam search with one or several groups per prompt; subclasses define the value of a continuation.

    Logits rules receive log-probabilities, as in Hugging Face transformers.
    """

    streams = False
    groups: int = 1

    class Config(Strategy.Config):
        num_beams: TextCount = Field(4, description="beams per prompt")
        length_penalty: float = Field(
            1.0, ge=-20, le=20, description="score = log p / tokens ** length_penalty; above 0 favours longer texts"
        )
        n_best: TextCount = Field(1, description="texts returned per prompt, best first; at most num_beams")
        early_stopping: bool | Literal["never"] = Field(
            False,
            description="when to stop with num_beams finished texts; true: at once; false: if no open beam currently "
            "scores higher; never: if no open beam can score higher at any length",
        )

        @model_validator(mode="after")
        def _as_many(self) -> BeamSearch.Config:
            if self.n_best > self.num_beams:
                raise ValueError(f"n_best {self.n_best} exceeds num_beams {self.num_beams}")
            return self

    config: Config

    @property
    def texts_returned(self) -> int:
        return self.config.n_best

    @property
    def texts_at_once(self) -> int:
        return self.config.num_beams

    def totals(self, groups: Sequence[Group], scores: Tensor) -> Tensor:
        """Return the value of each continuation, [groups beams vocab]; `scores` are log-probabilities."""
        beams = [[beam.total for beam in group.filled()[: scores.shape[1]]] for group in groups]
        return scores + torch.tensor(beams, dtype=scores.dtype, device=scores.device)[..., None]

    def best(self, groups: Sequence[Group], totals: Tensor, count: int) -> Tensor:
        """Return the indices [groups count] of the best continuations in `totals` [groups beams*vocab], best first."""
        return topk(totals, count)[1]

    def search(self, search: Search) -> list[list[Candidate]]:
        groups_by_prompt = [self._begin(search, row) for row in range(len(search.prompts))]
        groups = [group for groups in groups_by_prompt for group in groups if search.room[group.row]]
        if groups:
            self._write(search, groups)
        return [self._candidates(search, groups) for groups in groups_by_prompt]

    def _begin(self, search: Search, row: int) -> list[Group]:
        """Create the groups of a prompt; each refers to all earlier groups."""
        groups: list[Group] = []
        for _ in range(self.groups):
            groups.append(Group(self.config, search, row, self.config.num_beams // self.groups, tuple(groups)))
        return groups

    def _write(self, search: Search, groups: list[Group]) -> None:
        """Extend the beams of all groups until every group is closed."""
        stepper, logits = started(search, [group.row for group in groups])
        while True:
            logs = wide(logits).log_softmax(dim=-1)
            scores = search.rules.scores(logs, stepper.tokens(), stepper.written(), stepper.left())
            self._extend(search, groups, scores.view(len(groups), -1, scores.shape[1]))
            beams = len(scores) // len(groups)
            rows = [index * beams + place for index, group in enumerate(groups) for place in group.places()]
            groups = [group for group in groups if group.open]
            if not groups:
                return
            tokens = [beam.ids[-1] if beam.ids else 0 for group in groups for beam in group.filled()]
            stepper.keep(torch.tensor(rows, device=scores.device))
            stepper.append(torch.tensor(tokens, device=scores.device))
            logits = stepper.logits()

    def _extend(self, search: Search, groups: Sequence[Group], scores: Tensor) -> None:
        """Extend all groups by one token, the groups of a prompt in order; `scores` are [groups beams vocab]."""
        seconds = search.seconds()
        for number in range(self.groups):
            own = [index for index, group in enumerate(groups) if len(group.before) == number]
            if own:
                self._follow([groups[index] for index in own], scores if self.groups == 1 else scores[own], seconds)

    def _follow(self, groups: Sequence[Group], scores: Tensor, seconds: float) -> None:
        vocab = scores.shape[2]
        totals = self.totals(groups, scores).flatten(1)
        # enough continuations for num_beams open beams, even if all end tokens rank higher
        stop = groups[0].search.rules.stop
        ends = {token for rule in stop if isinstance(rule, EndToken) for token in rule.ends}
        count = min(max(2, 1 + len(ends)) * groups[0].width, totals.shape[1])
        places = self.best(groups, totals, count)
        continuations = (totals.gather(1, places), scores.flatten(1).gather(1, places), places)
        found = torch.stack([one.double() for one in continuations]).tolist()  # one wait for the device
        for group, values, gains, where in zip(groups, *found, strict=True):
            parts = zip(values, gains, map(int, where), strict=True)
            group.follow([Continuation(total, gain, *divmod(place, vocab)) for total, gain, place in parts], seconds)

    def _candidates(self, search: Search, groups: Sequence[Group]) -> list[Candidate]:
        ended = sorted((text for group in groups for text in group.ended), key=lambda text: text.score, reverse=True)
        best = ended[: self.config.n_best] or [Ended(0.0, BeamText())]
        return [search.candidate(beam.ids, beam.log_probability, score) for score, beam in best]


@dataclass
class Group:
    """Competing beams of one prompt: the open beams, and the best finished ones."""

    config: BeamSearch.Config
    search: Search
    row: int  # index of the prompt
    width: int
    before: tuple[Group, ...]  # earlier groups of the prompt
    active: list[BeamText] = field(default_factory=lambda: [BeamText()])  # open beams, best first
    ended: list[Ended] = field(default_factory=list)  # finished beams, best first
    origins: list[int] = field(default_factory=list)  # previous place of each open beam
    last_tokens: list[int] = field(default_factory=list)  # of the open beams; if none is open, of those just finished
    steps: int = 0

    @cached_property
    def generator(self) -> torch.Generator:
        """RNG of the group, seeded from the prompt's stream."""
        return torch.Generator().manual_seed(self.search.streams[self.row].getrandbits(63))

    @property
    def open(self) -> bool:
        """True if an open beam can still be among the best."""
        if not self.active or len(self.ended) < self.width:
            return bool(self.active)
        # with one beam, the first finished text is final
        if self.config.early_stopping is True or self.width == 1:
            return False
        best, length = self.active[0], len(self.active[0].ids)
        if self.config.early_stopping == "never" and self.config.length_penalty > 0:
            length = self.search.room[self.row]
        return self._score(best, length) > self.ended[-1].score

    def filled(self) -> list[BeamText]:
        """Return the open beams, padded to the width with beams of probability 0."""
        return self.active + [BeamText((), IMPOSSIBLE)] * (self.width - len(self.active))

    def places(self) -> list[int]:
        """Return the previous place of each beam, padded to the width; empty if the group is closed."""
        return self.origins + [0] * (self.width - len(self.origins)) if self.open else []

    def follow(self, continuations: Sequence[Continuation], seconds: float) -> None:
        """Select the best continuations. Finished hypotheses are kept if they can still win.

        If no continuation is possible and no beam has finished yet, the beams end as they are.
        """
        beams, self.active, self.origins, ended = self.active, [], [], []
        self.steps += 1
        for rank, (total, gain, place, token) in enumerate(continuations):
            if total == IMPOSSIBLE or len(self.active) == self.width:
                break
            if not math.isfinite(total):
                raise self.search.not_finite(self.row, len(beams[place].ids))
            beam = BeamText((*beams[place].ids, token), total, beams[place].log_probability + gain)
            if not self.search.ends(self.row, beam.ids, seconds):
                self.active.append(beam)
                self.origins.append(place)
            elif rank < self.width:  # lower-ranked ends are dropped
                ended.append(beam)
        self.last_tokens = [beam.ids[-1] for beam in self.active or ended]
        self._end(ended if self.active or self.ended or ended else beams)

    def _end(self, beams: Sequence[BeamText]) -> None:
        self.ended += [Ended(self._score(beam, len(beam.ids)), beam) for beam in beams]
        self.ended.sort(key=lambda text: text.score, reverse=True)
        del self.ended[self.width :]

    def _score(self, beam: BeamText, length: int) -> float:
        return float(beam.total / max(1, length) ** self.config.length_penalty)


@register("strategy", "beam")
class Beam(BeamSearch):
    """Repeatedly extends the num_beams most likely prefixes; score = log p(text) / tokens ** length_penalty.

    Lowerre 1976; length penalty by Wu et al. 2016 (arXiv 1609.08144), in Hugging Face's form. `tokens` is the number of
    written tokens, including an end token. `sampled` draws continuations without replacement from the joint probability
    of beam and token, by taking the largest log p + Gumbel noise (Kool et al. 2019, arXiv 1903.06059).
    """

    class Config(BeamSearch.Config):
        sampled: bool = Field(False, description="draw the continuations of the beams instead of taking the best")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.draws = config.sampled

    def best(self, groups: Sequence[Group], totals: Tensor, count: int) -> Tensor:
        if not self.config.sampled:
            return super().best(groups, totals, count)
        noise = torch.stack([gumbel(totals.shape[1], group.generator, totals.dtype) for group in groups])
        drawn = topk(totals + noise.to(totals.device), count)[1]
        order = totals.gather(1, drawn).argsort(dim=1, descending=True)
        return drawn.gather(1, order)


def gumbel(count: int, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw Gumbel noise, [count]: the argmax of log p + noise is a sample from p."""
    return -torch.empty(count, dtype=dtype).exponential_(generator=generator).clamp(min=1e-30).log()


@register("strategy", "diverse_beam")
class DiverseBeam(BeamSearch):
    """log p - diversity * (times earlier groups chose the token in this step) (Vijayakumar et al. 2016, 1610.02424).

    Each group is a beam search with num_beams / groups beams; the first group is not penalized. Penalties remain in
    the score of a beam, as in the authors' code, but not in the log-probability of a text.
    """

    class Config(BeamSearch.Config):
        groups: TextCount = Field(2, description="number of groups of equal size, up to num_beams")
        diversity: NonNegativeFloat = Field(
            0.5, description="subtracted per beam of earlier groups that chose the token (the paper: 0.2 to 0.8)"
        )

        @model_validator(mode="after")
        def _equal(self) -> DiverseBeam.Config:
            if self.num_beams % self.groups:
                raise ValueError(
                    f"num_beams {self.num_beams} cannot be split into {self.groups} equal groups; use a multiple "
                    f"of {self.groups}"
                )
            return self

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.groups = config.groups

    def totals(self, groups: Sequence[Group], scores: Tensor) -> Tensor:
        chosen = torch.zeros(len(groups), scores.shape[2], dtype=scores.dtype)
        for index, group in enumerate(groups):
            for token in (token for other in group.before if other.steps > group.steps for token in other.last_tokens):
                chosen[index, token] += 1
        return super().totals(groups, scores) - self.config.diversity * chosen.to(scores.device)[:, None]


@register("strategy", "contrastive")
class Contrastive(Strategy):
    """next = argmax of (1 - alpha) p(v) - alpha max_j cos(h_v, h_j) over top k (Su et al. 2022, arXiv 2202.06417).

    h_v is the last hidden state of token v appended to the text; h_j are the hidden states of the text so far (of the
    target, in an encoder-decoder). Each step computes k rows per text.
    """

    class Config(Strategy.Config):
        k: TextCount = Field(4, description="candidate tokens per step (the paper: 3 to 8)")
        alpha: Annotated[float, Field(ge=0, le=1)] = Field(
            0.6, description="weight of the similarity penalty; 0 is greedy search (the paper: 0.6)"
        )

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            if facts.vocab_size is not None and self.k > facts.vocab_size:
                yield Problem("k", f"{self.k} exceeds the vocabulary of {facts.vocab_size} tokens")

    config: Config

    @property
    def texts_at_once(self) -> int:
        return self.config.k

    def check(self, search: Search) -> None:
        super().check(search)
        size = search.model.blueprint.last.vocab_size
        if size is not None and self.config.k > size:
            raise UsageError(f"generate.strategy.k: {self.config.k} exceeds the vocabulary of {size} tokens")

    def search(self, search: Search) -> list[list[Candidate]]:
        texts = Texts(search)
        if texts.open:
            self._write(search, texts)
        return [[candidate] for candidate in texts.candidates()]

    def _write(self, search: Search, texts: Texts) -> None:
        k = self.config.k
        stepper = search.stepper()
        logits, before = stepper.logits(), directions(stepper)
        while True:
            scores = search.rules.scores(logits, stepper.tokens(), stepper.written(), stepper.left())
            values, tokens = topk(scores, k)
            rows = torch.arange(len(scores), device=scores.device)
            stepper.keep(rows.repeat_interleave(k))
            stepper.append(tokens.flatten())
            logits, own = stepper.logits(), directions(stepper)[:, -1]
            worth = self.worth(scores.softmax(dim=-1).gather(1, tokens), own.view(-1, k, own.shape[1]), before)
            best = worth.where(values != IMPOSSIBLE, IMPOSSIBLE).argmax(dim=1)
            chosen = tokens.gather(1, best[:, None])[:, 0]
            texts.add(chosen, gains_of(scores, chosen, search.scored))
            if not texts.open:
                return
            stay = texts.leavers()
            kept = rows if stay is None else torch.tensor(stay, device=rows.device)
            taken = kept * k + best[kept]  # index into the candidate rows
            stepper.keep(taken)
            logits, before = logits[taken], torch.cat((before[kept], own[taken, None]), dim=1)

    def worth(self, likely: Tensor, own: Tensor, before: Tensor) -> Tensor:
        """Return the score of each candidate token, [rows k].

        `likely` [rows k] has probabilities. `own` [rows k d_model] and `before` [rows time d_model] have the normalized
        hidden states of candidates and of the text, which are 0 for padding.
        """
        similarity = torch.einsum("r k d, r t d -> r k t", own, before).masked_fill(~before.any(dim=2)[:, None], -1.0)
        return (1 - self.config.alpha) * likely - self.config.alpha * similarity.amax(dim=2)


def directions(stepper: Stepper) -> Tensor:
    """Return the normalized hidden states of the tokens computed last, [rows new d_model]; 0 for padding."""
    last: Tensor = stepper.hidden  # type: ignore[assignment]  # set by logits()
    hidden = torch.nn.functional.normalize(wide(last), dim=-1)
    if stepper.real is None:
        return hidden
    return hidden * stepper.real[:, -hidden.shape[1] :, None]
