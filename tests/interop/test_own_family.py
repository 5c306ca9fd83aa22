"""Maps of users: the one that tfkit/README.md shows, and rules that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import tfkit
from tfkit.core.errors import DataError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.convert import to_checkpoint
from tfkit.interop.huggingface.families.bart import Bart
from tfkit.interop.huggingface.families.gpt_neox import GPTNeoX
from tfkit.interop.huggingface.family import Family, families
from tfkit.interop.huggingface.tensors import Rule, check_rules, read_only, spellings
from tfkit.models.build import build_model
from tfkit.recipe.model import blueprint_of

from ..documents import blocks
from ..sampling import looped
from .made import command
from .parity import weights
from .rows import ROWS

MAP = next(block.text for block in blocks("file") if block.value == "tiny_reader.py")
WIDTH, INNER, HEADS, DEPTH, VOCABULARY = 16, 24, 4, 2, 40
CONFIG = {"model_type": "tiny_reader", "architectures": ["TinyReaderForCausalLM"], "vocab": VOCABULARY}
CONFIG |= {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "inner": INNER}


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    norms = {f"{name}.{kind}": (WIDTH,) for name in ("norm1", "norm2") for kind in ("weight", "bias")}
    block = {
        "qkv.weight": (3 * WIDTH, WIDTH), "out.weight": (WIDTH, WIDTH), "out.bias": (WIDTH,),
        "up.weight": (WIDTH, INNER), "up.bias": (INNER,), "down.weight": (INNER, WIDTH), "down.bias": (WIDTH,), **norms,
    }  # fmt: skip
    shapes = {f"blocks.{layer}.{name}": shape for layer in range(DEPTH) for name, shape in block.items()}
    ends = {"tokens.weight": (VOCABULARY, WIDTH), "places.weight": (128, WIDTH)}
    ends |= {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in (shapes | ends).items()}


def logits(held: dict[str, Tensor], ids: Tensor) -> Tensor:
    """What such a model gives, written out."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (WIDTH,), held[f"{name}.weight"], held[f"{name}.bias"])

    x = held["tokens.weight"][ids] + held["places.weight"][: ids.shape[1]]
    for block in (f"blocks.{layer}." for layer in range(DEPTH)):
        split = (norm(x, block + "norm1") @ held[block + "qkv.weight"].T).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in split)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + seen @ held[block + "out.weight"].T + held[block + "out.bias"]
        inner = norm(x, block + "norm2") @ held[block + "up.weight"] + held[block + "up.bias"]
        x = x + F.gelu(inner, approximate="tanh") @ held[block + "down.weight"] + held[block + "down.bias"]
    return norm(x, "norm") @ held["tokens.weight"].T


