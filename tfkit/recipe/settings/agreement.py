"""Requirements between parts of the sections: by the rule table, and by each part's own checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config, Doubt, Problem
from tfkit.core.facts import RecipeConfig, RecipeFacts
from tfkit.recipe.rules import asked_by, reason
from tfkit.recipe.settings.sections import Data, Generate, Train
from tfkit.recipe.text.faults import Faults
from tfkit.recipe.text.node import Node


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
            self._check_config(asker.config, asker.path)
        if self.facts.blueprint is not None:
            for config, path in model_parts(self.facts.blueprint):
                self._check_config(config, path)

    def _check_config(self, config: Config, path: str) -> None:
        if isinstance(config, RecipeConfig):
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
