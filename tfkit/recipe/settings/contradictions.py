"""Contradictions between the sections of a recipe: each is a fault that names both places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component, Config
from tfkit.core.plugins import is_shipped
from tfkit.core.slots import HeadFacts, ObjectiveFacts, TokenizerFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.rules import fact, reason
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node
from tfkit.recipe.text.values import given, mapping

# direction of an objective -> description of the models that it trains
WANTED = {
    "encoder_decoder": "an encoder_decoder",
    "causal": "a causal stack (model.type: decoder)",
    "bidirectional": "a stack that sees both ways (model.type: encoder)",
}

SIDES = {"encoder": "source", "decoder": "target"}  # the text of a pair read or written by each stack


def data_parts(data: Node | None) -> tuple[dict[str, TokenizerFacts.Config], dict[str, Config]]:
    """Return the valid tokenizers by path and the valid corpora by split, in spite of other faults."""
    preparer = Preparer(Faults())  # their faults are reported when the whole section is validated
    nodes = {name: given(mapping(data), name) for name in ("train", "valid", "test", "longer")}
    corpora = preparer.of_corpora(data)
    configs = {name: corpora.config(node, "corpus") for name, node in nodes.items() if node is not None}
    tokenizers = {
        node.path: config
        for node in _tokenizer_nodes(given(mapping(data), "tokenizer"))
        if (config := of_kind(preparer.config(node, "tokenizer"), TokenizerFacts.Config)) is not None
    }
    return tokenizers, {split: config for split, config in configs.items() if config is not None}


def _tokenizer_nodes(node: Node | None) -> list[Node]:
    """Return the nodes of the tokenizer, or of those of source and target."""
    if node is None or (isinstance(node.value, dict) and "type" in node.value):
        return [] if node is None else [node]
    sides = [side for name in ("source", "target") if (side := node.get(name)) is not None]
    return sides or [node]


class Contradictions:
    """Checks that involve several sections of the recipe `root`."""

    def __init__(self, root: Node, blueprint: Blueprint, faults: Faults) -> None:
        self.root = root
        self.blueprint = blueprint
        self.faults = faults

    def check_objective(self, objective: ObjectiveFacts.Config) -> None:
        """Check the direction and the head of the model against the objective."""
        self._direction(objective)
        self._head(objective)

    def _direction(self, objective: ObjectiveFacts.Config) -> None:
        wanted = objective.part.reads
        has = direction_of(self.blueprint)
        if wanted is not None and has != wanted and has not in objective.part.also:
            node = at(self.root, "objective", "type") or at(self.root, "objective") or self.root
            place = (at(self.root, "model", "type") or self.root).place
            name = objective.part.part_name
            self.faults.add(node, f"'{name}' trains {WANTED[wanted]}; this model is {WANTED[has]}, see {place}")

    def _head(self, objective: ObjectiveFacts.Config) -> None:
        self._has_head(objective, objective.trained_head(), objective.part.heads)
        for name, types in objective.part.beside.items():
            self._has_head(objective, name, types)

    def _has_head(self, objective: ObjectiveFacts.Config, name: str | None, wanted: Sequence[str]) -> None:
        """Check that the model's head, or the one called `name`, has a type that the objective can train."""
        way = ("model", "head") if name is None else ("model", "heads", name)
        head = self.blueprint.head if name is None else dict(self.blueprint.heads).get(name)
        written = at(self.root, *way)
        if head is None and written is not None and written.value is not None:
            return  # a head with faults of its own
        if wanted and (head is None or not serves(head.part, wanted)):
            node = written or at(self.root, "model") or self.root
            what = "head" if name is None else f"head '{name}'"
            has = f"the model has no {what}" if head is None else f"the {what} is '{head.part.part_name}'"
            types = " or ".join(wanted)
            self.faults.add(node, f"objective '{objective.part.part_name}' needs a {what} of type {types}; {has}")
        elif head is not None and is_shipped(objective.part):
            self._reads_last(objective, head, written)

    def _reads_last(self, objective: ObjectiveFacts.Config, head: HeadFacts.Config, written: Node | None) -> None:
        """Check that the head is on the last stack, as all objectives require."""
        last = self.blueprint.last
        if written is not None and self.blueprint.read_by(head) is not last:
            text = f"'{objective.part.part_name}' trains it on the {last.side}; say reads: {last.side}, or leave it out"
            self.faults.add(at(written, "reads") or written, text)

    def check_labels(self, asked: Sequence[Node], objective: ObjectiveFacts.Config | None) -> None:
        """Check that `num_classes: labels` is in the head trained by an objective with labels."""
        name = None if objective is None else objective.trained_head()
        trains = "head" if name is None else f"heads.{name}"
        for node in asked:
            if objective is None or not objective.part.rows_type.labelled:
                why = "there is no objective" if objective is None else f"'{objective.part.part_name}' has none"
                self.faults.add(
                    node, f"labels are those that an objective learns from the corpus, and {why}; say a number"
                )
            elif node.path != f"model.{trains}.num_classes":
                self.faults.add(node, f"labels are those of model.{trains}, which the objective trains; say a number")

    def check_calls(self, objective: ObjectiveFacts.Config) -> None:
        """Check that the objective passes the required call inputs and that all parts support its batches."""
        node = at(self.root, "objective") or self.root
        pack = at(self.root, "data", "batch", "pack")
        packed = pack if pack is not None and pack.value is True else None
        if packed is not None and "packing" not in objective.part.capabilities:
            self.faults.add(packed, f"'{objective.part.part_name}' cannot pack its batches; see {node.place}")
        for part in self._parts():
            self._check_needs(objective, part, node)
            if "attention_mask" in _gives(objective) and (rule := fact("a batch with padding")).refuses(part):
                self.faults.add(node, f"{reason(rule, part)}; '{objective.part.part_name}' makes such batches")
            if packed is not None and (rule := fact("a packed batch")).refuses(part):
                self.faults.add(packed, reason(rule, part))

    def _parts(self) -> list[type[Component]]:
        """Return the distinct parts of all stacks in a fixed order."""
        parts = {config.part for plan in self.blueprint.stacks() for config in plan.parts()}
        return sorted(parts, key=lambda part: (part.part_slot, part.part_name))

    def _check_needs(self, objective: ObjectiveFacts.Config, part: type[Component], node: Node) -> None:
        for name in sorted(part.needs - _gives(objective)):
            who = f"{part.part_slot} '{part.part_name}'"
            text = f"'{objective.part.part_name}' hands over no {name}, which {who} needs with every call"
            self.faults.add(node, text)

    def check_sides(
        self, tokenizers: Mapping[str, TokenizerFacts.Config], objective: ObjectiveFacts.Config | None
    ) -> None:
        """Check that the objective supports two tokenizers, and that the token tables are not shared."""
        node = at(self.root, "data", "tokenizer")
        if len(tokenizers) < 2 or node is None:
            return
        if objective is not None and "two_vocabularies" not in objective.part.capabilities:
            place = (at(self.root, "objective", "type") or at(self.root, "objective") or self.root).place
            text = f"'{objective.part.part_name}' writes what it reads (see {place}) with one tokenizer; name one"
            self.faults.add(node, text, at_key=True)
        if self.blueprint.shared_embedding:
            shared = at(self.root, "model", "embedding", "shared") or at(self.root, "model") or self.root
            text = f"one token table cannot serve the two vocabularies of data.tokenizer, see {node.place}"
            self.faults.add(shared, f"{text}; leave shared out, or name one tokenizer")

    def check_tokenizers(self, tokenizers: Mapping[str, TokenizerFacts.Config]) -> None:
        """Check that the vocabulary of the tokenizer fits the model."""
        for plan in self.blueprint.stacks():
            ends = f".{SIDES[plan.side]}"
            path, tokenizer = next(
                ((path, one) for path, one in tokenizers.items() if len(tokenizers) == 1 or path.endswith(ends)),
                ("", None),
            )
            size = None if tokenizer is None else tokenizer.vocabulary_bound
            if size is None or plan.vocab_size is None or plan.vocab_size >= size:
                continue
            keys = path.split(".")
            node = at(self.root, *keys, "vocab_size") or at(self.root, "data") or self.root
            sized = at(self.root, "model", plan.side, "vocab_size") or at(self.root, "model", "vocab_size") or self.root
            text = (
                f"the tokenizer may have {size} tokens, the model's vocab_size is {plan.vocab_size}, see {sized.place}"
            )
            self.faults.add(node, text)

    def check_corpora(self, corpora: Mapping[str, Config], objective: ObjectiveFacts.Config) -> None:
        """Check that every corpus provides the fields that the objective needs."""
        given = {split: set(corpus.build().fields) for split, corpus in corpora.items()}
        wanted = set(objective.part.rows_type.read_fields(given.get("train", set())))
        for split, fields in given.items():
            if not wanted <= fields:
                node = at(self.root, "data", split) or self.root
                missing, has = ", ".join(sorted(wanted - fields)), ", ".join(sorted(fields))
                text = f"'{objective.part.part_name}' needs the fields {missing}; this one gives {has}"
                self.faults.add(node, text)


def _gives(objective: ObjectiveFacts.Config) -> frozenset[str]:
    """Return the call inputs of the objective besides ids and positions."""
    return objective.part.gives


def serves(head: type[Component], wanted: Sequence[str]) -> bool:
    """True if the head has or extends one of the types, or is a user's own with a loss."""
    types = {base.part_name for base in head.__mro__ if issubclass(base, Component)}
    return bool(types.intersection(wanted)) or (not is_shipped(head) and hasattr(head, "loss"))


def direction_of(blueprint: Blueprint) -> str:
    """Return the direction of the last stack, or the default of its type if the layers have faults."""
    if blueprint.encoder is not None and blueprint.decoder is not None:
        return "encoder_decoder"
    plan = blueprint.last
    causal = plan.causal if plan.layers else blueprint.type.part.sides[plan.side]
    return "causal" if causal else "bidirectional"


def at(node: Node, *keys: str) -> Node | None:
    """Return the node below `node` at these keys, or None."""
    for key in keys:
        if not isinstance(node.value, dict) or key not in node.value:
            return None
        node = node.value[key]
    return node
