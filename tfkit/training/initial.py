"""Initial weights of training, from another run or pretrained vectors, and freezing of parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from tfkit.storage.files import read_yaml
from tfkit.training import record
from tfkit.training.fit import Fit, patterns_for
from tfkit.training.folder import RESOLVED, TOKENIZERS, WEIGHTS, RunFolder
from tfkit.training.progress import Reporter
from tfkit.training.vocabularies import load_tokenizer, tokenizer_files
from tfkit.training.weights import Weights, tensor_names, warn_not_finite

LAYER = re.compile(r"(?P<side>encoder|decoder)\.layers\.(?P<layer>\d+)\.")


def start_from(model: nn.Module, source: InitFrom, reporter: Reporter, tokenizer: Tokenizer | None = None) -> None:
    """Copy the weights of a run that match by name and shape, and report new ones.

    Heads of another type are new, even if shapes match. Raise RunError if nothing matches, for unlisted new or unused
    tensors, and if the token table matches but its vocabulary differs from that of `tokenizer`.
    """
    run = RunFolder(Path(source.run))
    if not run.path.is_dir():
        raise RunError(f"train.init_from: {run} is not a run folder")
    record.check(run, (RESOLVED, *TOKENIZERS))
    with record.checking(run, WEIGHTS):
        own, there = Weights.of(model), Weights.read(run / WEIGHTS)
        there = _relayered(there, model, source) if source.layers else there
        fit = Fit.of(own, there, _other_heads(model, run.path))
        if not fit.kept:
            raise RunError(f"train.init_from: no tensor of {run / WEIGHTS} fits this model by name and shape")
        _check_named(source, fit, [*own.by_name()], [*there.by_name()])
        if tokenizer is not None and any(name.endswith("embedding.tokens.weight") for name in fit.kept):
            _check_tokens(run, tokenizer)
        warn_not_finite(run / WEIGHTS, fit.kept)
        with torch.no_grad():
            for name, tensor in fit.kept.items():
                own.tensors[name].copy_(tensor)
    new = _told(fit.new)
    reporter.say(f"from {run}: {len(fit.kept)} tensors kept, {len(new)} new, {len(fit.unused)} not used")
    for word, names in (("kept", [*fit.kept]), ("new", new), ("not used", fit.unused)):
        if names:
            reporter.log(f"{word}: {', '.join(names)}")
    if new:
        reporter.say(f"new: {some(new, 6)}")


def _relayered(there: Weights, model: nn.Module, source: InitFrom) -> Weights:
    """Rename the layers of a run to those initialized from them; drop other layers of these stacks."""
    pairs = list(layer_pairs(source.layers, cast(Model, model).blueprint.last.side))
    sides = {pair.side for pair in pairs}
    tensors: dict[str, Tensor] = {}
    for name, tensor in there.by_name().items():
        found = LAYER.match(name)
        if found is None or found["side"] not in sides:
            tensors[name] = tensor
            continue
        for pair in pairs:
            if (pair.side, pair.other) == (found["side"], int(found["layer"])):
                tensors[f"{pair.side}.layers.{pair.own}.{name[found.end() :]}"] = tensor
    return Weights(tensors, {})


def layer_faults(recipe: Recipe, blueprint: Blueprint) -> list[Fault]:
    """Report layers in `train.init_from.layers` that the run lacks."""
    source = recipe.train.initial
    if source is None or not source.layers:
        return []
    found = [LAYER.match(name) for name in tensor_names(Path(source.run) / WEIGHTS)]
    there = {(one["side"], int(one["layer"])) for one in found if one is not None}
    return [
        recipe.fault(
            f"train.init_from.layers{pair.at}",
            f"{source.run} has no layer {pair.other}: its {pair.side} has {_count(there, pair.side)}",
        )
        for pair in layer_pairs(source.layers, blueprint.last.side)
        if (pair.side, pair.other) not in there
    ]


def _count(layers: set[tuple[str, int]], side: str) -> str:
    numbers = [number for place, number in layers if place == side]
    return f"layers 0 to {max(numbers)}" if numbers else "no layers"


def _check_named(source: InitFrom, fit: Fit, own: Sequence[str], there: Sequence[str]) -> None:
    """Raise RunError for unlisted new or unused tensors, with the line that would list them."""
    for option, patterns, names in (("new", source.new, own), ("unused", source.unused, there)):
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
        "unused": [*source.unused, *patterns_for(left, [name for name in there if name not in left])],
    }
    allowed = f", layers: {inline(source.layers)}" if source.layers else ""
    allowed += "".join(f", {option}: [{', '.join(patterns)}]" for option, patterns in lists.items() if patterns)
    lines = [f"train.init_from: {source.run} does not fit this model; the other {len(fit.kept)} tensors do"]
    lines += [f"new in this model: {some(_told(new), 6)}"] if new else []
    lines += [f"only in the run: {some(left, 6)}"] if left else []
    lines += [f"if intended: init_from: {{run: {source.run}{allowed}}}"]
    raise RunError("\n  ".join(lines))


def _told(new: Mapping[str, str]) -> list[str]:
    return [f"{name} ({why})" if why else name for name, why in new.items()]


def _other_heads(model: nn.Module, run: Path) -> tuple[str, ...]:
    """Return the name prefixes of heads whose type differs from that in `run`."""
    blueprint = getattr(model, "blueprint", None)
    if blueprint is None or not (run / RESOLVED).is_file():
        return ()
    try:
        written = read_yaml(run / RESOLVED)["model"]
        there = {
            "head": written.get("head"),
            **{f"heads.{name}": head for name, head in (written.get("heads") or {}).items()},
        }
        types = {name: head if isinstance(head, str) else head["type"] for name, head in there.items() if head}
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"train.init_from: {run / RESOLVED}: cannot be read: {error}") from None
    heads = {"head": blueprint.head, **{f"heads.{name}": head for name, head in blueprint.heads}}
    own = {name: head.part.part_name for name, head in heads.items() if head is not None}
    return tuple(f"{name}." for name, type_ in types.items() if own.get(name) != type_)


def _check_tokens(run: RunFolder, tokenizer: Tokenizer) -> None:
    """Raise RunError if rows of the token table belong to other tokens."""
    names = tokenizer_files(run)
    there = load_tokenizer(run) if names else None
    pairs = () if there is None else ((there, tokenizer), (there.source, tokenizer.source))
    if any(one.backend.get_vocab() != other.backend.get_vocab() for one, other in pairs):
        own = [f"{{type: file, path: {run / name}}}" for name in names]
        take = own[0] if len(own) == 1 else f"{{source: {own[0]}, target: {own[1]}}}"
        raise RunError(
            f"train.init_from: {run} has another tokenizer, so its vectors belong to other tokens; use its tokenizer: "
            f"data.tokenizer: {take}"
        )


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze the parameters selected by `patterns` or name prefixes; return the number of frozen values.

    A tied parameter is frozen by any of its names. Raise UsageError if a pattern selects nothing.
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
    """Return the id of a word that is a single token, literally or as encoded (`▁word`)."""
    if word in tokenizer:
        return tokenizer.id(word)
    ids = tokenizer.encode(word)
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.special_ids.get("unknown") else None


def fill_vectors(model: Model, tokenizer: Tokenizer, reporter: Reporter) -> None:
    """Load pretrained vectors into the token tables whose embedding specifies a file."""
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
