"""What people are shown: a heading for each part, a line for each check, failures in words, exceptions, the counts."""

from __future__ import annotations

import io
import re
import time
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import pad

from tfkit.components.activation import Activation
from tfkit.components.attention import MultiHead
from tfkit.components.embedding import Tokens
from tfkit.components.mask import Mask
from tfkit.components.mixer import Mixer
from tfkit.components.norm import LayerNorm
from tfkit.components.position import Sinusoidal
from tfkit.components.residual import PreNorm
from tfkit.contracts import verify as module
from tfkit.contracts.cases import Case, cases, loads, variants
from tfkit.contracts.check import CHECKS, Failure, Outcome, Report, render, summary, with_needs
from tfkit.contracts.expect import Broken, describe
from tfkit.contracts.verify import registered_by, run_verification, verify
from tfkit.core import component
from tfkit.core.component import Component
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.models.build import build_model
from tfkit.recipe.imports import import_parts
from tfkit.recipe.load import load_recipe
from tfkit.training.objective import CausalLm, Loss

from ..cli.typed import typed
from ..generation.searching import best
from .broken import Register, but
from .test_broken import FirstTokens, Wide

SOURCE = '''\
import tfkit
from tfkit.training.metric import LossMetric, TextMetric
from tfkit.training.schedule import Schedule


@tfkit.register("schedule", "{prefix}_steady")
class Steady(Schedule):
    """A sound one."""

    def lr(self, step, total, d_model):
        return 0.1


@tfkit.register("schedule", "{prefix}_angry")
class Angry(Schedule):
    """Raises when it is asked."""

    def lr(self, step, total, d_model):
        return [][step]


@tfkit.register("metric", "{prefix}_late")
class Late(TextMetric):
    def compare(self, outputs, references):
        return float(outputs[0] == references[0])
'''
NUMBER = count()  # a file of the same text would be the same module


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = tmp_path / "my_parts.py"
    file.write_text(SOURCE.format(prefix=f"mine_{next(NUMBER)}"))
    monkeypatch.chdir(tmp_path)
    return import_parts(file)


def shown(found: Any, width: int = 120) -> tuple[bool, str]:
    stream = io.StringIO()
    reports = run_verification(found, Console(file=stream, width=width))
    return all(report.holds for report in reports), stream.getvalue()


def test_a_module_without_parts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    with pytest.raises(UsageError, match=r"empty.py: registers no part; decorate a class with @tfkit.register"):
        registered_by([import_parts(file)])


def test_the_report_says_what_failed_and_where(parts: ModuleType) -> None:
    found = registered_by([parts])
    names = {part.__name__: part.part_name for part in found}
    assert list(names) == ["Angry", "Steady", "Late"]
    holds, text = shown(found)
    assert not holds
    lines = [line.split() for line in text.splitlines()]
    assert ["schedule", names["Angry"], "my_parts.py:14"] in lines
    assert "raises IndexError: list index out of range (my_parts.py:19, in lr)" in text
    assert ["not", "run", "pure", "because", "'rates'", "failed"] in lines
    assert ["FAILED", "order", "the", "order", "of", "the", "examples", "does", "not", "matter"] in lines
    assert "the same pairs score 0 and 1" in text
    assert text.splitlines()[-1] == "3 parts, 14 checks: 11 ok, 2 FAILED, 1 not run"
    for width in (40, 80, 200):  # nothing is cut
        _, text = shown(found, width)
        assert "…" not in text and max(map(len, text.splitlines())) <= width
        assert "(my_parts.py:19,inlr)" in "".join(text.split())
    holds, text = shown([part for part in found if part.__name__ == "Steady"])
    assert holds and text.splitlines()[-1] == "1 part, 4 checks: 4 ok"


def test_an_attention_may_read_ids_and_add_its_own_token(register: Register) -> None:
    own = lambda old, x, context: old(x, context) + x * context.inputs.input_ids[..., None].to(x.dtype)  # noqa: E731
    part = register("attention", but(MultiHead, forward=own))
    report = verify(part, ["rotation", "bias", "temperature", "weights"], options=False)
    assert report.holds, str(report)


class Undropped(MultiHead):
    """An attention without the option dropout of its base."""

    class Config(MultiHead.Config):
        dropout: ClassVar[float] = 0.0  # type: ignore[misc]


def test_a_subclass_takes_an_inherited_option_away(register: Register) -> None:
    part = register("attention", Undropped)
    report = verify(part, ["config", "shapes", "refusals"], options=False)
    assert report.holds, str(report)
    assert "num_heads" in typed("parts", "attention", part.part_name).output
    assert not re.search(r"^ *dropout ", typed("parts", "attention", part.part_name).output, re.MULTILINE)
    taken = Case("attention", part.part_name, "decoder", variant=(("dropout", "0.1"),))
    with pytest.raises(RecipeError, match=r"attention\.dropout: unknown option; available: bias, "):
        load_recipe(taken.recipe())


