"""Base classes of objectives, which compute losses, and of answers, which predict outputs and return references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from tfkit.core.component import Problem
from tfkit.core.errors import UsageError, with_article
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.core.slots import AnswersFacts, ObjectiveFacts
from tfkit.data.tokenizer import Tokenizer
from tfkit.functional.view import wide
from tfkit.models import Model
from tfkit.training.objective.baseline import Baseline
from tfkit.training.objective.rows import Batch, Example, Item, Rows, extra_of


@dataclass(frozen=True)
class Loss:
    """Loss `total` in nats, a differentiable sum over `count` targets."""

    total: Tensor
    count: int


Prediction = dict[str, Any]  # JSON-serializable answer to one example


class Answers(AnswersFacts):
    """Base class of answers to examples, computed by `predict` if `predicts` is set, else generated as text."""

    rows: Rows

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.rows = objective.rows

    def predict(self, model: Model, examples: Sequence[Example], tokenizer: Tokenizer) -> list[Prediction]:
        """Answer each example without reading its reference. Raise UsageError or DataError for unusable examples."""
        raise UsageError(f"models trained with {self.objective.part_name} make no predictions for texts")

    def text(self, prediction: Prediction) -> str:
        """Convert a prediction to the text that metrics compare."""
        raise UsageError(f"{self.objective.part_name} makes no predictions")

    def chances(self, prediction: Prediction) -> str:
        """Convert a prediction to the probabilities that metrics compare, as JSON."""
        raise UsageError(f"{self.objective.part_name} predicts no probabilities")

    def wanted(self, example: Example) -> str:
        """Return the reference of an example as the text that metrics compare."""
        return example[self.reference] if self.reference is not None else ""


class Objective(ObjectiveFacts):
    """Base class of objectives. Subclasses define `loss`, and set `rows_type` to their data preparation."""

    class Config(ObjectiveFacts.Config, RecipeConfig):
        def shortest(self, facts: RecipeFacts) -> int:
            """Return the minimum number of tokens in a row."""
            return 1

        def source_roles(self) -> tuple[str, ...]:
            """Return the roles of special tokens that a separate source tokenizer must have."""
            return ()

        def check_recipe(self, facts: RecipeFacts) -> Iterator[Problem]:
            yield from self._missing_tokens(facts)
            yield from self._no_room(facts)
            yield from self._vectors(facts)

        def _missing_tokens(self, facts: RecipeFacts) -> Iterator[Problem]:
            for path, tokenizer in facts.tokenizers.items():
                roles = self.part.rows_type.required
                for role in self.source_roles() if path.endswith(".source") else roles:
                    if tokenizer.has(role) is False:
                        text = f"'{self.part.part_name}' requires a special token for {role}; add one, such as <{role}>"
                        yield Problem(role, text, at=f"{path}.special_tokens")

        def _no_room(self, facts: RecipeFacts) -> Iterator[Problem]:
            least, name = self.shortest(facts), self.part.part_name
            if facts.longest is not None and facts.longest.tokens < least:
                text = f"'{name}' requires rows of at least {least} tokens, special tokens included"
                yield Problem("", f"{text}; the limit here is {facts.longest.tokens}", at=facts.longest.at)
            if facts.batch_tokens is not None and facts.batch_tokens < least:
                yield Problem(
                    "tokens", f"a batch must hold a row of '{name}', which has at least {least} tokens", at="data.batch"
                )

        def _vectors(self, facts: RecipeFacts) -> Iterator[Problem]:
            if facts.blueprint is None or "inputs_embeds" in self.part.gives:
                return
            for place, plan in enumerate(facts.blueprint.stacks()):
                read = facts.reads_vectors and not place
                if read and not plan.reads_vectors:
                    text = f"the {plan.side} reads token ids, but data.train contains vectors"
                    yield Problem(
                        "embedding", f"{text}; use embedding: features or embedding: patches", at=f"model.{plan.side}"
                    )
                elif plan.reads_vectors and not read:
                    text = f"the {plan.side} reads vectors, but '{self.part.part_name}' trains on token ids"
                    yield Problem("embedding", f"{text}; use embedding: tokens", at=f"model.{plan.side}")

    rows_type: ClassVar[type[Rows]] = Rows
    answers_type: ClassVar[type[Answers] | None] = None
    # `likelihood` means that the loss is -log p of the targets
    capabilities = frozenset({"likelihood"})

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rows = self.rows_type(config)
        self.answers = None if self.answers_type is None else self.answers_type(self)
        self.module: nn.Module | None = None  # trained together with the model

    def attach(self, model: Model) -> None:
        """Prepare to train this model. Raise UsageError if it is unsuitable."""

    def loss(self, model: Model, batch: Batch, training: bool) -> Loss:
        """Compute the loss of `model` on `batch`. Label smoothing and auxiliary losses apply only in training."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def baseline(self, train_items: Sequence[Item], valid_items: Sequence[Item]) -> Baseline | None:
        """Return the loss of a simple baseline on the same targets, or None."""
        return None


