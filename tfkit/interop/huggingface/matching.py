"""Search for the Hugging Face family whose config.json describes an architecture exactly."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.component import spell
from tfkit.core.errors import DataError, TfkitError, TfkitWarning, is_shipped
from tfkit.interop.huggingface.family import Family, families, merged, value_of
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values

# keys that do not affect the outputs of a trained model, so a config need not express them
TRAINING_ONLY = ("init", "special_ids", "balance_loss", "z_loss", "selection_rate")
# keys whose parts tell families apart; a family whose `base` has another part than the model is not tried
FACTS = (
    "type", "head", "position", "layer.residual", "layer.norm", "layer.attention", "layer.feedforward",
    "layer.attention.qk_norm", "embedding.norm",
)  # fmt: skip
LENGTH = 2048  # max_length written for unbounded positions, since config files require one
# tried first if several families match, because many tools support them
FIRST = (
    "llama", "gpt2", "bert", "roberta", "t5", "bart", "mistral", "qwen2", "qwen3", "mixtral", "gpt_neox", "siglip_text",
)  # fmt: skip

Nearest = tuple[str, tuple[str, ...]]  # a family's name, and the dotted keys that its config.json cannot express


@dataclass(frozen=True)
class FamilyConfig:
    """A family that matches a model, with the model class and the config.json."""

    family: type[Family]
    head_class: str
    config: Tree


def matching_family(
    blueprint: Blueprint, first: Sequence[str] = (), ids: Mapping[str, int | None] | None = None
) -> tuple[FamilyConfig | None, Nearest | None]:
    """Return the matching family, or else the nearest one. `first` names the family and class to prefer.

    `ids` are the model's special tokens by config.json key, None if missing; they are added to the config.

    A family matches if its config reads back as the same architecture, ignoring dropout and initialization, and if the
    installed transformers, if any, has the family's class. Warns if the family in `first` does not match, or if no
    family matches and a user-defined family raised an error.
    """
    model, known = _bounded(spell(model_values(blueprint))), families()
    why: dict[str, Exception] = {}
    nearest: Nearest | None = None
    for candidates in _candidates(model, known, first):
        for name, head_class in candidates:
            try:
                match = _config_of(known[name], head_class, model, ids)
            except Exception as error:  # families may raise any exception for unexpected parts
                if isinstance(error, Unlike) and 0 < len(error.settings) < (len(nearest[1]) if nearest else math.inf):
                    nearest = name, error.settings
                if not isinstance(error, Absent):
                    why.setdefault(name, error)
            else:
                _warn(match, first, why, known)
                return match, None
        if nearest is not None:
            break
    _warn(None, first, why, known)
    return None, nearest


def _candidates(
    model: ModelSection, known: Mapping[str, type[Family]], first: Sequence[str]
) -> Iterator[list[tuple[str, str]]]:
    """Yield the families and their classes in groups, from those without a part that the model lacks to the others.

    The preferred family and user-defined families are in the first group.
    """
    preferred = [*first, *FIRST]
    parts = {key: _parts(value_of(model, key)) for key in FACTS}
    groups: dict[int, list[tuple[str, str]]] = {0: []}
    for name in sorted(known, key=lambda name: (preferred.index(name) if name in preferred else len(preferred), name)):
        for head_class in sorted(known[name].heads, key=lambda one: one not in first):
            facts = {} if name in first else _facts(known[name], head_class)
            unlike = sum(not _agree(key, stated, parts[key]) for key, stated in facts.items())
            groups.setdefault(unlike, []).append((name, head_class))
    return (groups[unlike] for unlike in sorted(groups))


def _facts(family: type[Family], head_class: str) -> Mapping[str, set[object]]:
    """Return the parts of all models of a class, by their keys; none for user-defined families."""
    if not is_shipped(family):
        return {}
    base = merged(family.base, family.heads[head_class])
    return {key: _parts(value_of(base, key)) for key in FACTS if key not in family.varying}


def _parts(value: object) -> set[object]:
    """Return the names of the parts in a value; True stands for any part."""
    parts = value if isinstance(value, list) else [value]
    names = {part.get("type") if isinstance(part, Mapping) else part for part in parts}
    return {"classifier" if name == "regression" else name for name in names} - {None, False, "none"}


def _agree(key: str, stated: set[object], parts: set[object]) -> bool:
    """True if a model with `parts` at `key` can belong to a class of which all models have the parts `stated`."""
    if key == "head":
        return stated == parts
    return not stated or (bool(parts) if True in stated else not parts or not stated.isdisjoint(parts))


class Unlike(DataError):
    """Raised if a family's config cannot express a model; `settings` are the dotted keys that differ."""

    def __init__(self, message: str, settings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.settings = tuple(settings)


class Absent(DataError):
    """Raised if the installed transformers does not have a family's class."""


def _config_of(
    family: type[Family], head_class: str, model: ModelSection, ids: Mapping[str, int | None] | None
) -> FamilyConfig:
    """Return the family's config for a model.

    Raise Unlike or Absent if no config of the family describes it, or any error of the family.
    """
    config = family.config(model, head_class)
    recipe = family.recipe(config)
    if model.get("head") is None and not model.get("heads"):
        recipe.pop("heads", None)  # files may omit the weights of this class's pooler
    read = spell(model_values(blueprint_of(recipe)))
    expected = family.as_read(model)
    others = _differing(_essence(read, expected), _essence(expected, read))
    if others:
        raise Unlike(
            f"its config.json cannot express {', '.join(others[:6])}{', ...' if len(others) > 6 else ''}", others
        )
    config = config if ids is None else _with_ids(family, config, ids)
    _check_loads(config)
    return FamilyConfig(family, head_class, config)


def _with_ids(family: type[Family], config: ConfigJson, ids: Mapping[str, int | None]) -> dict[str, object]:
    """Add the model's special tokens to a config. Raise Unlike if the implementation requires other ids.

    Missing special tokens are written as null, since the family may have default ids.
    """
    fixed = {key: config[key] for key in ids if config.get(key) is not None}
    other = [key for key, id_ in fixed.items() if ids[key] not in (None, id_)]
    if other:
        what = f"{other[0]} {ids[other[0]]}, because positions start after {fixed[other[0]]}"
        raise Unlike(f"its config.json cannot express {what}")
    missing = [key for key in family.reads_ids if {**ids, **fixed}.get(key) is None]
    if missing:
        raise Unlike(f"its code requires {' and '.join(missing)}, which this model lacks")
    return {**config, **ids, **fixed}


def _warn(
    match: FamilyConfig | None, first: Sequence[str], why: Mapping[str, Exception], known: Mapping[str, type[Family]]
) -> None:
    """Warn if the preferred family or a user-defined family failed to match, with the reasons in `why`."""
    if first and first[0] not in known:
        message = f"this run was imported as '{first[0]}', a family that is not registered; pass its file to --import"
        warnings.warn(message, TfkitWarning, stacklevel=3)
    for name, error in why.items():
        failed = match is None and not isinstance(error, TfkitError) and not is_shipped(known[name])
        if failed or (name in first and (match is None or match.family.part_name != name)):
            reason = str(error) if isinstance(error, TfkitError) else f"{type(error).__name__}: {error}{_place(error)}"
            warnings.warn(f"not written as '{name}': {' '.join(reason.split())}", TfkitWarning, stacklevel=3)


def _place(error: Exception) -> str:
    """Return the code location at which an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _differing(one: Mapping[str, object], other: Mapping[str, object], place: str = "") -> list[str]:
    """Return the dotted keys whose values differ."""
    keys = []
    for key in {**one, **other}:
        first, second = one.get(key), other.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            keys += _differing(first, second, f"{place}{key}.")
        elif (key in one) != (key in other) or not _equal(first, second):
            keys.append(f"{place}{key}")
    return keys


def _equal(one: object, other: object) -> bool:
    """True if two values are equal; floats may differ by the rounding error of a multiplication and division."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _bounded(model: Tree) -> Tree:
    """Return the model with a max_length in each stack that had none."""
    stacks: dict[str, object] = {side: _bounded(model[side]) for side in ("encoder", "decoder") if side in model}
    if "max_length" in model:
        stacks["max_length"] = model["max_length"] or LENGTH
    return model | stacks


def _check_loads(config: ConfigJson) -> None:
    """Raise Absent or Unlike if transformers cannot load a config. No-op without transformers."""
    try:
        import transformers
    except ImportError:
        return
    missing = set(config["architectures"]) - set(dir(transformers))
    if config["model_type"] not in transformers.CONFIG_MAPPING or missing:
        raise Absent(f"the installed transformers has no {', '.join(missing) or config['model_type']}")
    values = {key: deepcopy(value) for key, value in config.items() if key != "model_type"}  # the class changes them
    try:
        transformers.CONFIG_MAPPING[config["model_type"]](**values)
    except Exception as error:  # transformers' validation may raise any exception
        raise Unlike(f"transformers rejects its config.json: {error}") from None


def _essence(model: ModelSection, other: object, width: int | None = None) -> Tree:
    """Return the parts of a spelled-out model that affect its outputs; max_length only if `other` has one too.

    Head widths, value widths, key-value head counts and score scales become None if they equal their defaults. `width`
    is the stack's d_model.
    """
    width = model.get("d_model", width)
    kept: Tree = {}
    for key, value in model.items():
        beside = other.get(key) if isinstance(other, Mapping) else None
        if key in TRAINING_ONLY or key.endswith("dropout") or (key == "max_length" and None in (value, beside)):
            continue
        kept[key] = _essence(value, beside, width) if isinstance(value, Mapping) else value
    if width and kept.get("type") == "mamba2" and kept["num_heads"] is None:
        kept["num_heads"], kept["expand"] = (kept["expand"] or 2) * width // kept["head_dim"], None
    heads = kept.get("num_heads")
    if heads and kept.get("num_kv_heads") == heads:
        kept["num_kv_heads"] = None
    if heads and "value_head_dim" in kept and kept["value_head_dim"] == kept["head_dim"]:
        kept["value_head_dim"] = None
    if heads and width and kept.get("head_dim") == width // heads:
        kept["head_dim"] = None
    if heads and width and isinstance(kept.get("scale"), float):
        usual = ((kept["head_dim"] or width // heads) + kept.get("rotary_head_dim", 0)) ** -0.5
        kept["scale"] = None if math.isclose(kept["scale"], usual, rel_tol=1e-9) else kept["scale"]
    return kept
