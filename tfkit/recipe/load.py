"""The way in: a recipe's name, path or mapping -> a validated Recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.errors import RecipeError
from tfkit.recipe.compose import Composed, compose
from tfkit.recipe.contradictions import Contradictions, data_parts
from tfkit.recipe.faults import Faults, shown
from tfkit.recipe.imports import honour_imports, import_parts
from tfkit.recipe.node import Node
from tfkit.recipe.prepare import Preparer
from tfkit.recipe.resolve import ModelResolver
from tfkit.recipe.resolved import resolved_text
from tfkit.recipe.sections import Data, Generate, Section, Train
from tfkit.recipe.sizes import Vocabulary
from tfkit.recipe.values import given, mapping

LANGUAGE = 1
TOP_KEYS = ("tfkit", "model", "data", "objective", "train", "generate", "imports")
AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class Recipe:
    """A validated recipe. `root` is the merged text with the place of every value."""

    name: str
    root: Node
    text: str | None
    file: Path | None
    data: Data | None
    objective: Config | None
    train: Train
    generate: Generate
    imports: tuple[str, ...] = ()
    _resolved: dict[int | None, tuple[Blueprint, Node]] = field(default_factory=dict, repr=False, compare=False)

    def blueprint(self, vocab_size: int | None = None) -> Blueprint:
        """The architecture, fully spelled out. `vocab_size` is what `vocab_size: tokenizer` stands for.

        Raises RecipeError when the tokenizer's size contradicts what the recipe says.
        """
        return self._resolve(vocab_size)[0]

    def _resolve(self, vocab_size: int | None) -> tuple[Blueprint, Node]:
        """The Blueprint, and the text that each part of it comes from."""
        size = vocab_size if vocab_size is not None else self.vocabulary_bound
        if size not in self._resolved:
            faults = Faults()
            resolver = ModelResolver(mapping(self.root)["model"], faults, Vocabulary(size))
            blueprint = resolver.resolve()
            if faults.found or blueprint is None:
                raise RecipeError(faults.found)
            self._resolved[size] = replace(blueprint, name=self.name), resolver.origin()
        return self._resolved[size]

    @cached_property
    def unknown_vocab(self) -> bool:
        """Whether the size of the vocabulary is known only after the tokenizer is trained."""
        return bool(_asked(mapping(self.root)["model"]))

    @property
    def vocabulary_bound(self) -> int | None:
        """The largest vocabulary that the tokenizer's settings allow, None where they do not say."""
        return None if self.data is None else getattr(self.data.tokenizer, "vocabulary_bound", None)

    def resolved(self, vocab_size: int | None = None) -> str:
        """The recipe with every value spelled out and its origin as a comment; loads to an equal Blueprint."""
        blueprint, origin = self._resolve(vocab_size)
        sections = {"data": self.data, "objective": self.objective, "train": self.train, "generate": self.generate}
        said = {key: value for key, value in sections.items() if value is not None}
        imports = {"imports": self.imports} if self.imports else {}
        written = replace(self.root, value={**mapping(self.root), "model": origin})
        return resolved_text(self.name, blueprint, said | imports, written)


def _asked(model: Node) -> list[Node]:
    sides = [model, *(mapping(model).get(side) for side in ("encoder", "decoder"))]
    sizes = [mapping(side).get("vocab_size") for side in sides]
    return [node for node in sizes if node is not None and node.value == "tokenizer"]


