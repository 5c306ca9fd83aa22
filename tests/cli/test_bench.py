"""`tfkit bench attention`: what is measured, and that memory grows with the length and not with its square."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from tfkit.cli.main import main
from tfkit.reports.bench import DEFAULT, Measured, Setting, growth, layers, measure

SMALL = ["--d-model", "16", "--heads", "2", "--window", "16"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "attention", *SMALL, *arguments])


def test_a_table_of_time_and_one_of_memory() -> None:
    result = bench("--lengths", "64,128", "--attentions", "full,window")
    assert result.exit_code == 0, result.output
    assert "peak memory" in result.output and "doubling" in result.output
    assert [line.split()[0] for line in result.output.splitlines() if line[:6] in ("full  ", "window")] == [
        "full", "window", "full", "window",
    ]  # fmt: skip


def test_the_same_as_data() -> None:
    result = bench("--lengths", "64,128,256", "--attentions", "performer", "--json", "--causal", "--backward")
    data = json.loads(result.stdout)
    found = data["attentions"]["performer"]
    assert (data["d_model"], data["causal"], data["backward"], data["window"]) == (16, True, True, 16)
    assert list(found["seconds"]) == list(found["peak_bytes"]) == ["64", "128", "256"]
    assert all(value > 0 for key in ("seconds", "peak_bytes") for value in found[key].values())
    assert 1.5 < found["doubling"]["peak_bytes"] < 2.3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attentions", "fulll"), "there is no attention 'fulll' to measure; did you mean 'full'?"),
        (("--attentions", "longformer", "--causal"), "no attention 'longformer' to measure in a causal layer"),
        (("--lengths", "64,many"), "expected a whole number from 1, got 'many'"),
        (("--lengths", ","), "expected at least one value"),
        (("--lengths", "64", "--heads", "3", "--attentions", "full"), "3 heads do not divide d_model 16"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2 and said in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("name", DEFAULT)
def test_memory_grows_with_the_length(name: str) -> None:
    setting = Setting(d_model=32, num_heads=2, window=32)
    found = list(measure([name], [2048, 4096, 8192], setting))
    doubling = growth(found, lambda one: one.peak_bytes)
    assert doubling is not None and 1.5 <= doubling <= 2.3, found
    square = found[-1].length ** 2
    assert found[-1].peak_bytes < square, "a length x length tensor, even of bytes, would be as large"


@pytest.mark.parametrize("causal", [False, True])
def test_every_layer_can_be_measured(causal: bool) -> None:
    setting = Setting(d_model=8, num_heads=2, window=4, causal=causal, backward=True)
    found = list(measure(list(layers(setting)), [16], setting))
    assert [one.attention for one in found] == list(layers(setting)) and all(one.peak_bytes > 0 for one in found)


def test_growth_is_the_cost_of_doubling_between_any_lengths() -> None:
    found = [Measured("full", length, length**2.0, 0) for length in (100, 200, 800)]
    assert growth(found, lambda one: one.seconds) == pytest.approx(4)
    assert growth(found[:1], lambda one: one.seconds) is None
