"""Views of modules, which share tensors with a module but can have other submodules and parameters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def view(module: nn.Module, children: Mapping[str, nn.Module | None]) -> nn.Module:
    """Return a view with the attributes, tensors and hooks of `module`, but other children."""
    made: nn.Module = object.__new__(type(module))
    # set as attributes too, because the lookup through _modules is slower
    vars(made).update({**vars(module), "_modules": dict(children), **children})
    return made


def with_tensors(module: nn.Module, tensors: Mapping[nn.Parameter, Tensor]) -> nn.Module:
    """Return a view of a module and its submodules with some parameters replaced.

    Unlike `functional_call`, this never writes to the module, which other threads may be using.
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
