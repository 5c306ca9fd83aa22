"""What every test may rely on: few threads, no network, no terminal, signals, and a registry that is as it was."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import tfkit.core.rooms
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY

if TYPE_CHECKING:
    from tfkit.recipe.load import Recipe

# worker processes share the cores, results depend on the number of threads, and forked children hang in OpenMP's pool
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)  # of the terminal, or of a CI that wants colours: they change what is printed
# in the background, or under nohup, these are ignored, and processes that tests start would ignore them too
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
gc.set_threshold(200_000, 20, 100)  # looking for cycles among all that was imported takes a tenth of the time

TIERS = ("full", "slow", "whole")
ALL = 3  # the three topologies, for example
EVERY = 11  # a prime: the quick cases of crossed parameters differ in each of them


def pytest_configure(config: pytest.Config) -> None:
    """Leave a slow test out of the full tier, even in a file that is marked full as a whole."""
    if config.option.markexpr == "full":
        config.option.markexpr = "full and not slow"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep one in eleven cases of a test quick, all of up to three or of a test marked `whole`; the others are full."""
    cases = [(item, item.nodeid.partition("[")[0]) for item in items if not any(map(item.get_closest_marker, TIERS))]
    counts, seen = Counter(test for _, test in cases), Counter[str]()
    for item, test in cases:
        if counts[test] > ALL and seen[test] % EVERY:
            item.add_marker(pytest.mark.full)
        seen[test] += 1


@pytest.fixture(autouse=True, scope="session")
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep token shards and learned tokenizers of tests out of the user's cache folder."""
    os.environ["TFKIT_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(autouse=True)
def registry_as_it_was() -> Iterator[None]:
    """Parts that a test registers are gone after it; catalogues that it was the first to load stay."""
    before = {slot: dict(parts) for slot, parts in REGISTRY._parts.items()}
    yield
    for slot, parts in REGISTRY._parts.items():
        shipped = {name: part for name, part in parts.items() if part.__module__.startswith("tfkit.")}
        parts.clear()
        parts.update(shipped | before[slot])


class Unprintable(UsageError):
    status = 1


@pytest.fixture
def printer(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the printer of plain code, one that knows the width of a model and does not like 12."""

    def printed(recipe: Recipe, inputs: Sequence[str] = (), usable: bool = True) -> str:
        width = recipe.blueprint().last.d_model
        if width == 12:
            raise Unprintable("12 is too odd")
        text = f'"""{recipe.name}"""\nWIDTH = {width}\nINPUTS = {list(inputs)}\n'
        return text + "# to use it\n" * usable

    monkeypatch.setattr(
        tfkit.core.rooms, "pages", lambda name: [SimpleNamespace(printed=printed, Unprintable=Unprintable)]
    )
