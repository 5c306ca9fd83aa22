"""Initialization from another run or from pretrained vectors, matched by name and shape, and freezing of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from tfkit.components.embedding import load_vectors
from tfkit.core.blueprint import Blueprint
from tfkit.core.errors import Fault, RunError, UsageError
from tfkit.core.options import layer_pairs
from tfkit.core.output import some
from tfkit.data.tokenizer import Tokenizer
from tfkit.models import Model
from tfkit.recipe.load import Recipe
from tfkit.recipe.settings.parameters import matches, meant, named, unknown
from tfkit.recipe.settings.sections import InitFrom
from tfkit.recipe.text.node import inline
from tfkit.runs import record
from tfkit.runs.folder import RESOLVED, TOKENIZERS, WEIGHTS, RunFolder, load_tokenizer, tokenizer_files
from tfkit.runs.weights import Weights, dtype_name, tensor_names, warn_not_finite
from tfkit.storage.files import read_yaml
from tfkit.training.progress import Reporter


@dataclass(frozen=True)
class Fit:
    """Result of matching a run's tensors to a model.

    `kept` maps names in the model to the run's tensors; `new` maps names without a match to a reason, or "". `unused`
    lists the run's tensors without a match, and `alone` the unused tensors whose name is not in `new` either.
    """

    kept: dict[str, Tensor]
    new: dict[str, str]
    unused: list[str]
    alone: list[str]

    @classmethod
    def of(cls, own: Weights, source: Weights, others: tuple[str, ...]) -> Fit:
        """Match two sets of weights by name and shape. Names with a prefix in `others` never match."""
        found = source.by_name()
        kept: dict[str, Tensor] = {}
        new: dict[str, str] = {}
        used: set[str] = set()
        replaced: set[str] = set()
        for name, tensor in own.tensors.items():
            names = [name, *(alias for alias, owner in own.tied.items() if owner == name)]
            first = next((one for one in names if one in found), None)
            why = "" if first is None else _why_new(first, tensor, found[first], others)
            if first is None or why:
                new[name] = why
                replaced.update(names)
            else:
                kept[name] = found[first]
                same = (one for one in names if one in found and torch.equal(found[one], found[first]))
                used.update(
                    [first, *same]
                )  # `first` is added explicitly, because tensors with NaN are not equal to themselves
        used.update(source.tied[alias] for alias in used & source.tied.keys())
        unused = [name for name in source.tensors if name not in used]
        return cls(kept, new, unused, [name for name in unused if name not in replaced])


def _why_new(name: str, tensor: Tensor, source: Tensor, others: tuple[str, ...]) -> str:
    """Return the reason why a tensor is not copied, or ""."""
    if name.startswith(others):
        return "the run's head has another type"
    if source.shape != tensor.shape:
        return f"shape {list(tensor.shape)} here, {list(source.shape)} in the run"
    if tensor.is_floating_point() and not source.is_floating_point():
        return f"{dtype_name(source)} in the run"
    return ""


def patterns_for(names: Iterable[str], others: Sequence[str]) -> list[str]:
    """Return short patterns that match all of `names` and none of `others`."""
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        beginnings = (".".join(parts[:length]) + "." for length in range(1, len(parts)))
        free = (beginning for beginning in beginnings if not any(other.startswith(beginning) for other in others))
        beginning = next(free, None)
        found[name if beginning is None else f"{beginning}*"] = None
    return list(found)


LAYER = re.compile(r"(?P<side>encoder|decoder)\.layers\.(?P<layer>\d+)\.")


def start_from(model: nn.Module, source: InitFrom, reporter: Reporter, tokenizer: Tokenizer | None = None) -> None:
    """Copy the weights of a run that match the model by name and shape, and report the others.

    A head of another type does not match even if shapes agree. Raise RunError if nothing matches, if `source` does not
    list a new or unused tensor, or if the token embedding is copied but the run's tokens have other ids here. Tables of
    tokens keep the rows that both have.
    """
    run = RunFolder(Path(source.run))
    if not run.path.is_dir():
        raise RunError(f"train.init_from: {run} is not a run folder")
    record.check(run, (RESOLVED, *TOKENIZERS))
    with record.checking(run, WEIGHTS):
        own, found = Weights.of(model), Weights.read(run / WEIGHTS)
        found = _relayered(found, model, source) if source.layers else found
        grown = {} if tokenizer is None else _resized(found, cast(Model, model), own, source.new)
        fit = Fit.of(own, found, _other_heads(model, run.path))
        if not fit.kept:
            raise RunError(f"train.init_from: no tensor in {run / WEIGHTS} matches this model by name and shape")
        _check_named(source, fit, [*own.by_name()], [*found.by_name()])
        if tokenizer is not None and any(name.endswith("embedding.tokens.weight") for name in fit.kept):
            _check_tokens(run, tokenizer)
        warn_not_finite(run / WEIGHTS, fit.kept)
        with torch.no_grad():
            for name, tensor in fit.kept.items():
                own.tensors[name].copy_(tensor)
    new = _with_reasons(fit.new)
    reporter.say(f"from {run}: {len(fit.kept)} tensors kept, {len(new)} new, {len(fit.unused)} not used")
    for word, names in (("kept", [*fit.kept]), ("new", new), ("not used", fit.unused)):
        if names:
            reporter.log(f"{word}: {', '.join(names)}")
    if new:
        reporter.say(f"new: {some(new, 6)}")
    for name, rows in grown.items():
        reporter.say(f"{name}: {rows:,} rows kept, {len(own.tensors[name]) - rows:,} new")


def _resized(found: Weights, model: Model, own: Weights, redrawn: Sequence[str]) -> dict[str, int]:
    """Resize the run's tables of tokens in `found` to the model's, filled with the model's rows.

    Return the number of rows kept by name. Tables in `redrawn` are left alone.
    """
    size, stored, kept = model.blueprint.last.vocab_size, found.by_name(), {}
    for name, table in own.tensors.items():
        of_tokens = name.endswith("embedding.tokens.weight") or (name.startswith("head.") and len(table) == size)
        old = stored.get(name) if of_tokens and not matches(name, redrawn) else None
        if old is not None and old.shape[1:] == table.shape[1:] and len(old) != len(table):
            kept[name] = min(len(old), len(table))
            owner = found.tied.get(name, name)
            found.tensors[owner] = torch.cat((old[: len(table)], table[len(old) :].to(old.dtype)))
    return kept


def _relayered(weights: Weights, model: nn.Module, source: InitFrom) -> Weights:
    """Rename the run's layers according to `source.layers`. Drop other layers of the same stacks."""
    pairs = list(layer_pairs(source.layers, cast(Model, model).blueprint.last.side))
    sides = {pair.side for pair in pairs}
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.by_name().items():
        found = LAYER.match(name)
        if found is None or found["side"] not in sides:
            tensors[name] = tensor
            continue
        for pair in pairs:
            if (pair.side, pair.other) == (found["side"], int(found["layer"])):
                tensors[f"{pair.side}.layers.{pair.own}.{name[found.end() :]}"] = tensor
    return Weights(tensors, {})