def test_equal_failures_are_told_once_and_many_are_counted() -> None:
    check = CHECKS["built"]
    same = Outcome(check, (Failure("in a decoder", "wrong"), Failure("in an encoder", "wrong")))
    assert list(same.lines())[1:] == ["in a decoder; in an encoder: wrong"]
    many = Outcome(check, tuple(Failure("", f"wrong {number}") for number in range(5)))
    assert list(many.lines())[1:] == ["wrong 0", "wrong 1", "wrong 2", "and 2 more failures"]


def test_a_long_message_is_shortened() -> None:
    part = REGISTRY.get("schedule", "constant")
    message = describe(ValueError("long " * 500), part)
    assert len(message) < 500 and message.endswith("...")
    assert describe(Broken("as it is"), part) == "as it is"


def test_an_interrupt_is_no_failure(register: Register) -> None:
    def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(register("schedule", but(REGISTRY.get("schedule", "constant"), lr=interrupted)))


def test_an_error_while_a_part_is_asked_what_it_can_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(slot: str, name: str) -> Any:
        raise ZeroDivisionError("no hooks")

    monkeypatch.setattr(module, "cases", broken)
    report = verify(REGISTRY.get("schedule", "constant"))
    assert {outcome.status for outcome in report.outcomes} == {"FAILED", "not run"}
    assert "raises ZeroDivisionError: no hooks" in str(report)


def test_verifying_leaves_the_callers_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    verify(REGISTRY.get("norm", "layer_norm"), ["built", "shapes", "dropout"], options=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_an_attention_takes_well_under_a_minute() -> None:
    start = time.process_time()
    assert verify(REGISTRY.get("attention", "multi_head")).holds
    assert time.process_time() - start < 45


# --- options


class Plain(Activation):
    """A sound part of a user's."""

    class Config(component.Config):
        alpha: float = 1.0
        odd: bool = False

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.config.alpha * x)


def test_a_sound_part_passes_with_every_option_in_turn(register: Register) -> None:
    part = register("activation", Plain)
    tried = [*cases("activation", part.part_name), *variants("activation", part.part_name)]
    assert [case.options for case in tried] == [{}, {"alpha": 1.5}, {"odd": True}]
    report = verify(part, [name for name, check in CHECKS.items() if not check.slow])
    assert report.holds, str(report)


def test_the_option_at_fault_is_named(register: Register) -> None:
    faulty = but(Plain, forward=lambda old, x: x[:, :1] if old.__self__.config.odd else x.tanh())  # is broadcast
    outcome = verify(register("activation", faulty), ["built", "shapes"]).find("shapes")
    assert outcome is not None
    assert [failure.where for failure in outcome.failures] == ["in a decoder, with odd: true"]


def test_a_required_option_needs_an_example(register: Register) -> None:
    report = verify(register("feedforward", Wide))
    assert len(report.outcomes) > 5
    assert {outcome.because for outcome in report.outcomes} == {"", "built"}
    assert list(variants("feedforward", report.part.part_name)) == []
    report = verify(register("feedforward", but(Wide, example={"num_wonders": 3})), ["built", "shapes"])
    assert report.holds and len(report.outcomes) == 2


# --- capabilities


def with_previous(x: Tensor) -> Tensor:
    return x + 0.5 * pad(x, (0, 0, 1, -1))


def test_a_model_whose_parts_lack_a_cache_reads_whole_texts(register: Register) -> None:
    keyless = {"capabilities": frozenset({"causal", "padding"})}
    shift = {**keyless, "forward": lambda old, x, *more: old(with_previous(x), *more)}
    norm, activation = but(LayerNorm, **shift), but(Activation, **keyless, forward=lambda old, x: with_previous(x))
    tokens = but(Tokens, **keyless, forward=lambda old, *given: with_previous(old(*given)))
    parts = {"layer.residual": but(PreNorm, **shift), "layer.norm": norm, "final_norm": norm, "embedding": tokens}
    parts |= {"position": but(Sinusoidal, **keyless), "layer.feedforward.activation": activation}
    for key, part in parts.items():
        name = register(key.split(".")[-1].removeprefix("final_"), part).part_name
        recipe = load_recipe(Case("attention", "multi_head").recipe(), overrides={f"model.{key}": name})
        model = build_model(recipe.blueprint(), seed=1).eval()
        texts = [best(model, [[1, 2, 3]], 4, use_cache=cached) for cached in (True, False)]
        assert texts[0] == texts[1] and not model.caches, key
        with pytest.raises(UsageError, match=f"'{name}' has no cache"):
            model.new_state()


def able(*capabilities: str) -> type[Component]:
    """An attention that declares this and no more."""
    part: type[Component] = but(MultiHead, capabilities=frozenset(capabilities))
    return part


def test_a_part_is_refused_where_it_lacks_a_capability(register: Register) -> None:
    for part, taken in ((able("causal", "padding", "cache"), "decoder"), (able("bidirectional"), "encoder")):
        name = register("attention", part).part_name
        assert [case.topology for case in cases("attention", name)] == [taken]
        topologies = ("decoder", "encoder", "encoder_decoder")
        assert [topology for topology in topologies if loads(Case("attention", name, topology))] == [taken]
        CHECKS["refusals"](Case("attention", name, taken))
    for position in ("rotary", "alibi"):
        assert not loads(Case("attention", name, "encoder").with_layer(position=position))


