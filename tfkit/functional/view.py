"""Views of modules: other objects with the same tensors, so that a replacement in a view does not change the module."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def view(module: nn.Module, children: Mapping[str, nn.Module | None]) -> nn.Module:
    """A module with the attributes of `module`, its tensors and hooks among them, and with other children."""
    made: nn.Module = object.__new__(type(module))
    # the children are attributes too, which are found without the detour that nn.Module takes to _modules
    vars(made).update({**vars(module), "_modules": dict(children), **children})
    return made


def with_tensors(module: nn.Module, tensors: Mapping[nn.Parameter, Tensor]) -> nn.Module:
    """A view of a module, and of all in it, in which other tensors stand in the place of some parameters.

    Unlike `functional_call` it never writes to the module, which other threads may be computing with.
    """
    return _with_tensors(module, tensors, {})


def _with_tensors(
    module: nn.Module, tensors: Mapping[nn.Parameter, Tensor], made: dict[nn.Module, nn.Module]
) -> nn.Module:
    if module not in made:
        children = {
            name: None if child is None else _with_tensors(child, tensors, made)
            for name, child in module._modules.items()
        }
        found = made[module] = view(module, children)
        own = {
            name: weight if weight is None else tensors.get(weight, weight)
            for name, weight in module._parameters.items()
        }
        vars(found)["_parameters"] = own
    return made[module]
