"""Visibility between tokens: none of the future, and exactly what the masks reveal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tfkit.contracts.calls import changed, run, special, tokens, tokenwise
from tfkit.contracts.cases import MIXING, Case
from tfkit.contracts.check import contract
from tfkit.contracts.expect import SAME, Broken, Compared, expect, expect_all, far
from tfkit.core.capabilities import ASSUMED
from tfkit.core.context import Span, Visibility
from tfkit.core.inputs import Inputs

TIME = 6
# mask rules to test parts with, by topology
RULES: dict[str, tuple[object, ...]] = {
    "decoder": ({"type": "window", "size": 2}, "prefix"),
    "encoder": ({"type": "window", "size": 2}, [{"type": "window", "size": 2}, "global_tokens"], "reverse_causal"),
}


def claim(case: Case, capability: str) -> str:
    """Return the start of a message: why the part is expected to have a capability."""
    if case.part.capabilities == ASSUMED:
        return f"'{capability}' is expected of a part without declared capabilities"
    return f"declares '{capability}'"


@contract(
    "no output depends on a later token",
    "determinism",
    capability="causal",
    when=lambda case: case.causal,
    every_option=True,
)
@torch.no_grad()
def check_future(case: Case) -> None:
    """Change tokens one at a time: outputs of earlier tokens must not change, unless a mask reveals the token."""
    for place, before, after in changes(case, tokens(2, TIME)):
        expect_all(earlier(case, place, before, after), SAME)
        expect(far(after["hidden"][:, place:], before["hidden"][:, place:]) > 0, f"no output depends on token {place}")


Outputs = dict[str, Tensor]


def changes(
    case: Case, ids: Tensor, places: Sequence[int] = (), **more: Tensor
) -> Iterator[tuple[int, Outputs, Outputs]]:
    """Change tokens one at a time, by default all; yield the place, and the outputs before and after."""
    before = tokenwise(run(case, ids, **more))
    for place in places or range(ids.shape[1]):
        yield place, before, tokenwise(run(case, changed(ids, place), **more))


def earlier(case: Case, place: int, before: Outputs, after: Outputs) -> Compared:
    """Compare the outputs of earlier tokens that must not see a changed token."""
    blind = torch.arange(place)
    if case.opens:
        blind = blind[~reachable(case, before["hidden"].shape[1])[:place, place]]
    for name, value in before.items():
        what = f"{name} of a token before {place} depends on token {place}, which is in the future"
        yield what, after[name][:, blind], value[:, blind]


@contract(
    "tokens that a mask reveals are visible to earlier tokens", "future", slots=("mask",), when=lambda case: case.opens
)
@torch.no_grad()
def check_openings(case: Case) -> None:
    """Change tokens one at a time: the outputs of the earlier tokens that see them must change."""
    later = reachable(case).triu(1)
    expect(later.any(), f"it reveals no later token of {TIME}; with `opens`, a mask shows what limits hide")
    blind = (later & ~moved(case, 2, 0.0)).nonzero()
    if len(blind):
        raise Broken(f"token {int(blind[0, 0])} does not see token {int(blind[0, 1])}, which the mask reveals")


@contract(
    "a token sees exactly the tokens that the layers' mask rules reveal", "future", when=lambda case: not case.pair
)
@torch.no_grad()
def check_visibility(case: Case) -> None:
    """Change tokens one at a time, and compare which outputs change with the mask rules."""
    seen, reach = moved(case, 1, SAME), reachable(case)
    for place in range(TIME):
        hidden = seen[:, place] & ~reach[:, place]
        if hidden.any():
            raise Broken(f"token {int(hidden.nonzero()[0])} sees token {place}, which the mask hides")
    if case.slot == "mask":
        blind = (reach & ~moved(case, 1, 0.0)).nonzero()
        if len(blind):
            raise Broken(f"token {int(blind[0, 0])} does not see token {int(blind[0, 1])}, which the mask reveals")


@contract(
    "a window limits visibility, and a mask that reveals tokens extends it",
    "visibility",
    slots=MIXING,
    capability="masks",
    when=lambda case: not case.pair,
)
@torch.no_grad()
def check_masks(case: Case) -> None:
    """Repeat the comparison with additional mask rules in the layers."""
    for rule in RULES[case.topology]:
        masked = case.with_layer(mask=rule)
        words = " and ".join(one if isinstance(one, str) else one["type"] for one in _listed(rule))
        hidden = (moved(masked, 1, SAME) & ~reachable(masked)).nonzero()
        if len(hidden):
            query, key = (int(place) for place in hidden[0])
            raise Broken(f"{claim(case, 'masks')}, but token {query} sees token {key}, which a {words} mask hides")
        if masked.opens:
            more = reachable(masked) & ~reachable(case if rule == "prefix" else case.with_layer(mask=_listed(rule)[0]))
            opened = moved(masked, 1, 0.0) & more
            expect(opened.any(), f"{claim(case, 'masks')}, but a {words} mask reveals nothing")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def moved(case: Case, batch: int, least: float) -> Tensor:
    """Return [query key], True where changing a key token changes the query's hidden state by more than `least`."""
    columns = [
        (after["hidden"][0] - before["hidden"][0]).abs().amax(dim=-1) > least
        for _, before, after in changes(case, tokens(batch, TIME))
    ]
    return torch.stack(columns, dim=1)  # [query key]


def reachable(case: Case, time: int = TIME) -> Tensor:
    """Return [query key], True where mask rules let information flow from key to query through the layers."""
    stack, ids = case.blueprint.last, tokens(1, time)
    needed = special(case.needs, ids)
    reach = itself = torch.eye(time, dtype=torch.bool)
    for kind in stack.order:
        plan = stack.layers[kind]
        rules = [rule.build(stack.shape(plan=plan)) for rule in plan.mask]
        dense = Visibility(rules, Span(time, time, 0, ids.device), Inputs(ids, None, **needed)).dense()
        one = torch.ones_like(itself) if dense is None else dense[0].expand(time, time) | itself
        reach = (one.long() @ reach.long()) > 0
    return reach
