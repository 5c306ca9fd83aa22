"""Base class of the families: a declarative, bidirectional map between Hugging Face files and recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component
from tfkit.core.errors import DataError
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.overlap import check_rules
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, look, put
from tfkit.interop.huggingface.tensors import Rule, Sizes
from tfkit.recipe import overlays


class Family(Component):
    """A published architecture: the map of its config.json and tensors to a recipe, and back.

    `base` is the `model:` shared by all its models; `settings` map the differences. `heads` maps model classes to
    overrides of `base`; the first one is written. `to_recipe` and `to_config` add what rows cannot express.
    """

    model_types: ClassVar[tuple[str, ...]]
    base: ClassVar[ModelSection]
    heads: ClassVar[Mapping[str, ModelSection]]  # model class -> overrides of `base`
    settings: ClassVar[tuple[Setting, ...]] = ()
    head_settings: ClassVar[tuple[Setting, ...]] = ()  # settings below `head`, skipped for a model without one
    fixed: ClassVar[tuple[Fixed, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {}  # further rules by head type; without a head: "none"
    prefix: ClassVar[str] = ""  # prefix of checkpoint names, except in files of a base model; omitted in rules
    unprefixed: ClassVar[tuple[str, ...]] = ()  # prefixes of names without `prefix`: those of the head
    tied: ClassVar[Mapping[str, str]] = {}  # checkpoint name -> the tensor it may duplicate
    ignored: ClassVar[tuple[str, ...]] = ()  # templates of constant buffers
    sizes: ClassVar[Sizes] = {}  # constant axis sizes for layouts
    dropped: ClassVar[tuple[str, ...]] = ()  # templates of tensors that no output uses
    derived: ClassVar[tuple[str, ...]] = ()  # redundant keys of config.json
    reads_ids: ClassVar[tuple[str, ...]] = ()  # config.json keys of special tokens that their forward reads
    ahead: ClassVar[bool] = False  # files may have extra layers for multi-token prediction, which no output uses

    @classmethod
    def adopt(cls, slot: str, name: str) -> None:
        """Register under a name. Raise UsageError for contradictory rules."""
        check_rules(name, cls.rules, cls.head_rules)
        super().adopt(slot, name)

    @classmethod
    def recipe(cls, config: ConfigJson) -> Tree:
        """Return the `model:` of a config. Raise DataError if no recipe can express it."""
        for key in cls.derived:
            look(config, key)  # marks the key as read
        for row in cls.fixed:
            row.check(config)
        rows = ((row.keys, row.read(config)) for row in cls.settings)
        values = {key: value for keys, value in rows if value is not None for key in keys}
        model = merged(cls.base, cls.heads[cls.head_class(config)], values)
        cls.to_recipe(model, config)
        return model

    @classmethod
    def head_class(cls, config: ConfigJson) -> str:
        """Return the model class of the files. Raise DataError if it is unsupported."""
        classes = config.get("architectures") or [next(iter(cls.heads))]
        for name in classes:
            if name in cls.heads:
                return str(name)
        supported = ", ".join(cls.heads)
        raise DataError(f"config.json: architectures: {', '.join(classes)} is not supported; expected {supported}")

    @classmethod
    def config(cls, model: ModelSection, head_class: str) -> Tree:
        """Return the config.json of a spelled-out `model:`. Raise DataError if a value cannot be expressed."""
        config: Tree = {"architectures": [head_class], "model_type": cls.model_types[0]}
        for row in cls.fixed:
            put(config, row.config_key, row.values[0])
        for setting in cls.settings:
            value = value_of(model, setting.keys[0], MISSING)
            if value is not MISSING:
                put(config, setting.config_key, setting.write(value))
        cls.to_config(config, model)
        return config

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Return the rules of a model: first its head's, then the common ones."""
        head = "none" if blueprint.head is None else blueprint.head.part.part_name
        head = "classifier" if head == "regression" else head  # regression is stored as a single class
        return (*cls.head_rules.get(head, ()), *cls.rules)

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        """Return constant tensors that the files require, by the names of the rules."""
        return {}

    @classmethod
    def as_read(cls, model: ModelSection) -> ModelSection:
        """Return a spelled-out model as `recipe` would read it back from `config`.

        It differs if the implementation requires a neutral part, whose tensors are among the `constants`.
        """
        return model

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        """Return the prefix of a checkpoint name; empty for a model without a head."""
        return "" if blueprint.head is None or name.startswith(cls.unprefixed) else cls.prefix

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        """Complete `model` beyond the rows of `settings`."""

    @classmethod
    def to_stored(cls, model: Tree, checkpoint: Mapping[str, Tensor]) -> list[str]:
        """Complete `model` from the tensors, by the names of the rules. Return notes."""
        return []

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        """Complete `config` beyond the rows of `settings`."""


MISSING = object()


def value_of(model: ModelSection, dotted: str, default: object = None) -> Any:
    """Look up a value of a spelled-out `model:`; among different layers, the first kind with the key counts."""
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
    """Return a copy of `base` with overrides, as in variants: dotted keys, the merge rule (R20)."""
    return overlays.overlaid("model", base, *over)


def override(model: Tree, over: Mapping[str, object]) -> None:
    """Apply overrides to `model` in place."""
    model.update(merged(model, over))
