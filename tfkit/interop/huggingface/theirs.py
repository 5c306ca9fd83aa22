"""Whether an architecture is one of theirs: the family whose config.json says all of it, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfkit.core.blueprint import Blueprint
from tfkit.core.component import spell
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.known import families
from tfkit.recipe.model import blueprint_of
from tfkit.recipe.resolved import model_values

# what changes no output of a trained model, so that a config that cannot say it is right all the same
TRAINING_ONLY = ("init", "special_ids", "balance_loss", "z_loss", "selection_rate")
LENGTH = 2048  # what is said where positions bound no length, since their files have to say one
# of several families that say the same, those that most programs know
FIRST = ("llama", "gpt2", "bert", "roberta", "t5", "bart", "mistral", "qwen2", "qwen3", "mixtral", "gpt_neox")


@dataclass(frozen=True)
class Theirs:
    """A family, the class of theirs that a model is, and its config.json."""

    family: type[Family]
    head_class: str
    config: dict[str, Any]


def as_theirs(blueprint: Blueprint, first: Sequence[str] = ()) -> Theirs | None:
    """What the model is with them, or None where no family says it; `first` names a family and a class to begin with.

    A family counts where its config, read back, gives the same architecture; dropout and initialisation may differ. One
    whose code only its authors have does not count, as far as the transformers that is installed can tell.
    """
    model = _bounded(spell(model_values(blueprint)))
    known = families()
    preferred = [*first, *FIRST]
    names = sorted(known, key=lambda name: (preferred.index(name) if name in preferred else len(preferred), name))
    for name in names:
        for head_class in sorted(known[name].heads, key=lambda said: said not in first):
            config = _config(known[name], head_class, model)
            if config is not None and _is_same(known[name], config, model) and _loads(config):
                return Theirs(known[name], head_class, config)
    return None


def _bounded(model: dict[str, Any]) -> dict[str, Any]:
    """The same with a length wherever it has none."""
    stacks: dict[str, Any] = {side: _bounded(model[side]) for side in ("encoder", "decoder") if side in model}
    if "max_length" in model:
        stacks["max_length"] = model["max_length"] or LENGTH
    return model | stacks


def _config(family: type[Family], head_class: str, model: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        return family.config(model, head_class)
    except Exception:  # whatever it raises for a model that has not the parts it looks for
        return None


def _is_same(family: type[Family], config: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    try:
        recipe = family.recipe(config)
        if model.get("head") is None and not model.get("heads"):
            recipe.pop("heads", None)  # their class has a pooler that their files may leave out
        read = spell(model_values(blueprint_of(recipe)))
        wanted = family.as_read(model)
    except Exception:  # so too
        return False
    return _essence(read, wanted) == _essence(wanted, read)


def _loads(config: Mapping[str, Any]) -> bool:
    """Whether transformers has the class of a config and takes its values; taken for granted where it is missing."""
    try:
        import transformers
    except ImportError:
        return True
    known = config["model_type"] in transformers.CONFIG_MAPPING
    if not known or not set(config["architectures"]) <= set(dir(transformers)):
        return False
    values = {key: value for key, value in config.items() if key != "model_type"}
    try:
        transformers.CONFIG_MAPPING[config["model_type"]](**values)
    except Exception:  # whatever their validation raises
        return False
    return True


def _essence(model: Mapping[str, Any], other: Any, width: int | None = None) -> dict[str, Any]:
    """What of a spelled-out model its outputs depend on; a length counts where `other` says one too.

    What says the same as its absence is left out: heads as wide as `width`, the stack's, allows, keys and values for
    each of them, scores divided by the root of a head's width.
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
    if heads and width and kept.get("head_dim") == width // heads:
        kept["head_dim"] = None
    if heads and width and isinstance(kept.get("scale"), float):
        usual = ((kept["head_dim"] or width // heads) + kept.get("rotary_head_dim", 0)) ** -0.5
        kept["scale"] = None if math.isclose(kept["scale"], usual, rel_tol=1e-9) else kept["scale"]
    return kept
