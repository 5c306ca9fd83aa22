"""Contradictions between the sections of a recipe: each a fault that names both places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.recipe.faults import Faults
from tfkit.recipe.node import Node
from tfkit.recipe.prepare import Preparer
from tfkit.recipe.values import given, mapping

# what an objective reads -> the models it can train, in words
WANTED = {
    "encoder_decoder": "an encoder_decoder",
    "causal": "a causal stack (model.type: decoder)",
    "bidirectional": "a stack that sees both ways (model.type: encoder)",
}


def data_parts(data: Node | None) -> tuple[Config | None, dict[str, Config]]:
    """The tokenizer, and the corpora by split, that are right by themselves, whatever is wrong beside them."""
    preparer = Preparer(Faults())  # what is wrong with them is said when the whole section is validated
    slots = {"tokenizer": "tokenizer", "train": "corpus", "valid": "corpus", "test": "corpus"}
    nodes = {name: given(mapping(data), name) for name in slots}
    configs = {name: preparer.config(node, slots[name]) for name, node in nodes.items() if node is not None}
    tokenizer = configs.pop("tokenizer", None)
    return tokenizer, {split: config for split, config in configs.items() if config is not None}


class Contradictions:
    """Checks what no section of the recipe `root` can know by itself."""

    def __init__(self, root: Node, blueprint: Blueprint, faults: Faults) -> None:
        self.root = root
        self.blueprint = blueprint
        self.faults = faults

    def check_objective(self, objective: Config) -> None:
        """An objective trains models of one direction, with some types of head."""
        self._direction(objective)
        self._head(objective)

    def _direction(self, objective: Config) -> None:
        wanted = getattr(objective.part, "reads", None)
        has = _direction_of(self.blueprint)
        if wanted is not None and has != wanted:
            node = at(self.root, "objective", "type") or at(self.root, "objective") or self.root
            place = (at(self.root, "model", "type") or self.root).place
            name = objective.part.part_name
            self.faults.add(node, f"'{name}' trains {WANTED[wanted]}; this model is {WANTED[has]}, see {place}")

    def _head(self, objective: Config) -> None:
        wanted: Sequence[str] = getattr(objective.part, "heads", ())
        head, written = self.blueprint.head, at(self.root, "model", "head")
        if head is None and written is not None and written.value is not None:
            return  # a head with faults of its own
        name = None if head is None else head.part.part_name
        if wanted and name not in wanted:
            node = written or at(self.root, "model") or self.root
            has = "the model has no head" if name is None else f"the head is '{name}'"
            objective_name, types = objective.part.part_name, " or ".join(wanted)
            self.faults.add(node, f"objective '{objective_name}' needs a head of type {types}; {has}")

    def check_tokenizer(self, tokenizer: Config) -> None:
        """A tokenizer gives no ids that the model has no room for."""
        size = getattr(tokenizer, "vocab_size", None)
        for plan in self.blueprint.stacks():
            if size is None or plan.vocab_size is None or plan.vocab_size >= size:
                continue
            node = at(self.root, "data", "tokenizer", "vocab_size") or at(self.root, "data") or self.root
            said = at(self.root, "model", plan.side, "vocab_size") or at(self.root, "model", "vocab_size") or self.root
            text = (
                f"the tokenizer may have {size} tokens, the model's vocab_size is {plan.vocab_size}, see {said.place}"
            )
            self.faults.add(node, text)

    def check_corpora(self, corpora: Mapping[str, Config], objective: Config) -> None:
        """An objective finds the fields that it needs in every corpus."""
        wanted = set(getattr(objective.part, "fields", ()))
        for split, corpus in corpora.items():
            fields = set(corpus.build().fields)
            if not wanted <= fields:
                node = at(self.root, "data", split) or self.root
                missing, has = ", ".join(sorted(wanted - fields)), ", ".join(sorted(fields))
                text = f"'{objective.part.part_name}' needs the fields {missing}; this one gives {has}"
                self.faults.add(node, text)


def _direction_of(blueprint: Blueprint) -> str:
    """How a model reads: its last stack's direction, or where its layers have faults, what its type begins with."""
    if blueprint.encoder is not None and blueprint.decoder is not None:
        return "encoder_decoder"
    plan = blueprint.last
    causal = plan.causal if plan.layers else blueprint.type.part.sides[plan.side]  # type: ignore[attr-defined]
    return "causal" if causal else "bidirectional"


def at(node: Node, *keys: str) -> Node | None:
    """The node below `node` at these keys, or None."""
    for key in keys:
        if not isinstance(node.value, dict) or key not in node.value:
            return None
        node = node.value[key]
    return node
