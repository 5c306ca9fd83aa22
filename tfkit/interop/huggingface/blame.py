"""Attribution of recipe faults to keys of config.json."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tfkit.core.errors import DataError, Fault, RecipeError, TfkitError
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.settings import ConfigJson, Setting, look, put
from tfkit.interop.huggingface.watched import Watched
from tfkit.recipe.model import blueprint_of

MOST = 4  # maximum number of keys in a message
PROBES = (2, 8)  # values tried as replacements for a key's value
NOWHERE = " (at <mapping>)"  # suffix of the location of values that are not from a file
# parts of a recipe path that are omitted in a family's settings: the prefix, the kind of layer and list indices
UNSAID = re.compile(r"^model\.|(?<=layer)s\.\w+|\[\d+\]")


def config_fault(file: Path, family: type[Family], config: Watched, error: TfkitError) -> DataError:
    """Return the error with the file name and the config.json keys responsible for each fault."""
    curing = _curing(family, config)
    faults = error.faults if isinstance(error, RecipeError) else []
    lines = [_line(family, config, fault, curing) for fault in faults] or [_with_keys(str(error), config, curing)]
    return DataError("\n".join(f"{file}: {line}" for line in dict.fromkeys(lines)))


def unreadable(file: Path, family: type[Family], config: Watched, error: Exception) -> DataError:
    """Return a DataError for an exception in a family's conversion, naming the file and the keys."""
    what = f"not a config of the family '{family.part_name}' ({type(error).__name__}: {error})"
    keys = _curing(family, config) or [*config.accessed][-1:]
    return DataError(f"{file}: {_with_keys(what, config, keys)}")


def _line(family: type[Family], config: Watched, fault: Fault, curing: Sequence[str]) -> str:
    """Format a fault with the keys that it mentions and the keys that fix it if changed."""
    message = f"{UNSAID.sub('', fault.path)}: {fault.message.replace(NOWHERE, '')}"
    return _with_keys(message, config, [*(row.config_key for row in _about(family, fault)), *curing])


def _about(family: type[Family], fault: Fault) -> Iterator[Setting]:
    """Yield the settings whose keys correspond to the path of a fault."""
    path = UNSAID.sub("", fault.path)
    rows: Sequence[Setting] = (*family.settings, *family.head_settings)
    for row in rows:
        for key in row.keys:
            owner, _, option = key.rpartition(".")
            if path == key or path.startswith(f"{key}.") or (path == owner and f"'{option}'" in fault.message):
                yield row


def _curing(family: type[Family], config: Watched) -> list[str]:
    """Return the keys whose removal or replacement fixes all faults, else the missing keys."""
    accessed = dict(reversed([*config.accessed.items()]))
    variants = {key: without(config, key.split(".")) for key, value in accessed.items() if value is not None}
    missing = {key: dict(config) for key, value in accessed.items() if value is None and "." not in key}
    cures = [
        key for key, bare in (variants | missing).items() if any(_builds(family, one) for one in _others(bare, key))
    ]
    return cures or [key for key, bare in variants.items() if _is_missed(family, bare, key)]


def _others(bare: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    """Yield copies of the config: one without a key, then some with other numbers as its value."""
    yield bare
    for number in PROBES:
        config = copy.deepcopy(dict(bare))
        put(config, key, number)
        yield config


def _builds(family: type[Family], config: ConfigJson) -> bool:
    try:
        blueprint_of(family.recipe(config))
    except Exception:  # values of unexpected types may raise any exception
        return False
    return True


def _is_missed(family: type[Family], bare: Mapping[str, object], key: str) -> bool:
    """True if the conversion fails only because the key is missing."""
    last = key.rpartition(".")[2]
    try:
        family.recipe(bare)
    except Exception as error:  # a DataError or a KeyError about the key
        return error.args == (last,) or f"{last} is required" in str(error)
    return False


def without(config: ConfigJson, path: Sequence[str]) -> Tree:
    """Return a copy of the config without the key at `path`."""
    first, *rest = path
    below = {first: without(config[first], rest)} if rest and isinstance(config.get(first), Mapping) else {}
    return {key: value for key, value in config.items() if key != first or rest} | below


def _with_keys(message: str, config: ConfigJson, keys: Sequence[str]) -> str:
    named = [_named(config, key) for key in [*dict.fromkeys(keys)][:MOST]]
    return f"{', '.join(named)}: {message}" if named else message


def _named(config: ConfigJson, key: str) -> str:
    """Format a key with its value."""
    value = look(config, key, None)
    text = "missing" if value is None else json.dumps(value, default=str)
    return f"{key} {text if len(text) <= 60 else f'{text[:57]}...'}"
