"""Contracts of parts within a user's recipe, whose model is made small."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.contracts.calls import model, run, tokens
from tfkit.contracts.cases import Case, as_data
from tfkit.contracts.expect import Broken
from tfkit.contracts.options import MAX_LENGTH, VOCABULARY
from tfkit.core.bounds import Tree
from tfkit.core.component import Component, Config, Shape, with_nested
from tfkit.core.errors import UsageError
from tfkit.core.registry import CATALOGUES
from tfkit.core.rooms import page
from tfkit.core.store import Store
from tfkit.recipe.load import Recipe

# capabilities that a model has only if all its parts have them
SHARED = frozenset({"cache", "padding", "packing", "masks", "compile", "export"})


class Home:
    """A recipe in which parts are verified, with its model made small."""

    def __init__(self, recipe: Recipe) -> None:
        found = page("smaller")
        small = recipe if found is None else found.smaller(recipe)
        if small is None:
            raise UsageError(f"{recipe.name}: its model cannot be made small for the contracts; use smaller sizes")
        self.name = recipe.name
        self.model: Tree = small.root.plain()["model"]
        for key, least in (("vocab_size", VOCABULARY), ("max_length", MAX_LENGTH)):
            if isinstance(size := self.model.get(key), int):
                self.model[key] = max(size, least)

    def case(self, part: type[Component]) -> Within | None:
        """Return the case of a part, or None if the recipe does not use it."""
        if not any(_places(self.model, part)):
            return None
        sides = [plan.causal for plan in Within(part.part_slot, part.part_name, home=self).blueprint.stacks()]
        topology = "encoder_decoder" if len(sides) == 2 else "decoder" if sides[0] else "encoder"
        return Within(part.part_slot, part.part_name, topology, "recipe", home=self)


def _places(node: Any, part: type[Component], inherited: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield the mappings and lists in which the part is written, each with its key."""
    for key, entry in list(node.items() if isinstance(node, dict) else enumerate(node)):
        name = inherited if isinstance(key, int) else key.split(".")[-1]
        if name == "type":
            of_slot = part.part_slot == "model" and not inherited
        else:
            of_slot = name == part.part_slot or name not in CATALOGUES
        if of_slot and part.part_name in (entry, isinstance(entry, dict) and entry.get("type")):
            yield node, key
        if isinstance(entry, (dict, list)):
            yield from _places(entry, part, name)


@dataclass(frozen=True, kw_only=True)
class Within(Case):
    """A part where a user's recipe uses it. Options are changed in all places, keys of the layer in all layers."""

    home: Home

    @property
    def options(self) -> dict[str, object]:
        holder, key = next(_places(self.recipe()["model"], self.part))
        return {name: value for name, value in _options(holder[key]).items() if name != "type"}

    @property
    def config(self) -> Config:
        made = self.blueprint
        stacks = [(*plan.parts(), plan.embedding, plan.final_norm) for plan in made.stacks()]
        every = filter(None, (*chain(*stacks), made.head, *dict(made.heads).values(), made.init, made.type))
        return next(one for config in every for one in with_nested(config) if one.part is self.part)

    @property
    def writer(self) -> None:
        """None: the recipe's own parts write."""

    @property
    def shape(self) -> Shape:
        """Shape of the first layer whose sublayer is the part, else that of the last stack."""
        for plan in self.blueprint.stacks():
            for index, kind in enumerate(plan.order):
                if any(one.config.part is self.part for one in plan.layers[kind].sublayers):
                    return plan.shape(index, plan.layers[kind])
        return self.blueprint.last.shape()

    def lacking(self, capability: str) -> list[str]:
        if capability not in SHARED or not super().declares(capability):
            return []
        return [name for plan in self.blueprint.stacks() for name in plan.without(capability)]

    def declares(self, capability: str) -> bool:
        return super().declares(capability) and not self.lacking(capability)

    def recipe(self, num_layers: int = 2) -> Tree:
        made = deepcopy(self.home.model)
        for holder, key in list(_places(made, self.part)) if self.variant else ():
            holder[key] = {**_options(holder[key]), **as_data(self.variant)}
        keys = as_data(self.beside)
        for stack in filter(None, (made, made.get("encoder"), made.get("decoder"))) if keys else ():
            stack["layer"] = {**stack.get("layer", {}), **keys}
            for kind in (stack.get("layers") or {}).values():
                kind.update({name: value for name, value in keys.items() if name in kind})
        return {"tfkit": 1, "model": made}

    def called_with(self, ids: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
        """Return the arguments of the first call of the part for these ids, its input and its context."""
        seen: list[tuple[Any, ...]] = []
        part: nn.Module = next(module for module in model(self, dtype).modules() if isinstance(module, self.part))
        hook = part.register_forward_pre_hook(lambda module, arguments: seen.append(arguments))
        try:
            with torch.no_grad():
                run(self, ids, on=model(self, dtype))
        finally:
            hook.remove()
        if not seen or not isinstance(seen[0][0], Tensor):
            raise Broken(f"{self.home.name} does not call the part with a tensor")
        return seen[0]

    def store(self, ids: Tensor, dtype: torch.dtype) -> Store:
        found: Store = self.called_with(ids, dtype)[1].store.apart()
        return found

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        x: Tensor = self.called_with(tokens(1, 3))[0]
        return tuple(x.shape[2:])


def _options(entry: Any) -> Tree:
    return entry if isinstance(entry, dict) else {"type": entry}
