"""Requirements between the parts of the sections and the model: by the rule table, by each part's checks, by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component, Config, Doubt, Problem
from tfkit.core.facts import RecipeFacts
from tfkit.core.registry import is_shipped
from tfkit.core.slots import HeadFacts, ObjectiveFacts, TokenizerFacts, of_kind
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.rules import asked_by, fact, reason
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node, given, mapping


class Standing(NamedTuple):
    """A part of a recipe and its path."""

    config: Config
    path: str


def section_parts(data: Data | None, objective: Config | None, train: Train, generate: Generate) -> list[Standing]:
    """Return the parts outside the model in the order of a recipe."""
    found = [] if data is None else [Standing(config, path) for path, config in data.tokenizers().items()]
    found += [] if data is None else [Standing(config, f"data.{split}") for split, config in data.splits()]
    found += [] if objective is None else [Standing(objective, "objective")]
    found += [Standing(train.optimizer, "train.optimizer"), Standing(train.schedule, "train.schedule")]
    if train.teacher is not None and train.teacher.sequences is not None:
        found.append(Standing(train.teacher.sequences, "train.teacher.sequences"))
    found += _listed(train.validate.metrics, "train.validate.metrics")
    found += _listed(train.metrics, "train.metrics")
    found += [Standing(generate.strategy, "generate.strategy")]
    return [*found, *_listed(generate.logits, "generate.logits"), *_listed(generate.stop, "generate.stop")]


def _listed(configs: Sequence[Config], path: str) -> list[Standing]:
    return [Standing(config, f"{path}[{place}]") for place, config in enumerate(configs)]


class Agreement:
    """Checks the requirements between the parts of the recipe `root`; problems are added to `faults`."""

    def __init__(self, root: Node, parts: Sequence[Standing], facts: RecipeFacts, faults: Faults) -> None:
        self.root, self.parts, self.facts, self.faults = root, parts, facts, faults

    def check(self) -> None:
        """Run all checks."""
        for asker in self.parts:
            self._check_rules(asker)
            self.tell(asker.path, asker.config.check_recipe(self.facts))
        if self.facts.blueprint is not None:
            for config, path in model_parts(self.facts.blueprint):
                self.tell(path, config.check_recipe(self.facts))

    def _check_rules(self, asker: Standing) -> None:
        """Apply the rule table to a part and those it has requirements on."""
        for rule in asked_by(asker.config):
            for config, path in [*self.parts, *self._decoding()]:
                if rule.refuses(config):
                    text = f"{reason(rule, config, asker.config.part)} (see {spot(self.root, path)[0].place})"
                    self.tell(asker.path, [Problem("", text)])
                    break

    def _decoding(self) -> Iterator[Standing]:
        """Yield the sublayers that keep a decode state."""
        plan = None if self.facts.blueprint is None else self.facts.blueprint.decoder
        if plan is None or not plan.caches:
            return
        for layer in plan.layers:
            for sublayer in layer.sublayers:
                if not sublayer.memory:
                    yield Standing(sublayer.config, f"model.decoder.layer.{sublayer.name}")

    def tell(self, path: str, problems: Iterator[Problem] | Sequence[Problem]) -> None:
        """Report problems of the part at `path`, or at the path given by the problem."""
        for problem in problems:
            node, full = spot(self.root, ".".join(filter(None, [problem.at or path, problem.option])))
            if isinstance(problem, Doubt):
                self.faults.warn(node, problem.message, path=full)
            else:
                self.faults.add(node, problem.message, problem.suggestion, path=full)


def model_parts(blueprint: Blueprint) -> Iterator[Standing]:
    """Yield the embeddings and the heads."""
    for plan in blueprint.stacks():
        if plan.embedding is not None:
            yield Standing(plan.embedding, f"model.{plan.side}.embedding")
    if blueprint.head is not None:
        yield Standing(blueprint.head, "model.head")
    yield from (Standing(head, f"model.heads.{name}") for name, head in blueprint.heads)


def spot(root: Node, path: str) -> tuple[Node, str]:
    """Return the nearest node at a path, and the path as written in the recipe."""
    node, rest = locate(root, path)
    return node, ".".join(filter(None, [node.path, *rest])).replace(".[", "[")


def locate(root: Node, path: str) -> tuple[Node, Sequence[str]]:
    """Return the node at a path, or its nearest ancestor with the missing keys.

    Keys of `model:` that apply to both sides, or to its one stack, are also found by the path of a side.
    """
    node, rest = _walk(root, path)
    for side in ("encoder", "decoder"):
        if rest and path.startswith(f"model.{side}."):
            shared, missing = _walk(root, path.replace(f".{side}", "", 1))
            one_stack = root.get("model") is None or root.get("model").get(side) is None  # type: ignore[union-attr]
            node, rest = (shared, missing) if one_stack or not missing else (node, rest)
    return node, rest


def _walk(node: Node, path: str) -> tuple[Node, Sequence[str]]:
    steps = path.replace("[", ".[").split(".")
    for place, step in enumerate(steps):
        inner = _below(node, step)
        if inner is None:
            return node, steps[place:]
        node = inner
    return node, ()


def _below(node: Node, step: str) -> Node | None:
    if not step.startswith("["):
        return node.get(step)
    index = int(step[1:-1])
    if not isinstance(node.value, list):
        return node if index == 0 else None  # a single part instead of a list
    return node.value[index] if index < len(node.value) else None


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
