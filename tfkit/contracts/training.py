"""A small vocabulary, and a small model and its training, to test parts of training and generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfkit.contracts.calls import tokens
from tfkit.contracts.cases import Case
from tfkit.contracts.expect import expect
from tfkit.contracts.options import LINES, VOCABULARY, required
from tfkit.core.registry import REGISTRY
from tfkit.data.tokenizer import Tokenizer
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe

TOPOLOGY = {"causal": "decoder", "bidirectional": "encoder", "encoder_decoder": "encoder_decoder"}
MAX_LENGTH = 48


def letters(**special: str | int | None) -> Tokenizer:
    """Return a vocabulary of letters with all special tokens, which `special` overrides."""
    options = {"special_tokens": {"mask": "<mask>", "separator": "<sep>", "sentinels": 20} | special}
    tokenizer: Tokenizer = REGISTRY.get("tokenizer", "character").Config.model_validate(options).build().fit(LINES)
    return tokenizer


def small_model(
    reads: str, head: str, vocab_size: int, beside: Mapping[str, Sequence[str]] | None = None, **head_options: object
) -> Model:
    """Build a two-layer model with the given head, for objectives that read `reads`, in eval mode."""
    topology = TOPOLOGY[reads]
    recipe = Case("model", topology, topology).recipe()
    recipe["model"] |= {
        "vocab_size": vocab_size,
        "max_length": MAX_LENGTH,
        "embedding": {"type": "tokens", **({"shared": True} if reads == "encoder_decoder" else {})},
        "head": {"type": head, **required("head", head), **head_options},
        "heads": {name: {"type": types[0], **required("head", types[0])} for name, types in (beside or {}).items()},
        "init": {"type": "normal", "std": 0.3},
    }
    return build_model(load_recipe(recipe).blueprint(), seed=1).eval()


class Trial:
    """The training of a small model with tied embeddings on a fixed batch of tokens."""

    optimizer: torch.optim.Optimizer

    def __init__(self, model: Model | None = None) -> None:
        self.model = model or small_model("causal", "language_model", VOCABULARY, tied=True)

    def logits(self) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens(4, 9)[:, :-1]).logits
        return logits

    def loss(self) -> Tensor:
        """Return the next-token cross-entropy of the batch."""
        return torch.nn.functional.cross_entropy(self.logits().flatten(0, 1), tokens(4, 9)[:, 1:].flatten())

    def step(self, number: int = 1) -> None:
        for _ in range(number):
            self.optimizer.zero_grad()
            torch.autograd.backward(self.loss())
            self.optimizer.step()

    def learns(self, steps: int) -> None:
        """Take steps. Raise Broken unless they lower the loss."""
        first = float(self.loss().detach())
        self.step(steps)
        last = float(self.loss().detach())
        what = f"{steps} steps on the same tokens do not lower the loss: {first:.3f} before, {last:.3f} after"
        expect(last < first, what)

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    def moved(self, before: Mapping[str, Tensor]) -> list[str]:
        """Return the names of weights that differ from `before`, sorted."""
        named = self.model.named_parameters()
        return sorted(name for name, weight in named if not torch.equal(weight, before[name]))
