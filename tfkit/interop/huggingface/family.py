"""Base class of families, declarative maps between Hugging Face files and recipes, and the known ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.component import Component
from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.core.synonyms import nearest
from tfkit.interop.huggingface.settings import FULL, ConfigJson, Fixed, Setting, look, put, with_older_keys
from tfkit.interop.huggingface.tensors import Rule, Sizes, check_rules
from tfkit.recipe import overlays


class Family(Component):
    """A published architecture: a bidirectional map between a recipe and its config.json and tensors.

    `base` is the part of `model:` that all its models share; `settings` map the differences. `heads` maps model
    classes to overrides of `base`; export uses the first class that fits. `to_recipe` and `to_config` handle what
    `settings` cannot express.
    """

    model_types: ClassVar[tuple[str, ...]]  # values of model_type in config.json; by default the registered name
    base: ClassVar[ModelSection]
    varying: ClassVar[tuple[str, ...]] = ()  # keys of `base` whose part differs in some models
    heads: ClassVar[Mapping[str, ModelSection]]  # model class -> overrides of `base`
    settings: ClassVar[tuple[Setting, ...]] = ()
    head_settings: ClassVar[tuple[Setting, ...]] = ()  # settings of the head, skipped without a head
    fixed: ClassVar[tuple[Fixed, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {}  # additional rules by head type, or for "none"
    prefix: ClassVar[str] = ""  # prefix of checkpoint names, except in files of a base model; omitted in rules
    unprefixed: ClassVar[tuple[str, ...]] = ()  # starts of the names that have no `prefix`, such as the head's
    tied: ClassVar[Mapping[str, str]] = {}  # checkpoint name -> name of the tensor that it may be a copy of
    ignored: ClassVar[tuple[str, ...]] = ()  # name templates of constant buffers
    sizes: ClassVar[Sizes] = {}  # constant axis sizes for layouts
    dropped: ClassVar[tuple[str, ...]] = ()  # name templates of tensors that no output uses
    zeros: ClassVar[tuple[str, ...]] = ()  # name templates of tfkit tensors that are 0 if the files lack them
    derived: ClassVar[tuple[str, ...]] = ()  # redundant keys of config.json
    reads_ids: ClassVar[tuple[str, ...]] = ()  # config.json keys of special tokens that the forward pass uses
    thetas: ClassVar[Mapping[str, str]] = {}  # layer type -> key of its rotary theta in older files
    scaled: ClassVar[tuple[str, ...]] = (FULL,)  # layer types to which older files apply rope_scaling
    recent: ClassVar[bool] = False  # True if transformers 4 lacks the family, so that its keys are not written
    ahead: ClassVar[bool] = False  # True if files may have unused extra layers for multi-token prediction

    @classmethod
    def adopt(cls, slot: str, name: str) -> None:
        """Register the family. Raise UsageError if the family's rules contradict each other."""
        check_rules(name, cls.rules, cls.head_rules)
        if "model_types" not in vars(cls):
            cls.model_types = (name,)
        super().adopt(slot, name)

    @classmethod
    def recipe(cls, config: ConfigJson) -> Tree:
        """Return the `model:` section for a config. Raise DataError if no recipe can express the config."""
        for key in cls.derived:
            look(config, key)  # reading the key marks it as used
        for row in cls.fixed:
            row.check(config)
        rows = ((row.keys, row.read(config)) for row in cls.settings)
        values = {key: value for keys, value in rows if value is not None for key in keys}
        model = merged(cls.base, cls.heads[cls.head_class(config)], values)
        cls.to_recipe(model, config)
        return model

    @classmethod
    def head_class(cls, config: ConfigJson) -> str:
        """Return the model class named in the config. Raise DataError if the class is not supported."""
        classes = config.get("architectures") or [next(iter(cls.heads))]
        for name in classes:
            if name in cls.heads:
                return str(name)
        supported = ", ".join(cls.heads)
        raise DataError(f"config.json: architectures: {', '.join(classes)} is not supported; expected {supported}")

    @classmethod
    def config(cls, model: ModelSection, head_class: str) -> Tree:
        """Return config.json for a spelled-out `model:`. Raise DataError if config.json cannot express a value."""
        config: Tree = {"architectures": [head_class], "model_type": cls.model_types[0]}
        for row in cls.fixed:
            put(config, row.config_key, row.values[0])
        for setting in cls.settings:
            value = value_of(model, setting.keys[0], MISSING)
            if value is not MISSING:
                put(config, setting.config_key, setting.write(value))
        cls.to_config(config, model)
        return config if cls.recent else with_older_keys(config, cls.thetas, cls.scaled)

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Return the rules of a model: the head's first, then the common rules."""
        head = "none" if blueprint.head is None else blueprint.head.part.part_name
        head = "classifier" if head == "regression" else head  # regression is stored like a classifier with one class
        return (*cls.head_rules.get(head, ()), *cls.rules)

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        """Return the constant tensors that the files require, under the names used in rules."""
        return {}

    @classmethod
    def as_read(cls, model: ModelSection) -> ModelSection:
        """Return a spelled-out model as `recipe` reads it back, with parts that `constants` fill to have no effect."""
        return model

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        """Return the prefix of a checkpoint name, which is empty if the model has no head."""
        return "" if blueprint.head is None or name.startswith(cls.unprefixed) else cls.prefix

    @classmethod
    def prefixed(cls, tensors: Mapping[str, Tensor], blueprint: Blueprint) -> dict[str, Tensor]:
        """Return tensors named as in rules under their names in the files."""
        return {f"{cls.prefix_of(name, blueprint)}{name}": tensor for name, tensor in tensors.items()}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        """Add the values to `model` that `settings` cannot express."""

    @classmethod
    def to_stored(cls, model: Tree, checkpoint: Mapping[str, Tensor]) -> list[str]:
        """Correct `model` from the tensors, named as in rules. Return notes for the user."""
        return []

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        """Add the values to `config` that `settings` cannot express."""