def text_fields(objective: Objective) -> list[str]:
    """Return the input fields of the objective: all fields except the reference."""
    reference = None if objective.answers is None else objective.answers.reference
    return [field for field in objective.rows.fields if field != reference]


def predicts(objective: Objective) -> bool:
    """True if models trained with this objective predict answers without generating text."""
    return objective.answers is not None and objective.answers.predicts


def causal_loss(model: Model, batch: Batch, training: bool) -> Loss:
    """Compute the loss of a decoder at the predicted positions."""
    out = model(
        input_ids=batch["input_ids"],
        position_ids=batch.get("position_ids"),
        segment_ids=batch.get("segment_ids"),
        with_heads=False,
        **counted_padding(model, batch),
        **extra_of(batch),
    )
    return finished(token_loss(model, out.hidden, batch), out.auxiliary_loss, len(batch["labels"]), training)


def counted_padding(model: Model, batch: Batch, prefix: str = "") -> Batch:
    """Return the mask of a decoder's batch for models that count tokens.

    Others need none: the causal mask hides padding on the right, and kernels are faster without a mask.
    """
    name = f"{prefix}attention_mask"
    counts = isinstance(model, Model) and model.stack(model.blueprint.last.side).counts_tokens
    return {name: batch[name]} if counts and name in batch else {}


def token_loss(model: Model, hidden: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Sum the loss in nats over `labels`. `hidden` is [batch time d_model].

    Logits are computed only at the positions `predicted`. Raise UsageError if the model has no token head.
    """
    total: Tensor = _token_head(model).loss(_predicted(hidden, batch), batch["labels"], smoothing)
    return total


def token_logits(model: Model, hidden: Tensor, batch: Batch) -> Tensor:
    """Return the logits [n vocab_size] that predict `labels` [n], in at least float32.

    For losses that need all logits at once. `hidden` is [batch time d_model]. Raise UsageError without a token head.
    """
    logits: Tensor = _token_head(model)(_predicted(hidden, batch))
    return wide(logits)


def _predicted(hidden: Tensor, batch: Batch) -> Tensor:
    """Select the hidden states [n d_model] at the positions that predict `labels`."""
    rows = hidden.flatten(0, 1)  # [batch*time d_model]
    return rows.index_select(0, batch["predicted"]) if "predicted" in batch else rows


def _token_head(model: Model) -> Any:
    if not hasattr(model.head, "loss"):
        what = "no head" if model.head is None else with_article(type(model.head).__name__)
        raise UsageError(f"the objective predicts tokens, but the model has {what}; use a head such as language_model")
    return model.head_of_last


def finished(total: Tensor, auxiliary: Tensor | None, count: int, training: bool) -> Loss:
    """Add the auxiliary loss (per target) in training."""
    if training and auxiliary is not None:
        total = total + auxiliary * count
    return Loss(total, count)
