"""What must be found of a broken part."""

from __future__ import annotations

import re
from collections.abc import Callable

from tfkit.contracts.check import CHECKS, with_dependents, with_needs
from tfkit.contracts.verify import verify
from tfkit.core.component import Component

Register = Callable[[str, type[Component]], type[Component]]


def expect_found(part: type[Component], check: str, message: str) -> None:
    """The check meant for it fails with that message, what it needs holds, and what needs it is not run."""
    dependents = with_dependents(check)
    report = verify(part, [*with_needs(check), *dependents], options=False)
    found = {outcome.check.name: outcome for outcome in report.outcomes}
    for need in with_needs(check)[:-1]:
        if need in found:
            assert found[need].status == "ok", str(report)
    outcome = found[check]
    assert outcome.status == "FAILED"
    said = "\n".join(failure.message for failure in outcome.failures)
    assert re.search(message, said), said
    for name in dependents:
        if name in found:
            assert (found[name].status, found[name].because) == ("not run", check)
            assert list(found[name].lines()) == [f"because '{check}' failed"]
    asked = [name for name in dependents if CHECKS[name].required_of(part)]
    assert bool(asked) >= bool(set(found) & set(dependents))
