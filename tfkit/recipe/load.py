"""Loading of a recipe, from a name, path or mapping to a validated Recipe."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypedDict, TypeVar

from pydantic import ValidationError

from tfkit.core.blame import parts_named
from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Config
from tfkit.core.errors import Fault, RecipeError, RecipeWarning, UsageError, by_place
from tfkit.core.facts import RecipeFacts
from tfkit.core.output import block, block_as_html, some
from tfkit.core.rooms import pages
from tfkit.core.slots import ObjectiveFacts, TokenizerFacts, of_kind
from tfkit.core.synonyms import nearest
from tfkit.recipe.architecture.prepare import Preparer
from tfkit.recipe.architecture.resolve import ModelResolver
from tfkit.recipe.architecture.stack import VocabSize, Vocabulary
from tfkit.recipe.compose import Composed, compose, upgraded, version_faults, with_overrides
from tfkit.recipe.imports import Importer
from tfkit.recipe.keys import LEAVES
from tfkit.recipe.overlays import Variant, merge, nested
from tfkit.recipe.settings.agreement import (
    Agreement,
    Contradictions,
    Standing,
    at,
    data_parts,
    missing_files,
    parts_in,
    placed,
    spot,
    unused_folder,
)
from tfkit.recipe.settings.section_rules import facts_of, section_problems, step_problems
from tfkit.recipe.settings.sections import Data, Generate, Section, Sections, Train
from tfkit.recipe.text.faults import Faults, shown
from tfkit.recipe.text.node import Node, mapping, node_at
from tfkit.recipe.text.source import LANGUAGE, MAPPING
from tfkit.recipe.views.row import Notes, RecipeRow
from tfkit.recipe.views.table import RecipeTable

TOP_KEYS = ("tfkit", "model", "data", "objective", "train", "generate", *LEAVES, "imports")
AnySection = TypeVar("AnySection", bound=Section)


class ReadingOptions(TypedDict, total=False):
    """Keyword arguments of load_recipe, also accepted by build and train."""

    overrides: Mapping[str, object] | None
    variant: str | Sequence[str] | None
    trust: bool
    sets: str | Sequence[str]
    imports: str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Recipe:
    """A validated recipe. `root` is the merged tree with the place of every value.

    `variants` are the variants chosen from `variant_entries`, and `changes` the overrides by dotted key. `warnings` are
    sorted by place; `tell_warnings` issues them.
    """

    name: str
    root: Node
    text: str | None
    file: Path | None
    data: Data | None
    objective: ObjectiveFacts.Config | None
    train: Train
    generate: Generate
    imports: tuple[str, ...] = ()
    leaves: Mapping[str, Section] = field(default_factory=dict)
    variant_entries: Mapping[str, Variant] = field(default_factory=dict, compare=False, repr=False)
    variants: tuple[str, ...] = field(default=(), compare=False)
    changes: Mapping[str, object] = field(default_factory=dict, compare=False)
    warnings: tuple[Fault, ...] = field(default=(), compare=False)
    _resolved: dict[VocabSize | None, tuple[Blueprint, ModelResolver]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __repr__(self) -> str:
        chosen = some([*self.variants, *(f"{key}={value}" for key, value in self.changes.items())])
        return block(f"Recipe {self.name!r}{f' with {chosen}' if chosen else ''}", self.lines())

    def _repr_html_(self) -> str:
        with contextlib.suppress(RecipeError):  # the summary already shows the error
            # not imported at the top, since reports import this package
            for drawing in pages("svg"):
                return block_as_html(repr(self), drawing.svg_of(self.blueprint()).encode("utf-8"))
        return block_as_html(repr(self))

    def lines(self, blueprint: Blueprint | None = None) -> list[str]:
        """Summarize architecture (of `blueprint`, if given), data and training in at most nine lines."""
        try:
            lines = (blueprint or self.blueprint()).lines()
        except RecipeError as error:
            lines = [f"model: {error}"]
        if self.data is not None:
            tokenizers = {path.removeprefix("data."): config for path, config in self.data.tokenizers().items()}
            splits = {**tokenizers, "train": self.data.train, "valid": self.data.valid}
            named = [f"{name}: {part.part.part_name}" for name, part in splits.items() if isinstance(part, Config)]
            lines.append(f"data: {', '.join(named)}")
        if self.objective is not None:
            optimizer = self.train.optimizer.part.part_name
            length = f"{self.train.epochs:,} epochs" if self.train.steps is None else f"{self.train.steps:,} steps"
            name = self.objective.part.part_name
            lines.append(f"training: {name}, {length}, {optimizer}, seed {self.train.seed}")
        return lines

    def tell_warnings(self) -> None:
        """Issue the warnings as RecipeWarning, attributed to the caller of `train`."""
        for fault in self.warnings:
            warnings.warn(RecipeWarning(fault), stacklevel=4)  # skips this frame, `train` and its decorator

    def blueprint(self, vocab_size: VocabSize | None = None) -> Blueprint:
        """Return the resolved architecture, with `vocab_size` instead of `vocab_size: tokenizer`.

        Raise RecipeError if this size contradicts the recipe.
        """
        return self._resolve(vocab_size)[0]

    def table(self, vocab_size: VocabSize | None = None, notes: Notes | None = None) -> RecipeTable:
        """Return the rows of the resolved recipe; `notes` are the comments in a run's resolved.yaml, if any."""
        sections = {**self.sections(), **self.leaves}
        return RecipeTable(self.root, self.text, str(self.file), sections, *self._resolve(vocab_size), notes)

    def _resolve(self, vocab_size: VocabSize | None) -> tuple[Blueprint, ModelResolver]:
        size = vocab_size if vocab_size is not None else _bounds(None if self.data is None else self.data.tokenizers())
        if size not in self._resolved:
            faults = Faults(has_weights=True)  # unlearnable weights were reported on loading
            resolver = ModelResolver(mapping(self.root)["model"], faults, Vocabulary(size))
            blueprint = resolver.resolve()
            if faults.errors or blueprint is None:
                raise RecipeError(faults.errors)
            self._resolved[size] = replace(blueprint, name=self.name), resolver
        return self._resolved[size]

    @cached_property
    def unknown_vocab(self) -> bool:
        """True if the vocabulary size depends on an untrained tokenizer."""
        model = mapping(self.root)["model"]
        sizes = [mapping(side).get("vocab_size") for side in (model, model.get("encoder"), model.get("decoder"))]
        return any(size is not None and size.value == "tokenizer" for size in sizes)

    @cached_property
    def unknown_labels(self) -> bool:
        """True if the number of classes depends on the training corpus (`num_classes: labels`)."""
        return bool(label_nodes(mapping(self.root)["model"]))

    def labelled(self, count: int) -> Recipe:
        """Return a copy with `num_classes: labels` replaced by `count`."""
        root = self.root
        for node in label_nodes(mapping(root)["model"]):
            root = merge(root, nested(node.path, replace(node, value=count)), [])
        return replace(self, root=root, _resolved={}) if self.unknown_labels else self

    @property
    def vocabulary_bound(self) -> int | None:
        """Maximum vocabulary size that the (target) tokenizer's settings allow, None if unknown."""
        tokenizer = None if self.data is None else self.data.target_tokenizer
        return None if tokenizer is None else tokenizer.vocabulary_bound

    def named(self, name: str) -> Recipe:
        """Return a copy with another name, which is also that of its Blueprint."""
        return replace(self, name=name, _resolved={})

    def evaluated(self, name: str) -> Recipe:
        """Return the recipe with `train.evaluations.NAME` merged over it; raise RecipeError for faults."""
        problems: list[Fault] = []
        root = with_overrides(self.root, at(self.root, "train", "evaluations", name), problems)
        train = mapping(root)["train"]
        kept = {key: node for key, node in mapping(train).items() if key != "evaluations"}
        root = replace(root, value={**mapping(root), "train": replace(train, value=kept)})
        faults = Faults(problems, has_weights=True)
        composed = Composed(root, problems, self.text, self.file, {}, self.name)
        recipe = _validate(composed, self.imports, faults, saved=True)
        if faults.errors or recipe is None:
            raise RecipeError(faults.errors)
        return recipe

    def fault(self, path: str, message: str) -> Fault:
        """Return a fault located at the value at `path`, or at its nearest ancestor in the recipe."""
        node, full = spot(self.root, path)
        return Fault(node.place, full, message)

    def check_steps(self, steps: int) -> None:
        """Raise RecipeError if the settings do not fit `steps`, the number of steps computed from `train.epochs`."""
        faults, train = Faults(), self.train.model_copy(update={"steps": steps})
        facts = facts_of(self.settings._replace(train=train), None, None)
        agreement = Agreement(self.root, [Standing(train.schedule, "train.schedule")], facts, faults)
        agreement.check()
        agreement.tell("", step_problems(train, self.data))
        if faults.errors:
            raise RecipeError(faults.errors)
        for doubt in by_place(faults.warnings):
            warnings.warn(RecipeWarning(doubt), stacklevel=2)

    def missing_files(self) -> list[Fault]:
        """Return a fault for each missing file or run folder that the recipe reads."""
        return missing_files(self.root, self.sections(), self.blueprint())

    def resolved(self, vocab_size: VocabSize | None = None) -> str:
        """Return a recipe with every value explicit and its origin as a comment; it loads to an equal Blueprint."""
        return self.table(vocab_size).resolved(self.name)

    @property
    def settings(self) -> Sections:
        """All sections except `model:`."""
        return Sections(self.data, self.objective, self.train, self.generate)

    def sections(self) -> dict[str, object]:
        """Return the validated sections except `model:` by key; absent ones are omitted."""
        present = {key: value for key, value in self.settings._asdict().items() if value is not None}
        return present | ({"imports": list(self.imports)} if self.imports else {})


