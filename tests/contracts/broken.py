"""Broken parts, and what must be found of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from tfkit.contracts.check import CHECKS, with_needs
from tfkit.contracts.verify import verify
from tfkit.core.component import Component

Register = Callable[[str, type[Component]], type[Component]]


def but(base: type[Any], **changes: Any) -> Any:
    """A subclass with other attributes; a function is called with the base's method and the arguments."""

    def method(name: str, function: Any) -> Any:
        def called(self: Any, *arguments: Any, **more: Any) -> Any:
            out = function(MethodType(getattr(base, name), self), *arguments, **more)
            return None if name == "__init__" else out

        return called

    changed = {name: method(name, one) if isinstance(one, FunctionType) else one for name, one in changes.items()}
    return type(f"Altered{base.__name__}", (base,), {"__module__": __name__, **changed})


def failing(error: BaseException) -> Any:
    def failing(*_: Any) -> None:
        raise error

    return failing


def expect_found(part: type[Component], check: str, message: str) -> None:
    """The check meant for it fails with that message, what it needs holds, and what needs it is not run."""
    dependents = [name for name in CHECKS if name != check and check in with_needs(name)]
    report = verify(part, [*with_needs(check), *dependents], options=False)
    found = {outcome.check.name: outcome for outcome in report.outcomes}
    assert {found[need].status for need in with_needs(check)[:-1] if need in found} <= {"ok"}, str(report)
    assert found[check].status == "FAILED"
    said = "\n".join(failure.message for failure in found[check].failures)
    assert re.search(message, said), said
    for name in set(dependents) & set(found):
        assert list(found[name].lines()) == [f"because '{check}' failed"]