def layer_faults(recipe: Recipe, blueprint: Blueprint) -> list[Fault]:
    """Return a fault for each layer in `train.init_from.layers` that the run lacks."""
    source = recipe.train.initial
    if source is None or not source.layers:
        return []
    found = [LAYER.match(name) for name in tensor_names(Path(source.run) / WEIGHTS)]
    layers = {(one["side"], int(one["layer"])) for one in found if one is not None}
    return [
        recipe.fault(
            f"train.init_from.layers{pair.at}",
            f"{source.run} has no layer {pair.other}: its {pair.side} has {_count(layers, pair.side)}",
        )
        for pair in layer_pairs(source.layers, blueprint.last.side)
        if (pair.side, pair.other) not in layers
    ]


def _count(layers: set[tuple[str, int]], side: str) -> str:
    numbers = [number for place, number in layers if place == side]
    return f"layers 0 to {max(numbers)}" if numbers else "no layers"


def _check_named(source: InitFrom, fit: Fit, own: Sequence[str], stored: Sequence[str]) -> None:
    """Raise RunError if `source` does not list all new and unused tensors. The message includes the complete option."""
    for option, patterns, names in (("new", source.new, own), ("unused", source.unused, stored)):
        for pattern in patterns:
            if not any(matches(name, [pattern]) for name in names):
                where = "this model" if option == "new" else source.run
                near, firsts = meant(pattern.rstrip(".*"), names)
                hint = f"Did you mean '{near}'?" if near else f"Names start with {some(firsts)}."
                raise RunError(f"train.init_from.{option}: no tensor of {where} is named '{pattern}'. {hint}")
    new = {name: why for name, why in fit.new.items() if not matches(name, source.new)}
    left = [name for name in fit.alone if not matches(name, source.unused)]
    if not new and not left:
        return
    lists = {
        "new": [*source.new, *patterns_for(new, [name for name in own if name not in new])],
        "unused": [*source.unused, *patterns_for(left, [name for name in stored if name not in left])],
    }
    allowed = f", layers: {inline(source.layers)}" if source.layers else ""
    allowed += "".join(f", {option}: [{', '.join(patterns)}]" for option, patterns in lists.items() if patterns)
    lines = [f"train.init_from: {source.run} fits this model only in part: {len(fit.kept)} tensors match, these do not"]
    lines += [f"new in this model: {some(_with_reasons(new), 6)}"] if new else []
    lines += [f"only in the run: {some(left, 6)}"] if left else []
    lines += [f"if intended: init_from: {{run: {source.run}{allowed}}}"]
    raise RunError("\n  ".join(lines))