@torch.no_grad()
def test_a_family_from_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    held = tensors()
    save_file(held, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tiny_reader.py").write_text(MAP)
    refused = command("import", folder, "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert "model_type: no family for 'tiny_reader'" in refused.stderr
    assert 'add one with @tfkit.register("family", ...) and --import' in refused.stderr
    done = command("import", folder, "--out", tmp_path / "run", "--import", tmp_path / "tiny_reader.py")
    assert done.exit_code == 0, done.output
    assert "tiny_reader (TinyReaderForCausalLM), 6,544 parameters in float32" in done.output
    assert "imports" not in (tmp_path / "run" / "resolved.yaml").read_text()
    run = tfkit.load_run(tmp_path / "run")
    ids = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run.model(ids).logits, logits(held, ids), rtol=1e-5, atol=1e-5)
    family = REGISTRY.load("family")["tiny_reader"]
    back = to_checkpoint(family, load_file(tmp_path / "run" / "model.safetensors"), run.blueprint)  # type: ignore[arg-type]
    assert back.keys() == held.keys() and all(torch.equal(back[name], held[name]) for name in held)
    hint = json.dumps({**CONFIG, "model_type": "tiny_raeder"})
    (folder / "config.json").write_text(hint)
    near = command("import", folder, "--out", tmp_path / "other", "--import", tmp_path / "tiny_reader.py")
    assert near.exit_code == 2 and "the nearest is 'tiny_reader'" in near.stderr


LAYER = "decoder.layers.{layer}"
FUSED = Rule("h.{layer}.fc.weight", (f"{LAYER}.feedforward.gate.weight", f"{LAYER}.feedforward.up.weight"))
UP = Rule("h.{layer}.up.weight", f"{LAYER}.feedforward.up.weight")
ENCODER = Rule("encoder.layers.{layer}.self_attn.output.{kind}", "encoder.layers.{layer}.attention.output.{kind}")


def entered(*rules: Rule, base: type[Family] = Family, **heads: tuple[Rule, ...]) -> type[Family]:
    """A map of these rules, registered for a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REGISTRY._parts, "family", dict(REGISTRY.load("family")))
        made = type("Mine", (base,), {"model_types": ("mine",), "rules": rules, "head_rules": heads})
        tfkit.register("family", "mine")(made)
        return made


@looped(
    "rules",
    [
        (*Bart.rules, ENCODER),  # the maps of both sides, then what an encoder calls its own
        (*GPTNeoX.rules, Rule("embed_tokens.weight", "decoder.embedding.tokens.weight")),
        (UP, FUSED),
        (UP, Rule("h.{layer}.w1.{kind}", f"{LAYER}.feedforward.up.{{kind}}"), UP),
        (Rule("x", "{side}.final_norm.weight"), Rule("y", "decoder.final_norm.{kind}")),
        (Rule("x", "decoder.layers.{layer}.norm.weight"), Rule("y", "decoder.layers.0.norm.weight")),
    ],
)
def test_a_rule_that_another_hides_is_refused(rules: tuple[Rule, ...]) -> None:
    with pytest.raises(UsageError, match=r"family 'mine': two rules cover .* comes first, so .* is never"):
        entered(*rules)
    assert "mine" not in families()


@pytest.mark.parametrize(
    ("rules", "heads"),
    [
        ((Rule("ln.{kind}", f"{LAYER}.norm.{{kind}}"), Rule("ln.weight", f"{LAYER}.attention_norm.weight")), {}),
        ((Rule("pool.{kind}", "heads.pooler.dense.{kind}"),), {"classifier": (Rule("pool.bias", "head.dense.bias"),)}),
    ],
    ids=["norms", "heads"],
)
def test_two_tensors_of_one_name_are_refused(rules: tuple[Rule, ...], heads: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"family 'mine': two rules write .*; select one in rules_of"):
        entered(*rules, **heads)


@looped(
    ("rules", "heads"),
    [
        ((ENCODER, *Bart.rules), {}),
        ((FUSED, UP), {}),
        ((Rule("bias", "head.output.bias"), Rule("out.{kind}", "head.output.{kind}")), {}),
        ((UP, *read_only(FUSED, Rule("h.{layer}.w1.weight", f"{LAYER}.feedforward.up.weight"))), {}),
        ((Rule("lm_head.{kind}", "head.output.{kind}"),), {"span": (Rule("qa.{kind}", "head.output.{kind}"),)}),
        ((Rule("h.1.w", "decoder.layers.1.norm.weight"), Rule("h.12.w", "decoder.layers.12.norm.weight")), {}),
    ],
)
def test_what_has_an_order_is_taken(rules: tuple[Rule, ...], heads: dict[str, Any]) -> None:
    assert entered(*rules, **heads).rules == rules


def test_a_spelling_is_read_and_never_written() -> None:
    family = entered(*spellings(Rule("new", "decoder.final_norm.weight"), Rule("old", "decoder.final_norm.weight")))
    assert [rule.read_only for rule in family.rules] == [False, True]
    blueprint = blueprint_of(families()["gpt2"].recipe({"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11}))
    tensor = torch.ones(8)
    assert list(to_checkpoint(family, {"decoder.final_norm.weight": tensor}, blueprint)) == ["new"]


def test_rules_that_a_map_chooses_are_checked_when_they_write() -> None:
    class Chosen(Family):
        part_name = "chosen"

        @classmethod
        def rules_of(cls, blueprint: Any) -> tuple[Rule, ...]:
            return (Rule("x", "decoder.norm.weight"), Rule("x", "decoder.final_norm.weight"))

    blueprint = blueprint_of(families()["gpt2"].recipe({"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11}))
    ours = {"decoder.norm.weight": torch.ones(1), "decoder.final_norm.weight": torch.zeros(1)}
    with pytest.raises(DataError, match=r"two rules of 'chosen' write x; one is x <-> decoder\.final"):
        to_checkpoint(Chosen, ours, blueprint)


def test_import_names_the_file_of_such_a_map(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import tfkit\n"
        "from tfkit.interop.huggingface.families.llama import Llama\n"
        "from tfkit.interop.huggingface.tensors import Rule\n\n\n"
        '@tfkit.register("family", "zamba")\n'
        "class Zamba(Llama):\n"
        '    """Zamba."""\n\n'
        '    model_types = ("zamba",)\n'
        '    rules = (*Llama.rules, Rule("final_layernorm.{kind}", "decoder.final_norm.{kind}"))\n'
    )
    done = command("import", tmp_path, "--out", tmp_path / "run", "--import", tmp_path / "mine.py")
    assert done.exit_code == 2
    assert f"{tmp_path / 'mine.py'}:6: family 'zamba': two rules cover decoder.final_norm" in done.stderr
    assert "final_layernorm.{kind} <-> decoder.final_norm.{kind} is never written" in done.stderr


def test_no_shipped_map_contradicts_itself() -> None:
    for name, family in families().items():
        check_rules(name, family.rules, family.head_rules)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({row.family for row in ROWS})[::6])
def test_a_model_is_written_with_each_name_once(name: str) -> None:
    written_once(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({row.family for row in ROWS}))
def test_a_model_of_any_family_is_written_with_each_name_once(name: str) -> None:
    written_once(name)


DECODERS = ("CausalLM", "LMHeadModel", "BertGenerationDecoder")


def written_once(name: str) -> None:
    """Every class of theirs, small, with the defaults of the family."""
    import transformers

    row = next(row for row in ROWS if row.family == name)
    config = getattr(transformers, row.config)(**{"vocab_size": 61, **row.settings}).to_dict()
    for head_class in families()[name].heads:
        said = {**config, "architectures": [head_class], "is_decoder": head_class.endswith(DECODERS)}
        blueprint = blueprint_of(families()[name].recipe(said))
        ours = weights(build_model(blueprint, device="meta"))
        assert to_checkpoint(families()[name], ours, blueprint)
