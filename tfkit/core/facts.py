"""What the parts of one section may ask about the other sections of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.slots import HeadFacts, ObjectiveFacts, TokenizerFacts


@dataclass(frozen=True)
class Longest:
    """The most tokens that an example may have, and the path in the recipe that says so."""

    tokens: int
    at: str


@dataclass(frozen=True)
class RecipeFacts:
    """What is known of a recipe before any data is read; None: not set, or wrong by itself.

    `longest` is what the model and `data.batch.length` allow, and `batch_tokens` the most tokens of a batch.
    `tokenizer` is the target's where source and target have one each; `tokenizers` are all, by their paths.
    `vocab_size` and `most_tokens` are the largest that the vocabularies of the model and of the tokenizer can be.
    `reads_vectors` is set where the corpora give vectors.
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
        """Whether there is a special token of that role; None where only a file can say."""
        return None if self.tokenizer is None else self.tokenizer.has(role)

    def token_id(self, role: str) -> int | None:
        """The id of the special token of that role; None where there is none, or only a file can say."""
        return None if self.tokenizer is None else self.tokenizer.id_of(role)

    def lacks(self, *roles: str) -> list[str]:
        """The roles that no special token will have."""
        return [role for role in roles if self.token(role) is False]

    def head(self, name: str | None) -> HeadFacts.Config | None:
        """The model's head, or the one called `name` among its `heads`."""
        if self.blueprint is None:
            return None
        return self.blueprint.head if name is None else dict(self.blueprint.heads).get(name)