def _with_reasons(new: Mapping[str, str]) -> list[str]:
    return [f"{name} ({why})" if why else name for name, why in new.items()]


def _other_heads(model: nn.Module, run: Path) -> tuple[str, ...]:
    """Return the name prefixes of heads whose type in `run` differs from the model's."""
    blueprint = getattr(model, "blueprint", None)
    if blueprint is None or not (run / RESOLVED).is_file():
        return ()
    try:
        written = read_yaml(run / RESOLVED)["model"]
        stored = {
            "head": written.get("head"),
            **{f"heads.{name}": head for name, head in (written.get("heads") or {}).items()},
        }
        types = {name: head if isinstance(head, str) else head["type"] for name, head in stored.items() if head}
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"train.init_from: {run / RESOLVED}: cannot be read: {error}") from None
    heads = {"head": blueprint.head, **{f"heads.{name}": head for name, head in blueprint.heads}}
    own = {name: head.part.part_name for name, head in heads.items() if head is not None}
    return tuple(f"{name}." for name, type_ in types.items() if own.get(name) != type_)


def _check_tokens(run: RunFolder, tokenizer: Tokenizer) -> None:
    """Raise RunError if tokens of the run have other ids, so rows of the token embedding, in this tokenizer."""
    names = tokenizer_files(run)
    saved = load_tokenizer(run) if names else None
    pairs = () if saved is None else ((saved, tokenizer), (saved.source, tokenizer.source))
    if any(not one.backend.get_vocab().items() <= other.backend.get_vocab().items() for one, other in pairs):
        own = [f"{{type: file, path: {run / name}}}" for name in names]
        take = own[0] if len(own) == 1 else f"{{source: {own[0]}, target: {own[1]}}}"
        raise RunError(
            f"train.init_from: {run} has another tokenizer, so its embeddings belong to other tokens; "
            f"use its tokenizer: data.tokenizer: {take}"
        )


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze the parameters whose names match a pattern or start with it. Return the number of frozen values.

    Any name of a tied parameter may match. Raise UsageError if a pattern selects nothing.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        found = named(pattern, parameters)
        if not found:
            message, meant = unknown(pattern, parameters)
            raise UsageError(f"train.freeze: {message}" + f". Did you mean '{meant}'?" * bool(meant))
        for parameter in found:
            parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)


def _one_token(tokenizer: Tokenizer, word: str) -> int | None:
    """Return the id of a word that is a token itself or is encoded as a single token (`▁word`), or None."""
    if word in tokenizer:
        return tokenizer.id(word)
    ids = tokenizer.encode(word)
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.special_ids.get("unknown") else None


def fill_vectors(model: Model, tokenizer: Tokenizer, reporter: Reporter) -> None:
    """Load pretrained vectors into each token embedding that specifies a file."""
    done: set[str] = set()
    for plan in model.blueprint.stacks():
        path = None if plan.embedding is None else plan.embedding.vectors_file()
        if path is None or (model.blueprint.shared_embedding and path in done):
            continue
        done.add(path)
        table: torch.Tensor = model.stack(plan.side).embedding.tokens.weight  # type: ignore[union-attr]
        own = tokenizer.source if plan.side == "encoder" else tokenizer
        filled = load_vectors(path, partial(_one_token, own), table)
        reporter.say(f"{plan.side}: vectors for {filled:,} of {len(table):,} tokens, from {path}")