def load_recipe(
    source: str | Path | Mapping[str, Any] | Recipe,
    overrides: Mapping[str, Any] | None = None,
    variant: str | Sequence[str] | None = None,
    trust: bool = False,
    sets: Sequence[str] = (),
    imports: Sequence[str | Path] = (),
) -> Recipe:
    """Read, merge and validate a recipe: a shipped name, a path, or a mapping.

    `overrides` are values by dotted key (`{"model.num_layers": 4}`), `sets` the same as `--set` writes them
    ("model.num_layers=4"), `variant` the names of variants to lay over, `imports` files or modules with parts of one's
    own; `trust` honours the recipe's own `imports:`. Raises RecipeError with every fault at once.
    """
    if isinstance(source, Recipe):
        return source
    for name in imports:
        import_parts(name)
    variants = (variant,) if isinstance(variant, str) else tuple(variant or ())
    composed = compose(source, overrides=overrides, sets=sets, variants=variants)
    faults = Faults(composed.faults)
    recipe = _validate(composed, honour_imports(mapping(composed.root).get("imports"), imports, trust, faults), faults)
    if faults.found or recipe is None:
        raise RecipeError(faults.found)
    return recipe


def _validate(composed: Composed, imports: tuple[str, ...], faults: Faults) -> Recipe | None:
    """The Recipe that `composed` is, as far as its faults allow; None where it describes no model at all."""
    root = mapping(composed.root)
    for key, child in root.items():
        if key not in TOP_KEYS:
            faults.unknown_key(child, [*TOP_KEYS, "extends", "variants"], "section")
    _check_version(root.get("tfkit"), composed.root, faults)
    data = _section(given(root, "data"), Data, faults)
    said = given(root, "objective")
    objective = None if said is None else Preparer(faults).config(said, "objective")
    nothing = replace(composed.root, value={}, path="")
    train = _section(given(root, "train") or nothing, Train, faults) or Train()
    generate = _section(given(root, "generate") or nothing, Generate, faults) or Generate()
    if "model" not in root:
        faults.add(composed.root, "needs a `model:` section", path="model")
        return None
    recipe = Recipe(
        composed.name, composed.root, composed.text, composed.file, data, objective, train, generate, imports
    )
    _resolve_model(recipe, faults)
    return recipe


def _resolve_model(recipe: Recipe, faults: Faults) -> None:
    """Resolve the model and check it against the other sections; where it is right, `recipe` keeps it."""
    root = mapping(recipe.root)
    tokenizer, corpora = data_parts(given(root, "data"))
    vocabulary = Vocabulary(getattr(tokenizer, "vocabulary_bound", None))
    resolver = ModelResolver(root["model"], faults, vocabulary)
    blueprint = resolver.resolve()
    for node in vocabulary.asked if given(root, "data") is None else ():
        faults.add(node, "the recipe has no data.tokenizer to take the size from; say a number")
    if resolver.partial is not None:
        sections = Contradictions(recipe.root, resolver.partial, faults)
        if recipe.objective is not None:
            sections.check_objective(recipe.objective)
            sections.check_corpora(corpora, recipe.objective)
        if tokenizer is not None and not vocabulary.asked:
            sections.check_tokenizer(tokenizer)
    if blueprint is not None:
        recipe._resolved[vocabulary.size] = replace(blueprint, name=recipe.name), resolver.origin()


def _check_version(node: Node | None, root: Node, faults: Faults) -> None:
    """`tfkit: 1` is the version of the language."""
    if node is None:
        faults.add(root, f"needs the version of the recipe language: tfkit: {LANGUAGE}", path="tfkit")
    elif node.value is True or not isinstance(node.value, int):
        faults.add(node, f"expected the version of the recipe language, {LANGUAGE}, got {shown(node.plain())}")
    elif node.value != LANGUAGE:
        newer = "is newer than this tfkit; install a newer one" if node.value > LANGUAGE else "does not exist"
        faults.add(node, f"version {node.value} of the recipe language {newer}; this one speaks version {LANGUAGE}")


def _section(node: Node | None, model: type[AnySection], faults: Faults) -> AnySection | None:
    if node is None:
        return None
    if not isinstance(node.value, dict):
        faults.add(node, "expected a mapping")
        return None
    prepared = Preparer(faults).fields(node, model)
    try:
        return model.model_validate(prepared.plain())
    except ValidationError as error:
        faults.invalid(prepared, error, model)
    return None