MISSING = object()


def value_of(model: ModelSection, dotted: str, default: object = None) -> Any:
    """Look up a value in a spelled-out `model:`. If layers differ, use the first kind that has the key."""
    head, _, rest = dotted.partition(".")
    if head in ("encoder", "decoder") and head not in model:
        return value_of(model, rest, default)
    stack = model
    if head in ("encoder", "decoder"):
        stack, head, rest = model[head], *rest.partition(".")[::2]
    elif head not in model and "decoder" in model:
        stack = model["decoder"]
    if head == "layer" and "layers" in stack:
        for kind in stack["layers"].values():
            value = look(kind, rest, MISSING)
            if value is not MISSING:
                return value
        return default
    return look(stack, f"{head}.{rest}" if rest else head, default)


def merged(base: Mapping[str, object], *over: Mapping[str, object]) -> Tree:
    """Return a copy of `base` with overrides merged as in variants: with dotted keys and merge rule R20."""
    return overlays.overlaid("model", base, *over)


def override(model: Tree, over: Mapping[str, object]) -> None:
    """Apply overrides to `model` in place."""
    model.update(merged(model, over))


def families() -> dict[str, type[Family]]:
    """Return all families by name, including user-defined ones."""
    return {name: part for name, part in REGISTRY.load("family").items() if issubclass(part, Family)}


def family_of(config: ConfigJson) -> type[Family]:
    """Return the family for the model_type of a config.json. Raise DataError if it is unknown."""
    model_type = config.get("model_type")
    by_type = {name: family for family in families().values() for name in family.model_types}
    if model_type is None:
        raise DataError("config.json: model_type is missing, so the architecture is unknown")
    if isinstance(model_type, str) and model_type in by_type:
        return by_type[model_type]
    hint = nearest(str(model_type), list(by_type))
    raise DataError(
        f"config.json: model_type: no family for '{model_type}'{f', the nearest is {hint!r}' if hint else ''}; "
        f'available: {", ".join(sorted(by_type))}; add one with @tfkit.register("family", ...) and --import'
    )