def _bounds(tokenizers: Mapping[str, TokenizerFacts.Config] | None) -> VocabSize | None:
    """Return the tokenizers' maximum vocabulary sizes: one size, or a pair for two tokenizers."""
    bounds = [config.vocabulary_bound for config in (tokenizers or {}).values()]
    return (bounds[0], bounds[1]) if len(bounds) == 2 else bounds[0] if bounds else None


def label_nodes(model: Node) -> list[Node]:
    """Return all nodes with `num_classes: labels` or `num_targets: labels` in the heads of a model."""
    heads = [mapping(model).get("head"), *mapping(mapping(model).get("heads")).values()]
    sizes = [mapping(head).get(name) for head in heads for name in ("num_classes", "num_targets")]
    return [size for size in sizes if size and size.value == "labels"]


def read_for(
    function: str, own: Sequence[str], source: str | Path | Mapping[str, object] | Recipe, reading: ReadingOptions
) -> Recipe:
    """Call load_recipe on behalf of `tfkit.FUNCTION`; raise UsageError for a keyword unknown to both.

    `own` are the function's own keywords, listed in the error.
    """
    for name in reading.keys() - ReadingOptions.__annotations__.keys():
        allowed = [*own, *ReadingOptions.__annotations__]
        hint = nearest(name, allowed)
        more = f"did you mean '{hint}'?" if hint else f"available: {', '.join(allowed)}"
        raise UsageError(f"tfkit.{function} has no argument '{name}'; {more}")
    return load_recipe(source, **reading)


