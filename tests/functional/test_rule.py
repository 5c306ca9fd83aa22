"""The rule for products: a way for each shape and processor, the same at every call, and forced by a variable."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tfkit
from tfkit.core import machine
from tfkit.core.errors import UsageError
from tfkit.functional import linear
from tfkit.functional.linear import DIRECT, FORCED, RULES, WAYS, available, fastest, rule_name


@pytest.fixture(autouse=True)
def unforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORCED, raising=False)


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the rule of another processor, with every way available."""
    monkeypatch.setattr(linear, "_of_processor", lambda: name)
    monkeypatch.setattr(linear, "suits", lambda *shape: True)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_computes_the_linear_layer(name: str) -> None:
    if not available(name):
        pytest.skip("this build of torch lacks its kernels")
    torch.manual_seed(0)
    weight = torch.randn(40, 24)
    for added in (torch.randn(40), None):
        way = WAYS[name](weight, added)
        for rows in (1, 3, 64):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(way(x, rows), F.linear(x, weight, added))
            assert way(x[:, None], rows).shape == (rows, 1, 40)
        assert (way.bytes == 0) == (name in DIRECT)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_ways_that_can_be_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without copies, for weights on both sides of its limits, and where torch lacks the kernels."""
    use(name, monkeypatch)
    weights = ((8, 8), (600, 600), (768, 50257), (2048, 9))
    shapes = [(rows, *weight) for rows in (1, 2, 64, 65, 4096) for weight in weights]
    for shape in shapes:
        assert fastest(*shape, copies=True) in WAYS
        assert fastest(*shape) in DIRECT and fastest(*shape, transposed=True) in DIRECT
    monkeypatch.setattr(linear, "suits", lambda name, *sides: name == "mkl")
    assert {fastest(*shape, copies=copies) for shape in shapes for copies in (True, False)} == {"mkl"}


def test_the_rule_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        (vendor, instructions): _rule_of(vendor, instructions, monkeypatch)
        for vendor in ("AuthenticAMD", "GenuineIntel", "")
        for instructions in ("AVX512", "AVX2", "DEFAULT")
    }
    amd = {("AuthenticAMD", "AVX512"): "amd-avx512", ("AuthenticAMD", "AVX2"): "amd-avx2"}
    assert {key: name for key, name in found.items() if name != "mkl"} == amd
    monkeypatch.setattr(torch._C, "has_mkl", False)
    assert _rule_of("AuthenticAMD", "AVX512", monkeypatch) == "torch"


def _rule_of(vendor: str, instructions: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(linear, "vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    return rule_name()


def test_the_vendor_is_read_from_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_cpuinfo", lambda key: "")
    for text, vendor in [
        ("AMD64 Family 25 Model 33 Stepping 2, AuthenticAMD", "AuthenticAMD"),
        ("Intel64 Family 6 Model 85 Stepping 7, GenuineIntel", "GenuineIntel"),
        ("", ""),
        ("i386", ""),
    ]:
        monkeypatch.setattr(machine.platform, "processor", lambda text=text: text)
        assert machine.vendor.__wrapped__() == vendor
    monkeypatch.setattr(machine, "_cpuinfo", lambda key: {"vendor_id": "AuthenticAMD"}[key])
    assert machine.vendor.__wrapped__() == "AuthenticAMD"


def test_few_rows_are_multiplied_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    use("amd-avx2", monkeypatch)
    assert fastest(1, 768, 3072, copies=True) == "transposed" and fastest(1, 3072, 768, copies=True) == "reordered"
    assert fastest(64, 768, 3072, copies=True) == "reordered" and fastest(65, 768, 3072, copies=True) == "reordered"
    assert fastest(8, 64, 64, copies=True) == "packed" and fastest(65, 64, 64, copies=True) == "mkl"
    assert fastest(4096, 768, 3072) == "onednn" and fastest(4096, 256, 256) == "mkl"
    assert fastest(4096, 3072, 768, transposed=True) == "mkl"
    use("amd-avx512", monkeypatch)
    assert [fastest(rows, 256, 768, copies=True) for rows in (1, 4, 65)] == ["packed", "reordered", "reordered"]
    assert [fastest(rows, 256, 256, copies=True) for rows in (1, 4, 65)] == ["packed", "packed", "onednn"]


def test_thin_weights_are_not_packed() -> None:
    assert not linear.suits("packed", linear.THIN - 1, 4096)
    assert linear.suits("packed", linear.THIN, 4096) == available("packed")


@pytest.mark.parametrize("name", WAYS)
def test_a_way_can_be_forced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available(name):
        pytest.skip("this build of torch lacks its kernels")
    monkeypatch.setenv(FORCED, name)
    assert fastest(4, 128, 128, copies=True) == name and rule_name() == f"{FORCED}={name}"
    assert fastest(4, 128, 128) == ("onednn" if name in ("onednn", "reordered") else "mkl")


def test_an_unknown_or_missing_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "ONEDNN", None)
    monkeypatch.setenv(FORCED, "reordered")
    with pytest.raises(UsageError, match=r"TFKIT_PRODUCTS=reordered: this torch .* lacks its kernels"):
        fastest(4, 128, 128)
    monkeypatch.setenv(FORCED, "blas")
    with pytest.raises(UsageError, match=r"TFKIT_PRODUCTS must be mkl, .* or reordered, got 'blas'"):
        rule_name()


@pytest.mark.full
def test_fewer_instructions_have_a_rule_of_their_own() -> None:
    """The processor made smaller, in a child process."""
    code = "import torch; from tfkit.functional.linear import rule_name; "
    code += "print(torch.backends.cpu.get_cpu_capability(), torch._C.has_mkl, rule_name())"
    for capability in ("default", "avx2", "avx512"):
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        instructions, has_mkl, found = done.stdout.split()
        amd = machine.vendor.__wrapped__() == "AuthenticAMD" and instructions in ("AVX2", "AVX512")
        assert found == ("torch" if has_mkl == "False" else f"amd-{instructions.lower()}" if amd else "mkl")


def test_equal_trainings_have_equal_bits_by_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, feedforward = {"type": "multi_head", "num_heads": 4}, {"type": "mlp", "d_ff": 64}
    layer = {"norm": "layer_norm", "attention": attention, "feedforward": feedforward}
    stack = {"type": "decoder", "vocab_size": 60, "d_model": 32, "num_layers": 1, "embedding": "tokens"}
    recipe = {"tfkit": 1, "model": {**stack, "layer": layer, "head": "language_model"}}
    monkeypatch.setattr("tfkit.functional.linear.WORTH", 0)
    ids = torch.arange(2 * 9).view(2, 9) % 60
    for name in RULES:
        monkeypatch.setattr(linear, "_of_processor", lambda name=name: name)
        runs = []
        for _ in range(2):
            model = tfkit.build(recipe, seed=0)
            model(ids).logits.square().mean().backward()
            runs.append([one.grad for one in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True)), name
