"""Facts about a whole recipe, and the base class of options that are checked against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config, Problem
from tfkit.core.slots import HeadFacts, ObjectiveFacts, TokenizerFacts


@dataclass(frozen=True)
class Longest:
    """Maximum number of tokens per example, and the path in the recipe that sets it."""

    tokens: int
    at: str


@dataclass(frozen=True)
class RecipeFacts:
    """Facts about a recipe before any data is read; None: not set, or invalid.

    `longest` is the length limit set by the model or `data.batch.length`, `batch_tokens` the maximum number of tokens
    per batch. `tokenizer` is the target tokenizer if the source has a separate one; `tokenizers` maps recipe paths to
    all tokenizers. `vocab_size` and `most_tokens` are the maximum vocabulary sizes of the model and the tokenizer.
    `reads_vectors` is set if the corpora provide vectors.
    """

    blueprint: Blueprint | None = None
    objective: ObjectiveFacts.Config | None = None
    tokenizer: TokenizerFacts.Config | None = None
    tokenizers: Mapping[str, TokenizerFacts.Config] = field(default_factory=dict)
    reads_data: bool = False
    longest: Longest | None = None
    packed: bool = False
    batch_tokens: int | None = None
    vocab_size: int | None = None
    most_tokens: int | None = None
    reads_vectors: bool = False
    steps: int | None = None
    logits: Sequence[Config] = field(default=())

    def token(self, role: str) -> bool | None:
        """True if a special token exists for the role; None if that depends on a file."""
        return None if self.tokenizer is None else self.tokenizer.has(role)

    def token_id(self, role: str) -> int | None:
        """Return the id of the special token for the role; None if missing or dependent on a file."""
        return None if self.tokenizer is None else self.tokenizer.id_of(role)

    def lacks(self, *roles: str) -> list[str]:
        """Return the roles that certainly have no special token."""
        return [role for role in roles if self.token(role) is False]

    def head(self, name: str | None) -> HeadFacts.Config | None:
        """Return the model's head, or the entry `name` of its `heads`."""
        if self.blueprint is None:
            return None
        return self.blueprint.head if name is None else dict(self.blueprint.heads).get(name)


class RecipeConfig(Config):
    """Options that are checked against the rest of the recipe.

    Base class for embeddings, heads, and all parts in `data:`, `objective:`, `train:` and `generate:`.
    """

    def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
        """Yield conflicts with the rest of the recipe (Problem) and suspicious options (Doubt)."""
        yield from ()
