"""The map that tfkit/README.md shows, for files that nobody else has: import, the numbers, and the way back."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import tfkit
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.convert import to_checkpoint

from ..documents import blocks
from .made import command

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
