"""Contracts of parts in a user's recipe: parts that need each other, small sizes, faults, and what is not used."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tfkit.contracts.check import Report
from tfkit.contracts.verify import registered_by, verify
from tfkit.contracts.within import Home
from tfkit.core.errors import UsageError
from tfkit.core.registry import REGISTRY
from tfkit.models.build import weights_of
from tfkit.recipe.imports import import_parts
from tfkit.recipe.load import load_recipe

from ..cli.typed import typed

pytestmark = pytest.mark.full

SOURCE = '''\
import torch
from torch import nn

import tfkit
from tfkit.components.attention import MultiHead
from tfkit.components.init import Normal
from tfkit.components.norm import LayerNorm
from tfkit.components.residual import Residual


@tfkit.register("residual", "{name}")
class DoubledStream(Residual):
    """The attention reads the stream beside its norm."""

    def forward(self, x, branches):
        for branch in branches:
            x = x + branch(torch.cat((branch.norm(x), x), dim=-1))[..., : x.shape[-1]]
        return x


@tfkit.register("attention", "{name}")
class DoubledAttention(MultiHead):
    """Attention that reads a stream of twice the width, and writes the mixed one."""

    writes = frozenset({{"{name}"}})

    def __init__(self, config, shape):
        super().__init__(config, shape)
        self.mix = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def project(self, x, context):
        first, second = x.chunk(2, dim=-1)
        context.store["{name}"] = mixed = first + self.mix(second)
        return super().project(mixed, context)

    def forward(self, x, context):
        out = super().forward(x, context)
        return torch.cat((out, torch.zeros_like(out)), dim=-1)


@tfkit.register("attention", "{name}_later")
class Later(DoubledAttention):
    """Reads what an earlier layer wrote."""

    writes, reads = frozenset(), frozenset({{"{name}"}})

    def project(self, x, context):
        query, key, value = super().project(x, context)
        return query + context.store["{name}"].mean(dim=-1, keepdim=True), key, value


@tfkit.register("attention", "{name}_peeking")
class Peeking(DoubledAttention):
    def project(self, x, context):
        return super().project(x.roll(-1, dims=1), context)


@tfkit.register("norm", "{name}")
class Unused(LayerNorm):
    pass


@tfkit.register("init", "{name}")
class Start(Normal):
    pass
'''
NUMBER = count()  # a file of the same text would be the same module
CHECKS = ("built", "config", "shapes", "determinism", "gradients", "future", "packing", "cache", "rotation", "weights")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = tmp_path / "doubled.py"
    file.write_text(SOURCE.format(name=f"within_{next(NUMBER)}"))
    monkeypatch.chdir(tmp_path)
    return import_parts("doubled.py")


def recipe(name: str, *kinds: str, **model: Any) -> dict[str, Any]:
    layer = {"residual": name, "norm": "rms_norm"}
    layers = {f"kind_{index}": {"attention": {"type": kind, "num_heads": 8}} for index, kind in enumerate(kinds)}
    sizes = {"d_model": 256, "vocab_size": 5000, "max_length": 16, "num_layers": 6, "embedding": "tokens"}
    made = {"type": "decoder", **sizes, "position": "rotary", "layer": layer, "final_norm": "rms_norm"}
    return {"tfkit": 1, "model": {**made, "layers": layers, "pattern": list(layers), "head": "language_model", **model}}


def in_recipe(part: Any, *kinds: str, checks: tuple[str, ...] = CHECKS, **model: Any) -> Report:
    home = Home(load_recipe(recipe(kinds[0], *kinds, **model)))
    return verify(part, checks, options=0, home=home)


def test_parts_that_need_each_other(parts: ModuleType) -> None:
    name = parts.DoubledStream.part_name
    assert not verify(parts.DoubledAttention, ("built", "shapes"), options=0).holds
    for part in (parts.DoubledStream, parts.DoubledAttention, parts.Later):
        report = in_recipe(part, name, f"{name}_later")
        assert report.holds and report.find("cache"), str(report)
    report = in_recipe(parts.Peeking, name, f"{name}_peeking", checks=("built", "shapes", "determinism", "future"))
    assert [one.check.name for one in report.outcomes if one.failures] == ["future"]


def test_the_model_is_small_and_options_and_keys_are_changed_where_the_part_is(parts: ModuleType) -> None:
    name = parts.DoubledStream.part_name
    home = Home(load_recipe(recipe(name, name)))
    case = home.case(parts.DoubledAttention)
    assert case is not None and case.topology == "decoder" and weights_of(case.blueprint) < 40_000
    assert (home.model["max_length"], home.model["vocab_size"]) == (32, 61)
    changed = case.with_(bias=False).with_layer(mask={"type": "window", "size": 3}).recipe()["model"]
    assert changed["layers"]["kind_0"]["attention"] == {"type": name, "num_heads": 8, "bias": False}
    assert changed["layer"]["mask"]["size"] == 3 and changed["layer"]["residual"] == name
    assert home.model["layer"] == {"residual": name, "norm": "rms_norm"} and home.case(parts.Unused) is None


def test_what_another_part_cannot_do_is_said_and_not_asked(parts: ModuleType) -> None:
    name = parts.DoubledStream.part_name
    plain = {"attention": {"type": name, "num_heads": 8}, "residual": name, "norm": "rms_norm", "mixer": None}
    mixed = {"mixer": "lstm", "attention": None, "residual": "pre_norm"}
    both = in_recipe(parts.DoubledAttention, name, layers={"one": plain, "two": mixed}, pattern=["one", "two"])
    outcome = both.find("packing")
    assert both.holds and outcome is not None, str(both)
    assert outcome.excepted == "mixer 'lstm' beside it does not declare 'packing'"


def test_the_command(parts: ModuleType, tmp_path: Path) -> None:
    name = parts.DoubledStream.part_name
    assert {part.part_name for part in registered_by([parts])} >= {name}

    def verified(recipe_name: str, *more: str) -> Any:
        return typed("parts", *more, "--verify", "doubled.py", "--in", recipe_name, columns=200)

    text = "tfkit: 1\nmodel: {type: decoder, d_model: 64, vocab_size: 90, num_layers: 1, embedding: tokens, init: %s,\n"
    text += "  position: none, layer: {norm: rms_norm, attention: {type: multi_head, num_heads: 4}}, head: hidden}\n"
    (tmp_path / "own.yaml").write_text(text % f"{{type: {name}, std: 0.1}}")
    done = verified("own.yaml", "init")
    assert done.exit_code == 0, done.output
    assert f"init {name}" in done.stdout and "not verified" not in done.stdout
    (tmp_path / "other.yaml").write_text(text % "xavier")
    for given, message in (
        (("other.yaml",), f"other.yaml does not use attention '{name}', attention '{name}_later'"),
        (("missing.yaml",), "missing.yaml"),
        (("doubled.py",), "doubled.py"),
    ):
        refused = verified(*given)
        assert refused.exit_code == 2 and message in refused.stderr and len(refused.stderr.strip().splitlines()) == 1
    alone = typed("parts", "norm", "--in", "own.yaml")
    assert alone.exit_code == 2 and "add --verify FILE_OR_MODULE" in alone.stderr


def test_a_model_that_cannot_be_made_small_is_refused(parts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfkit.plain.smaller.smaller", lambda recipe: None)
    with pytest.raises(UsageError, match="its model cannot be made small for"):
        Home(load_recipe(recipe(parts.DoubledStream.part_name, parts.DoubledStream.part_name)))
    assert REGISTRY.has("norm", parts.Unused.part_name)
