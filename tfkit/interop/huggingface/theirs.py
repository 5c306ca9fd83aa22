"""Whether an architecture is one of theirs: the family whose config.json says all of it, and nothing else."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import spell
from tfkit.core.errors import DataError, TfkitError, TfkitWarning
from tfkit.core.registry import is_shipped
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.known import families
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.views.resolved import model_values

# what changes no output of a trained model, so that a config that cannot say it is right all the same
TRAINING_ONLY = ("init", "special_ids", "balance_loss", "z_loss", "selection_rate")
LENGTH = 2048  # written where positions bound no length, since their files need one
# of several families that say the same, those that most programs know
FIRST = ("llama", "gpt2", "bert", "roberta", "t5", "bart", "mistral", "qwen2", "qwen3", "mixtral", "gpt_neox")


@dataclass(frozen=True)
class FamilyConfig:
    """A family, the class of theirs that a model is, and its config.json."""

    family: type[Family]
    head_class: str
    config: dict[str, Any]


def as_theirs(
    blueprint: Blueprint,
    first: Sequence[str] = (),
    ids: Mapping[str, int | None] | None = None,
    among: Collection[str] | None = None,
) -> FamilyConfig | None:
    """What the model is with them, or None where no family says it; `first` names a family and a class to begin with.

    `ids` are the model's special tokens by their keys of config.json, None where it has none; they become part of it.
    `among` limits the families.

    A family counts where its config, read back, is the same architecture; dropout and initialisation may differ. One
    whose code only its authors have does not count, as far as the transformers that is installed can tell. Warns where
    the family in `first` does not say the model, and where none does and a map of the user's own has failed.
    """
    why: dict[str, Exception] = {}
    found = None
    for name, outcome in _tried(blueprint, first, ids, among):
        if isinstance(outcome, FamilyConfig):
            found = outcome
            break
        if not isinstance(outcome, Absent):
            why.setdefault(name, outcome)
    _warn(found, first, why, families())
    return found


def nearest_unlike(
    blueprint: Blueprint,
    first: Sequence[str] = (),
    ids: Mapping[str, int | None] | None = None,
    among: Collection[str] | None = None,
) -> tuple[str, Unlike] | None:
    """The family that lacks the fewest settings of a model that none says whole, and which they are."""
    tried = _tried(blueprint, first, ids, among)
    outcomes = [(name, one) for name, one in tried if isinstance(one, Unlike) and one.settings]
    return min(outcomes, key=lambda outcome: len(outcome[1].settings), default=None)


def _tried(
    blueprint: Blueprint,
    first: Sequence[str],
    ids: Mapping[str, int | None] | None,
    among: Collection[str] | None,
) -> Iterator[tuple[str, FamilyConfig | Exception]]:
    """Each family with what comes of saying the model as one of its classes, those in `first` before the others."""
    model = _bounded(spell(model_values(blueprint)))
    known = {name: family for name, family in families().items() if among is None or name in among}
    preferred = [*first, *FIRST]
    names = sorted(known, key=lambda name: (preferred.index(name) if name in preferred else len(preferred), name))
    for name in names:
        for head_class in sorted(known[name].heads, key=lambda one: one not in first):
            try:
                yield name, _said_by(known[name], head_class, model, ids)
            except Exception as error:  # whatever a map raises for a model that has not the parts it looks for
                yield name, error


class Unlike(DataError):
    """A family's config does not say all of a model; `settings` are the dotted keys in which they differ."""

    def __init__(self, message: str, settings: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.settings = tuple(settings)


class Absent(DataError):
    """The transformers that is installed has no class of a family."""


def _said_by(
    family: type[Family], head_class: str, model: Mapping[str, Any], ids: Mapping[str, int | None] | None
) -> FamilyConfig:
    """The model as a family says it; raises Unlike where it does not, Absent, and whatever the map raises."""
    config = family.config(model, head_class)
    recipe = family.recipe(config)
    if model.get("head") is None and not model.get("heads"):
        recipe.pop("heads", None)  # their class has a pooler that their files may leave out
    read = spell(model_values(blueprint_of(recipe)))
    wanted = family.as_read(model)
    others = _differing(_essence(read, wanted), _essence(wanted, read))
    if others:
        raise Unlike(f"its config.json cannot say {', '.join(others[:6])}{', ...' if len(others) > 6 else ''}", others)
    config = config if ids is None else _with_ids(family, config, ids)
    _check_loads(config)
    return FamilyConfig(family, head_class, config)


def _with_ids(family: type[Family], config: Mapping[str, Any], ids: Mapping[str, int | None]) -> dict[str, Any]:
    """A config with the special tokens of the model; raises Unlike where their code would look for others.

    A special token that the run lacks is written as null, since the family may have a default for it.
    """
    fixed = {key: config[key] for key in ids if config.get(key) is not None}
    other = [key for key, id_ in fixed.items() if ids[key] not in (None, id_)]
    if other:
        what = f"{other[0]} {ids[other[0]]}, where positions begin after {fixed[other[0]]}"
        raise Unlike(f"its config.json cannot say {what}")
    missing = [key for key in family.reads_ids if {**ids, **fixed}.get(key) is None]
    if missing:
        raise Unlike(f"its code looks for {' and '.join(missing)}, which this model has not")
    return {**config, **ids, **fixed}


def _warn(
    found: FamilyConfig | None, first: Sequence[str], why: Mapping[str, Exception], known: Mapping[str, type[Family]]
) -> None:
    """Warn of families that were expected to say the model and do not, `why` is known of each."""
    if first and first[0] not in known:
        told = f"this run was imported as '{first[0]}', a family that is not registered here; --import its file"
        warnings.warn(told, TfkitWarning, stacklevel=3)
    for name, error in why.items():
        failed = found is None and not isinstance(error, TfkitError) and not is_shipped(known[name])
        if failed or (name in first and (found is None or found.family.part_name != name)):
            reason = str(error) if isinstance(error, TfkitError) else f"{type(error).__name__}: {error}{_place(error)}"
            warnings.warn(f"not written as '{name}': {' '.join(reason.split())}", TfkitWarning, stacklevel=3)


def _place(error: Exception) -> str:
    """Where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], place: str = "") -> list[str]:
    """The dotted keys whose values differ."""
    found = []
    for key in {**one, **other}:
        first, second = one.get(key), other.get(key)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            found += _differing(first, second, f"{place}{key}.")
        elif (key in one) != (key in other) or not _equal(first, second):
            found.append(f"{place}{key}")
    return found


def _equal(one: Any, other: Any) -> bool:
    """True if two values are equal, floats up to the rounding of a product and its quotient."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def _bounded(model: dict[str, Any]) -> dict[str, Any]:
    """The same with a length wherever it has none."""
    stacks: dict[str, Any] = {side: _bounded(model[side]) for side in ("encoder", "decoder") if side in model}
    if "max_length" in model:
        stacks["max_length"] = model["max_length"] or LENGTH
    return model | stacks


def _check_loads(config: Mapping[str, Any]) -> None:
    """Raise Absent or Unlike where transformers cannot make a model of a config; passes where it is not installed."""
    try:
        import transformers
    except ImportError:
        return
    missing = set(config["architectures"]) - set(dir(transformers))
    if config["model_type"] not in transformers.CONFIG_MAPPING or missing:
        raise Absent(f"this transformers has no {', '.join(missing) or config['model_type']}")
    values = {key: value for key, value in config.items() if key != "model_type"}
    try:
        transformers.CONFIG_MAPPING[config["model_type"]](**values)
    except Exception as error:  # whatever their validation raises
        raise Unlike(f"transformers does not take its config.json: {error}") from None


def _essence(model: Mapping[str, Any], other: Any, width: int | None = None) -> dict[str, Any]:
    """What of a spelled-out model its outputs depend on; a length counts where `other` says one too.

    What says the same as its absence is left out: heads as wide as `width`, the stack's, allows, keys and values for
    each of them, values as wide as keys, scores divided by the root of a head's width.
    """
    width = model.get("d_model", width)
    kept: dict[str, Any] = {}
    for key, value in model.items():
        beside = other.get(key) if isinstance(other, Mapping) else None
        if key in TRAINING_ONLY or key.endswith("dropout") or (key == "max_length" and None in (value, beside)):
            continue
        kept[key] = _essence(value, beside, width) if isinstance(value, Mapping) else value
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
