"""Attention weights per head, labelled with tokens, and summary scores of each head."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from einops import reduce
from torch import Tensor

from tfkit.components.embedding.features import Patches
from tfkit.core.blueprint import StackPlan
from tfkit.core.bounds import LOOKED
from tfkit.core.errors import UsageError
from tfkit.core.slots import HeadFacts
from tfkit.generation.prompts import Source
from tfkit.models import Model
from tfkit.models.base import ModelOutput

Tokens = tuple[str, ...]


@dataclass(frozen=True)
class HeadScores:
    """Summary scores of one head.

    `entropy` is the mean entropy over queries, in bits. `distance` is the mean distance in tokens between query and
    key; None for cross-attention. `induction` is the mean weight on the token that follows an earlier occurrence of the
    query token; None if no token repeats.
    """

    place: str
    head: int
    entropy: float
    distance: float | None
    induction: float | None


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Weights of one attention module, [head query key], with the tokens of both axes."""

    place: str
    weights: Tensor
    queries: Tokens
    keys: Tokens

    @property
    def is_cross(self) -> bool:
        return self.place.endswith(".cross_attention")

    def scores(self) -> Iterator[HeadScores]:
        weights = self.weights.double()
        entropy = -reduce(torch.xlogy(weights, weights), "head query key -> head query", "sum") / math.log(2)
        places = torch.arange(weights.shape[-1], device=weights.device)
        distances = (places[:, None] - places).abs()  # [query key] in self-attention
        far = None if self.is_cross else reduce(weights * distances, "head query key -> head", "sum")
        induction = None if self.is_cross else self._induction(weights)
        for head in range(len(weights)):
            yield HeadScores(
                self.place,
                head,
                float(entropy[head].mean()),
                None if far is None else float(far[head]) / weights.shape[1],
                None if induction is None else float(induction[head]),
            )

    def _induction(self, weights: Tensor) -> Tensor | None:
        """Return each head's mean weight on tokens that follow an earlier occurrence of the query token."""
        same = torch.tensor([[key == query for key in self.keys] for query in self.queries])
        follows = same.roll(1, dims=1).tril()  # [query key], True if the key follows an earlier copy of the query
        follows[:, 0] = False
        repeats = follows.any(dim=1)
        if not bool(repeats.any()):
            return None
        return (weights * follows).sum(dim=-1)[:, repeats].mean(dim=-1)


@dataclass(frozen=True)
class TokenProbability:
    """A token and the probability that the model assigns to it."""

    token: str
    probability: float


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Attention weights for a text, or for a source and its target.

    `probabilities` has the tokens of the text (or target), each predicted from the preceding tokens (`predicts` is
    "next") or, by a masked language model, from the whole text ("itself"). `special` has the special tokens of the
    vocabulary, `left_out` the modules that return no weights.
    """

    maps: tuple[AttentionMap, ...]
    probabilities: tuple[TokenProbability, ...]
    predicts: Literal["next", "itself"] | None
    special: frozenset[str]
    left_out: tuple[str, ...]

    def heads(self) -> list[HeadScores]:
        """Return the scores of all heads, sorted by entropy."""
        return sorted((one for each in self.maps for one in each.scores()), key=lambda one: one.entropy)

    def map(self, place: str) -> AttentionMap:
        """Return the map of the module at `place`. Raise UsageError if it has none."""
        match = next((each for each in self.maps if each.place == place), None)
        if match is None:
            raise UsageError(
                f"there are no attention weights for '{place}'; available: {', '.join(one.place for one in self.maps)}"
            )
        return match


def attention_of(
    model: Model, source: Source, target: Sequence[int] | None, read: Tokens, written: Tokens, special: Tokens
) -> AttentionMaps:
    """Run the model on a text or vectors, or on a source and its target, and return the weights of every head.

    `read` labels the positions of the source, `written` those of the text that is predicted.
    """
    heads = max(layer.num_heads or 1 for plan in model.blueprint.stacks() for layer in plan.layers)
    count = len(model.attention_places()[0]) * heads * max(len(source), len(target or ())) ** 2
    if count > LOOKED.most:
        size = f"{len(source):,} tokens have {count:,} attention weights; at most {LOOKED.most:,} can be shown"
        raise UsageError(f"{size}; use a shorter text")
    call = {"inputs_embeds" if isinstance(source, np.ndarray) else "input_ids": _row(model, source)}
    if target is not None:
        call["decoder_input_ids"] = _row(model, target[:-1])
    with torch.no_grad():
        out = model(**call, observe={"attention"})
    maps = []
    for place, weights in out.observed.items():
        queries = written[: weights.shape[2]] if place.startswith(model.blueprint.last.side) else read
        keys = read if place.endswith(".cross_attention") else queries
        maps.append(AttentionMap(place, weights[0].float().cpu(), queries, keys))
    text = source if target is None else target
    left_out = tuple(model.attention_places()[1])
    return AttentionMaps(tuple(maps), *_probabilities(model, out, text, written), frozenset(special), left_out)


def position_labels(plan: StackPlan, sizes: Sequence[int], count: int) -> Tokens:
    """Label the vectors of an array by number, and the patches of a picture by row:column, after the class token."""
    if not isinstance(plan.embedding, Patches.Config):
        return tuple(map(str, range(count)))
    columns, first = sizes[1] // plan.embedding.size, int(plan.embedding.class_token)
    return ("[class]",) * first + tuple(f"{place // columns}:{place % columns}" for place in range(count - first))


def _row(model: Model, source: Source) -> Tensor:
    return torch.as_tensor(source, device=next(model.parameters()).device)[None]


def _probabilities(
    model: Model, out: ModelOutput, ids: Source, tokens: Tokens
) -> tuple[tuple[TokenProbability, ...], Literal["next", "itself"] | None]:
    """Return the probability of each token, and the kind of prediction; empty if the model has no token head."""
    head = model.blueprint.head
    of_tokens = isinstance(head, HeadFacts.Config) and head.part.part_name in ("language_model", "masked_lm")
    if out.logits is None or out.logits.dim() != 3 or not of_tokens:
        return (), None
    probabilities = out.logits[0].float().softmax(dim=-1).cpu()
    causal = model.blueprint.last.causal
    places = range(1, len(ids)) if causal else range(len(ids))
    result = tuple(
        TokenProbability(tokens[place], float(probabilities[place - causal, int(ids[place])])) for place in places
    )
    return result, "next" if causal else "itself"
