"""Base of the families: one declarative map between their files and ours, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import Component
from tfkit.core.errors import DataError
from tfkit.interop.huggingface.overlap import check_rules
from tfkit.interop.huggingface.settings import Fixed, Setting, look, put
from tfkit.interop.huggingface.tensors import Rule, Sizes
from tfkit.recipe.overlays import overlay

Tree = dict[str, Any]


class Family(Component):
    """A published architecture: what its config.json and its tensors are in a recipe, and the other way round.

    `base` is what all its models have in common, as the `model:` of a recipe; `settings` say what differs. `heads` are
    the classes of theirs, each with what it lays over `base`: the first is written. Whatever rows cannot say,
    `to_recipe` and `to_config` add.
    """

    model_types: ClassVar[tuple[str, ...]]
    base: ClassVar[Mapping[str, Any]]
    heads: ClassVar[Mapping[str, Mapping[str, Any]]]  # their class -> what it lays over `base`
    settings: ClassVar[tuple[Setting, ...]] = ()
    head_settings: ClassVar[tuple[Setting, ...]] = ()  # those below `head`, which a model without one leaves out
    fixed: ClassVar[tuple[Fixed, ...]] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {}  # more of them, by the type of our `head`; none: "none"
    prefix: ClassVar[str] = ""  # what their names begin with, but in the file of a base model; rules leave it out
    unprefixed: ClassVar[tuple[str, ...]] = ()  # beginnings of names that never have it: those of the head
    tied: ClassVar[Mapping[str, str]] = {}  # their names that may stand for another tensor of theirs
    ignored: ClassVar[tuple[str, ...]] = ()  # templates of tensors that say nothing: buffers of constants
    sizes: ClassVar[Sizes] = {}  # axes of the layouts that are the same in all its models
    dropped: ClassVar[tuple[str, ...]] = ()  # templates of tensors that no output of this model reads
    derived: ClassVar[tuple[str, ...]] = ()  # keys of config.json that only say again what others do
    reads_ids: ClassVar[tuple[str, ...]] = ()  # keys of config.json for special tokens that their forward looks for
    ahead: ClassVar[bool] = False  # files may have layers beyond the last, for later tokens, that no output reads

    @classmethod
    def adopt(cls, slot: str, name: str) -> None:
        """Take the name it is registered under; raises UsageError for rules that contradict each other."""
        check_rules(name, cls.rules, cls.head_rules)
        super().adopt(slot, name)

    @classmethod
    def recipe(cls, config: Mapping[str, Any]) -> Tree:
        """The `model:` that a config describes; raises DataError for what no recipe can express."""
        for key in cls.derived:
            look(config, key)  # so that it is not told as one that nobody knows
        for row in cls.fixed:
            row.check(config)
        rows = ((row.keys, row.read(config)) for row in cls.settings)
        values = {key: value for keys, value in rows if value is not None for key in keys}
        model = laid(cls.base, cls.heads[cls.head_class(config)], values)
        cls.to_recipe(model, config)
        return model

    @classmethod
    def head_class(cls, config: Mapping[str, Any]) -> str:
        """Which of their classes the files are of; raises DataError for one that no head of ours is."""
        classes = config.get("architectures") or [next(iter(cls.heads))]
        for name in classes:
            if name in cls.heads:
                return str(name)
        known = ", ".join(cls.heads)
        raise DataError(f"config.json: architectures: {', '.join(classes)} cannot be brought in; known are {known}")

    @classmethod
    def config(cls, model: Mapping[str, Any], head_class: str) -> Tree:
        """The config.json of a `model:` that is spelled out; raises DataError where they have no word for a value."""
        config: Tree = {"architectures": [head_class], "model_type": cls.model_types[0]}
        for row in cls.fixed:
            put(config, row.theirs, row.values[0])
        for setting in cls.settings:
            value = spelled(model, setting.keys[0], MISSING)
            if value is not MISSING:
                put(config, setting.theirs, setting.write(value))
        cls.to_config(config, model)
        return config

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """The rules about a model: those of its head, which come first, and those of all."""
        head = "none" if blueprint.head is None else blueprint.head.part.part_name
        head = "classifier" if head == "regression" else head  # a number of a text is a single class of it
        return (*cls.head_rules.get(head, ()), *cls.rules)

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        """Tensors that their files need and that say nothing of ours, by the names of the rules; mostly none."""
        return {}

    @classmethod
    def as_read(cls, model: Mapping[str, Any]) -> Mapping[str, Any]:
        """A spelled-out model as `recipe` reads it from the config that `config` writes of it.

        It differs where theirs needs a part that changes nothing, whose tensors are among the `constants`.
        """
        return model

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        """What stands before a name of the rules in their files of a model: nothing where it has no head."""
        return "" if blueprint.head is None or name.startswith(cls.unprefixed) else cls.prefix

    @classmethod
    def to_recipe(cls, model: Tree, config: Mapping[str, Any]) -> None:
        """Say in `model` what no row of `settings` can."""

    @classmethod
    def to_stored(cls, model: Tree, theirs: Mapping[str, Tensor]) -> list[str]:
        """Set in `model` what only their tensors tell, by the names of the rules; returns notes about it."""
        return []

    @classmethod
    def to_config(cls, config: Tree, model: Mapping[str, Any]) -> None:
        """Say in `config` what no row of `settings` can."""


MISSING = object()


def spelled(model: Mapping[str, Any], dotted: str, default: Any = None) -> Any:
    """A value of a spelled-out `model:`; of layers that differ, the first kind's that says it."""
    head, _, rest = dotted.partition(".")
    if head in ("encoder", "decoder") and head not in model:
        return spelled(model, rest, default)
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


def laid(base: Mapping[str, Any], *over: Mapping[str, Any]) -> Tree:
    """A copy of the `model:` in `base` with others laid over it, as variants are: dotted keys, the merge rule (R20)."""
    return overlay.laid("model", base, *over)


def lay(model: Tree, over: Mapping[str, Any]) -> None:
    """Lay over `model`, in its place."""
    model.update(laid(model, over))
