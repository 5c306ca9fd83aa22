"""The callbacks of a run: calling their hooks, applying their averaged weights, and saving their state."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tfkit.core.errors import UsageError
from tfkit.recipe.settings.sections import Mean
from tfkit.training.callback import Callback, Tensors, Training
from tfkit.training.sharded import local

HOOKS = ("ready", "start", "step", "validation", "checkpoint", "end", "weights", "state", "load")
EVENTS = HOOKS[1:6]


class Foreign(Callback):
    """Callback made from a function, called after each step, or from any object with some of the hooks."""

    def __init__(self, given: object) -> None:
        hooks = {name: getattr(given, name, None) for name in HOOKS}
        found = {name: hook for name, hook in hooks.items() if callable(hook)}
        if not found and callable(given):
            found = {"step": given}
        if not found or isinstance(given, (type, str)):
            what = f"{given.__name__} is a class; pass an instance" if isinstance(given, type) else f"got {given!r}"
            raise UsageError(
                f"callbacks: {what}. A callback is a function (training, record), called after each step, or an object "
                f"with some of the methods {', '.join(EVENTS)}; registered callbacks are listed in train.callbacks"
            )
        for name, hook in found.items():
            setattr(self, name, hook)
        self.name = "function" if found.get("step") is given else type(given).__name__
        self.averages = "weights" in found


class Callbacks:
    """The callbacks of a run: first those of the recipe, then those passed in Python.

    Processes other than the leading one (`leads`) keep only the callback whose averaged weights all processes evaluate.
    """

    def __init__(self, training: Training, given: Sequence[object] = (), leads: bool = True) -> None:
        self.training = training
        parts: list[Callback] = [config.build() for config in training.recipe.train.callbacks]
        found = parts + [one if isinstance(one, Callback) else Foreign(one) for one in given]
        self.all = [one for one in found if leads or averages(one)]
        averaging = [name for name, one in self._named() if averages(one)]
        self.averages = bool(averaging)
        if len(averaging) > 1:
            raise UsageError(f"callbacks: {' and '.join(averaging)} both average weights; leave one of them out")
        if averaging and isinstance(training.recipe.train.keep, Mean):
            raise UsageError(f"callbacks: {averaging[0]} and train.keep both average weights; use keep: best or last")
        for one in self.all:
            one.ready()

    def tell(self, event: str, *given: object) -> None:
        """Call a hook of each callback."""
        for one in self.all:
            getattr(one, event)(self.training, *given)

    def end(self) -> None:
        """End all callbacks, even if one of them fails."""
        with contextlib.ExitStack() as stack:
            for one in reversed(self.all):
                stack.callback(one.end, self.training)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the weights of the averaging callback, if any, within the block."""
        weights = next((one.weights() for one in self.all if averages(one)), None)
        if not weights:
            yield
            return
        parameters = dict(self.training.trained.named_parameters())
        own = [local(parameters[name].data) for name in weights]
        kept = [value.clone() for value in own]
        torch._foreach_copy_(own, [local(value) for value in weights.values()])
        try:
            yield
        finally:
            torch._foreach_copy_(own, kept)

    def state(self) -> dict[str, Tensor]:
        """Return the state of all callbacks as `callback/key` -> tensor."""
        return {f"{name}/{key}": value for name, one in self._named() for key, value in one.state().items()}

    def load(self, state: Tensors) -> None:
        """Restore each callback that has tensors in `state`."""
        for name, one in self._named():
            own = {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
            if own:
                one.load(own)

    def _named(self) -> Iterator[tuple[str, Callback]]:
        """Yield the callbacks with unique names."""
        seen: Counter[str] = Counter()
        for one in self.all:
            name = one.name if isinstance(one, Foreign) else one.part_name or type(one).__name__
            seen[name] += 1
            yield name if seen[name] == 1 else f"{name}-{seen[name]}", one


def averages(callback: Callback) -> bool:
    """True if the callback has weights to evaluate and publish."""
    return callback.averages if isinstance(callback, Foreign) else "averages" in callback.capabilities