def _texts(name: str, value: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Return a string or path, or several of them, as a list; raise UsageError for other types."""
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    for text in texts:
        if not isinstance(text, str | Path):
            raise UsageError(f"{name} must be strings or paths, got {text!r}")
    return texts


@parts_named()
def load_recipe(
    source: str | Path | Mapping[str, object] | Recipe,
    overrides: Mapping[str, object] | None = None,
    variant: str | Sequence[str] | None = None,
    trust: bool = False,
    sets: str | Sequence[str] = (),
    imports: str | Path | Sequence[str | Path] = (),
) -> Recipe:
    """Read, merge and validate a recipe: a shipped name, a path, or a mapping.

    `overrides` maps dotted keys to values (`{"model.num_layers": 4}`); `sets` are overrides in the syntax of `--set`
    ("model.num_layers=4"). `variant` names one or more variants. `imports` are files or modules with your own parts;
    `trust=True` also executes the recipe's `imports:`. Raise RecipeError with all faults at once, and UsageError for
    changes to a recipe that is already loaded.
    """
    if isinstance(source, Recipe):
        if overrides or variant or sets:
            raise UsageError("this recipe is already loaded; pass overrides, variant and sets when loading it first")
        return source
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UsageError(f"overrides must be a mapping of dotted keys to values, got {overrides!r}")
    imports = _texts("imports", imports)
    sets, variants = list(map(str, _texts("sets", sets))), list(map(str, _texts("variant", variant or ())))
    try:
        composed = compose(source, overrides=overrides, sets=sets, variants=variants)
    except RecipeError as error:
        faults = Faults(error.faults)
        Importer(faults).import_all(imports)
        raise RecipeError(faults.errors) from None
    return load_composed(composed, trust, imports)


def load_saved(
    source: Path | Mapping[str, object],
    trust: bool = False,
    sets: Sequence[str] = (),
    variants: Sequence[str] = (),
    imports: Sequence[str | Path] = (),
    imported_before: Sequence[str] = (),
    label: str = MAPPING,
) -> Recipe:
    """Load the recipe of a saved run or of a weights file; `label` is its name in messages.

    `imports` are the files and modules found for it, possibly at new locations; those in `imported_before` are not
    imported again. Raise RecipeError with all faults at once.
    """
    composed = upgraded(compose(source, sets=sets, variants=variants, label=label))
    return load_composed(composed, trust, imports, imported_before, saved=True)


def load_composed(
    composed: Composed, trust: bool, imports: Sequence[str | Path], before: Sequence[str] = (), saved: bool = False
) -> Recipe:
    """Import the recipe's code, then validate the recipe; raise RecipeError with all faults."""
    faults = Faults(composed.faults, has_weights=saved)
    importer = Importer(faults, trust)
    importer.import_all(imports)
    importer.honour(mapping(composed.root).get("imports"), before)
    recipe = _validate(composed, tuple(importer.done.values()), faults, saved)
    if faults.errors or recipe is None:
        raise RecipeError(faults.errors)
    return replace(recipe, warnings=tuple(by_place(faults.warnings)))


def _validate(composed: Composed, imports: tuple[str, ...], faults: Faults, saved: bool) -> Recipe | None:
    """Return the Recipe, incomplete if there are faults; None if it has no model."""
    root = mapping(composed.root)
    for key, child in root.items():
        if key not in TOP_KEYS:
            faults.unknown_key(child, [*TOP_KEYS, "extends", "variants"], "section")
    if "tfkit" not in root:
        faults.add(composed.root, f"needs the version of the recipe language; add tfkit: {LANGUAGE}", path="tfkit")
    faults.errors += version_faults(composed.root)
    data, node = _section(node_at(root, "data"), Data, faults), node_at(root, "objective")
    nothing = replace(composed.root, value={}, path="")
    objective = None if node is None else Preparer(faults).config(node, "objective")
    data = placed(data, of_kind(objective, ObjectiveFacts.Config)) if data and data.split else data
    train = _section(node_at(root, "train") or nothing, Train, faults) or Train()
    steps, epochs = (node_at(mapping(root.get("train")), name) for name in ("steps", "epochs"))
    if steps is not None and epochs is not None:
        text = f"epochs: {shown(epochs.plain())} conflicts with steps: {shown(steps.plain())} (at {steps.place})"
        faults.add(epochs, f"{text}; set one of them to none")
    generate = _section(node_at(root, "generate") or nothing, Generate, faults) or Generate()
    if "model" not in root:
        faults.add(composed.root, "needs a `model:` section", path="model")
        return None
    found = {key: _section(node_at(root, key), page.SCHEMA, faults) for key, page in LEAVES.items()}
    leaves = {key: section for key, section in found.items() if section is not None}
    entries = composed.variants
    recipe = Recipe(
        composed.name, composed.root, composed.text, composed.file, data,
        of_kind(objective, ObjectiveFacts.Config), train, generate, imports, leaves, entries,
        composed.chosen, composed.changes,
    )  # fmt: skip
    _resolve_model(recipe, faults, saved)
    agreement = Agreement(recipe.root, (), RecipeFacts(), faults)
    # variants and evaluations may set paths
    if data is not None and data.folder is not None and not train.evaluations and not entries:
        agreement.tell("", unused_folder(data))
    if saved:  # the run has passed the other checks before training
        return recipe
    _check_agreement(recipe, faults)
    recipe = _evaluations(recipe, faults) if train.evaluations and not faults.errors else recipe
    for key, section in leaves.items():
        agreement.tell("", LEAVES[key].problems(section, entries, data, train))
    return recipe


def _check_agreement(recipe: Recipe, faults: Faults) -> None:
    """Check the sections and their parts against each other, and against the model unless it has faults."""
    right = not any(fault.path.partition(".")[0] == "model" for fault in faults.errors)
    blueprint, resolver = next(iter(recipe._resolved.values()), (None, None)) if right else (None, None)
    size = None
    if blueprint is not None and resolver is not None and blueprint.last.side not in resolver.vocabulary.unknown:
        size = blueprint.last.vocab_size
    sections = recipe.settings
    parts = [part for section, name in zip(sections, sections._fields, strict=True) for part in parts_in(section, name)]
    agreement = Agreement(recipe.root, parts, facts_of(sections, blueprint, size), faults)
    agreement.check()
    agreement.tell("", section_problems(sections, blueprint))


def _evaluations(recipe: Recipe, faults: Faults) -> Recipe:
    resolved: dict[str, dict[str, object]] = {}
    for name, values in recipe.train.evaluations.items():
        where = f"train.evaluations.{name}"
        try:
            other = recipe.evaluated(name)
        except RecipeError as error:
            faults.errors += [recipe.fault(where, f"{fault.path}: {fault.message}") for fault in error.faults]
            continue
        if other.data is None or not (other.data.has("valid") or other.data.has("test")):
            faults.errors.append(recipe.fault(where, "no data.valid or data.test to evaluate on"))
        resolved[name] = {}
        for key in values:
            row: RecipeRow | None = RecipeRow("", other.sections())
            for word in key.split("."):
                row = None if row is None else row.child(word)
            resolved[name][key] = None if row is None else row.plain()
    return replace(recipe, train=recipe.train.model_copy(update={"evaluations": resolved}))


def _resolve_model(recipe: Recipe, faults: Faults, saved: bool) -> None:
    """Resolve the model and check it against the other sections; the result is cached in `recipe` if valid.

    Vocabulary sizes of a saved run are not checked: a trained tokenizer may be smaller than its settings allow.
    """
    root, data = mapping(recipe.root), recipe.data
    tokenizers, corpora = (data.tokenizers(), dict(data.splits())) if data else data_parts(node_at(root, "data"))
    vocabulary = Vocabulary(_bounds(tokenizers))
    resolver = ModelResolver(root["model"], faults, vocabulary)
    blueprint = resolver.resolve()
    for node in vocabulary.requests if node_at(mapping(root.get("data")), "tokenizer") is None else ():
        faults.add(node, "needs a data.tokenizer to take the size from; add one, or set a number")
    if resolver.partial is not None:
        sections = Contradictions(recipe.root, resolver.partial, faults)
        if recipe.objective is not None:
            sections.check_objective(recipe.objective)
            sections.check_corpora({} if saved else corpora, recipe.objective)
            sections.check_calls(recipe.objective)
        if data is not None and data.split is not None and not saved:
            sections.check_split(data, data.split)
        sections.check_labels(label_nodes(root["model"]), recipe.objective)
        if len(tokenizers) == 2:
            sections.check_sides(recipe.objective)
        if not vocabulary.requests and not saved:
            sections.check_tokenizers(tokenizers)
    if blueprint is not None:
        recipe._resolved[vocabulary.size] = replace(blueprint, name=recipe.name), resolver


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