def test_an_accepted_recipe_that_should_be_refused_is_told(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    part = register("attention", able("bidirectional"))
    monkeypatch.setattr("tfkit.contracts.saving.loads", lambda case: True)
    outcome = verify(part, ["built", "refusals"], options=False).find("refusals")
    assert outcome is not None and "does not declare causal, but a recipe that uses it" in outcome.failures[0].message


def test_a_contract_that_is_not_promised_is_not_asked_for(register: Register) -> None:
    report = verify(register("attention", able("bidirectional")), ["built", "shapes", "padding", "cache"], options=0)
    assert [outcome.check.name for outcome in report.outcomes] == ["built", "shapes"] and report.holds
    assert {"cache", "padding", "rotation", "weights"} <= set(report.undeclared)
    assert Report(REGISTRY.get("norm", "layer_norm"), ()).undeclared == []


def test_a_part_that_declares_nothing_is_held_to_what_is_assumed(register: Register) -> None:
    shift = but(Mixer, forward=lambda old, x, context: x + pad(x[:, :-1], (0, 0, 1, 0)))
    report = verify(register("mixer", shift), ["built", "shapes", "determinism", "future", "packing"], options=False)
    found = {outcome.check.name: outcome.status for outcome in report.outcomes}
    assert found["packing"] == "FAILED", "the first token of a text sees the last of another"
    assert found["future"] == "ok"


# --- exceptions

PAST = "the first tokens are opened to what follows them alone"


def test_an_opening_need_not_be_a_prefix(register: Register) -> None:
    pairs = but(
        Mask,
        opens=True,
        capabilities=frozenset({"causal", "bidirectional"}),
        visible=lambda old, query, key, inputs: (query + 1) // 2 == (key + 1) // 2,
    )
    report = verify(register("mask", pairs), ["future", "openings", "visibility"])
    assert {outcome.status for outcome in report.outcomes} == {"ok"}, str(report)


def test_an_opening_of_the_past_only_can_be_excepted(register: Register) -> None:
    checks = ["built", "shapes", "determinism", "future", "openings", "visibility", "padding"]
    refused = verify(register("mask", FirstTokens), checks)
    assert [outcome.check.name for outcome in refused.outcomes if not outcome.holds] == ["openings"]
    taken = verify(register("mask", but(FirstTokens, exceptions={"openings": PAST})), checks)
    assert taken.holds, str(taken)
    assert {outcome.check.name: outcome.status for outcome in taken.outcomes}["visibility"] == "ok"
    stream = io.StringIO()
    render(taken, Console(file=stream, width=120))
    summary([taken], Console(file=stream, width=120))
    text = " ".join(stream.getvalue().split())
    promise = "excepted openings tokens that a mask reveals are visible to earlier tokens"
    assert f"{promise}: excepted, because {PAST}" in text
    assert "1 part, 7 checks: 6 ok, 1 excepted" in text


@pytest.mark.usefixtures("printer")
def test_a_part_whose_code_cannot_be_printed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, part = ["built", "shapes", "determinism", "plain"], REGISTRY.get("norm", "rms_norm")
    promise = CHECKS["plain"].promise
    plain = verify(part, checks).find("plain")
    assert plain is not None and (plain.status, list(plain.lines())) == ("ok", [promise])
    monkeypatch.setattr("tfkit.contracts.cases.D_MODEL", 12)  # which the printer of the tests refuses
    plain = verify(part, checks).find("plain")
    assert plain is not None and plain.holds and plain.status == "excepted"
    assert list(plain.lines()) == [f"{promise}: excepted, because 12 is too odd"]
    monkeypatch.setattr("tfkit.core.rooms.pages", lambda name: [ModuleType("none")])
    plain = verify(part, checks).find("plain")
    assert plain is not None and "raises AttributeError" in str(plain.failures[0].message)
    monkeypatch.setattr("tfkit.core.rooms.pages", lambda name: [])
    assert verify(part, checks).find("plain") is None


def test_a_loss_over_the_batch_can_be_excepted_and_what_needs_it_still_runs(register: Register) -> None:
    def loss(old: Any, model: Any, batch: Any, training: bool) -> Loss:
        found = old(model, batch, training)
        return Loss(found.total * len(batch["input_ids"]), found.count)

    exceptions = {"loss_rows": "each text is told from the others of its batch", "batches": "never needed"}
    part = register("objective", but(CausalLm, loss=loss, exceptions=exceptions))
    report = verify(part, with_needs("packed_loss"), options=False)
    found = {outcome.check.name: outcome.status for outcome in report.outcomes}
    assert found["loss_rows"] == "excepted" and found["batches"] == "ok"  # an exception that is not needed shows
    assert found["packed_loss"] == "ok" and report.holds  # not left out for want of the other
