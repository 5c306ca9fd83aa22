"""Options of parts under test: the part's own `example`, then small values by option name.

New parts of a catalogue or a plugin are therefore tested without further code; if a required option has no known
value, the error asks the author for an example.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from tfkit.contracts.expect import Broken
from tfkit.contracts.samples import given_files, plain_text
from tfkit.core.component import Component
from tfkit.core.options import PathMark, Slot
from tfkit.core.registry import REGISTRY
from tfkit.core.shape import Shape

# Values by name: set for required options; for others, one at a time as variants.
SIZES: dict[str, Any] = {
    "after": 1,
    "alpha": 1.5,
    "before": 2,
    "beta": 0.5,
    "choices": ["the cat", "a"],
    "d_embedding": 8,
    "d_ff": 24,
    "d_output": 6,
    "dilation": 2,
    "ends": 4,
    "epsilon": 0.02,
    "factor": 2.0,
    "final": 0.001,
    "fraction": 0.5,
    "group_size": 4,
    "head_dim": 8,
    "kv_rank": 12,
    "inner_norm": "rms_norm",
    "k": 5,
    "label_smoothing": 0.1,
    "length": 4,
    "limit": 0.5,
    "lr": 0.01,
    "mask_id": 3,
    "max_distance": 20,
    "max_length": 40,
    "max_val": 2.0,
    "min_val": -2.0,
    "minimum_count": 1,
    "n_best": 2,
    "negative_slope": 0.2,
    "num_active": 2,
    "num_beams": 3,
    "num_buckets": 8,
    "num_classes": 3,
    "num_experts": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "num_shared": 2,
    "offset": 2,
    "p": 0.8,
    "pattern": "[a-z ]*",
    "peak": 0.01,
    "penalty": 1.3,
    "qk_norm": "rms_norm",
    "query_rank": 10,
    "rotary_head_dim": 4,
    "router": {"type": "sigmoid", "selection_bias": True, "num_groups": 2, "active_groups": 1, "normalized": True},
    "scale": 0.3,
    "scaling": {"type": "linear", "factor": 2.0},
    "seconds": 5.0,
    "segments": 2,
    "shared_expert": {"type": "glu", "d_ff": 8},
    "size": 3,
    "softcap": 5.0,
    "strings": ["the"],
    "temperature": 0.7,
    "theta": 100.0,
    "threshold": 0.1,
    "tokens": 4,
    "value": 0.05,
    "until": 3,
    "up_offset": 1.0,
    "value_dim": 6,
    "value_head_dim": 6,
    "vocab_size": 320,
    "warmup": 4,
    "weight_decay": 0.1,
    "weight_offset": 1.0,
}
# Parts for required options that hold a part, by slot.
PARTS = {"feedforward": "mlp", "activation": "gelu", "norm": "layer_norm", "attention": "multi_head"}
# Slots whose options do not depend on a shape.
SHAPELESS = frozenset(
    "init model tokenizer corpus objective optimizer schedule adapter metric callback logits stop strategy".split()  # noqa: SIM905
)

D_MODEL = 16
VOCABULARY = 23
MAX_LENGTH = 32
PLAIN_SHAPE = Shape(D_MODEL, VOCABULARY, MAX_LENGTH, num_heads=4)


def required(slot: str, name: str) -> dict[str, Any]:
    """Return the required options of the part and those of its example; raise Broken for an unknown one.

    Required are options without a default, and options demanded by the part's own check (the size of a window).
    """
    part = REGISTRY.get(slot, name)
    options = _example(part)
    options = _undefaulted(part, options) | options
    if slot in SHAPELESS:
        return options
    config = Slot(slot).validate({"type": name, **options})
    asked = [problem.option for problem in config.check(PLAIN_SHAPE)]
    return options | {option: SIZES[option] for option in asked if option in SIZES and option not in options}


def _example(part: type[Component]) -> dict[str, Any]:
    """Return the example options of the part; paths are relative to its source file."""
    if not isinstance(part.example, Mapping):
        raise Broken(f"example = {part.example!r}: an example is a mapping of options")
    options = dict(part.example)
    for option, value in options.items():
        field = part.Config.model_fields.get(option)
        if field is not None and is_path(field) and isinstance(value, str):
            options[option] = str(Path(inspect.getfile(part)).parent / value)
    return options


def _undefaulted(part: type[Component], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the missing options without a default."""
    fields = part.Config.model_fields
    options: dict[str, Any] = dict(given_files(part))
    for option, field in fields.items():
        if field.is_required() and option not in given and option not in options:
            options[option] = _value(part, option, field)
    return options


def _value(part: type[Component], option: str, field: Any) -> Any:
    """Return a small value for a required option."""
    inner = next((mark.slot for mark in field.metadata if isinstance(mark, Slot)), None)
    choices = get_args(field.annotation)
    if option in SIZES:
        return SIZES[option]
    if inner is not None:
        chosen = PARTS.get(inner) or REGISTRY.names(inner)[0]
        return {"type": chosen, **required(inner, chosen)}
    if is_path(field):
        return plain_text()
    if choices and isinstance(choices[0], str):
        return choices[0]
    raise Broken(
        f"it cannot be tried: it needs the option '{option}', and what a small value of that is, only its author "
        f"knows; give the class an example, such as  example = {{'{option}': ...}}"
    )


def is_path(field: Any) -> bool:
    """True if an option is a path or a list of paths."""
    marks = [*field.metadata, *(mark for kind in get_args(field.annotation) for mark in get_args(kind))]
    return any(isinstance(mark, PathMark) for mark in marks)


def alternatives(option: str, annotation: Any, default: Any) -> Iterator[Any]:
    """Yield alternative values of an option."""
    kinds = _flattened(annotation)
    if option in SIZES and SIZES[option] != default:
        yield SIZES[option]
    if bool in kinds:
        yield not default
    for kind in kinds:
        if isinstance(kind, str) and kind != default:
            yield kind


def _flattened(annotation: Any) -> list[Any]:
    """Return the members of a union, and the values of a Literal."""
    if getattr(annotation, "__origin__", None) is Literal:
        return list(get_args(annotation))
    members = get_args(annotation)
    if not members or isinstance(annotation, type):
        return [annotation]
    return [entry for member in members for entry in _flattened(member)]


def frozen(value: Any) -> Any:
    """Convert `value` to a hashable form; `thawed` is the inverse."""
    if isinstance(value, Mapping):
        return ("{}", *((key, frozen(entry)) for key, entry in value.items()))
    if isinstance(value, list):
        return ("[]", *map(frozen, value))
    return value


def thawed(value: Any) -> Any:
    """Invert `frozen`."""
    if isinstance(value, tuple) and value[:1] == ("{}",):
        return {key: thawed(entry) for key, entry in value[1:]}
    if isinstance(value, tuple) and value[:1] == ("[]",):
        return [thawed(entry) for entry in value[1:]]
    return value
