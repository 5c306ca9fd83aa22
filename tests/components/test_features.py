"""Vectors in the place of tokens, and the block of latent diffusion that is made with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tfkit.core.errors import RecipeError, UsageError
from tfkit.models.base import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count

from ..sampling import looped

LAYER = {
    "residual": "pre_norm",
    "norm": "layer_norm",
    "attention": {"type": "multi_head", "num_heads": 2},
    "feedforward": {"type": "mlp", "d_ff": 12},
}


def recipe(**more: Any) -> dict[str, Any]:
    model = {"type": "encoder", "d_model": 8, "num_layers": 1, "embedding": "features", "layer": LAYER}
    return {"tfkit": 1, "model": {**model, **more}}


def made(**more: Any) -> Model:
    return build_model(load_recipe(recipe(**more)).blueprint()).eval()


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_it_projects_scales_adds_the_position_and_norms() -> None:
    options = {"type": "features", "d_input": 5, "scale": 2.0, "norm": "layer_norm"}
    model = made(embedding=options, position="learned", max_length=6)
    stack, x = model.stack("encoder"), vectors(2, 4, 5)
    embedding: Any = stack.embedding
    table: Any = stack.position[0]
    want = embedding.norm(embedding.projection(x) * 2.0 + table.table.weight[:4])
    captured = []
    embedding.register_forward_hook(lambda module, given, out: captured.append(out))
    model(inputs_embeds=x)
    assert torch.allclose(captured[0], want, atol=1e-6)


@torch.no_grad()
def test_as_they_come_it_is_no_embedding_at_all() -> None:
    plain, none = made(), made(embedding=None)
    assert not list(plain.stack("encoder").embedding.parameters())  # type: ignore[union-attr]
    none.load_state_dict(plain.state_dict())
    x = vectors(2, 4, 8)
    assert torch.equal(plain(inputs_embeds=x).hidden, none(inputs_embeds=x).hidden)


@looped(
    ("call", "said"),
    [
        ({"input_ids": torch.ones(2, 4, dtype=torch.long)}, "pass inputs_embeds, not input_ids"),
        ({"inputs_embeds": torch.ones(2, 4, 7)}, r"inputs_embeds must be \[batch time 8\], got shape \[2, 4, 7\]"),
        ({"inputs_embeds": torch.ones(4, 8)}, r"got shape \[4, 8\]"),
        (
            {"inputs_embeds": torch.ones(2, 4, 8), "token_type_ids": torch.ones(2, 4, dtype=torch.long)},
            "the embedding has no segments",
        ),
    ],
)
def test_what_it_cannot_read_is_said(call: dict[str, Tensor], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made()(**call)


def test_a_head_cannot_be_tied_to_a_table_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match="tied to a token table, but the encoder has none"):
        load_recipe(recipe(vocab_size=9, head={"type": "language_model", "tied": True}))


def test_its_cost_is_counted_from_its_own_width() -> None:
    blueprint = load_recipe(recipe(embedding={"type": "features", "d_input": 5})).blueprint()
    row = next(row for row in count(blueprint, length=4).rows if row.name == "embedding")
    assert row.cost.parameters == 5 * 8 + 8 and row.cost.flops_per_token == 2 * 5 * 8


# --- the conditioning block of latent diffusion

NAMES = {
    "attn1": "attention",
    "attn2": "cross_attention",
    "to_q": "query",
    "to_k": "key",
    "to_v": "value",
    "to_out.0": "output",
    "norm1": "attention_norm",
    "norm2": "cross_attention_norm",
    "norm3": "feedforward_norm",
    "ff.net.2": "feedforward.down",
}


def brought(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their weights under our names; value and gate are one matrix there."""
    ours = {}
    for name, tensor in theirs.items():
        if name.startswith("ff.net.0.proj."):
            kind = name.rpartition(".")[2]
            ours[f"feedforward.up.{kind}"], ours[f"feedforward.gate.{kind}"] = tensor.chunk(2)
            continue
        for old, new in NAMES.items():
            name = name.replace(old, new)
        ours[name] = tensor
    return {f"encoder.layers.0.{name}": tensor for name, tensor in ours.items()}


@pytest.mark.parametrize(
    "real", [None, torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])], ids=["", "padded"]
)
@torch.no_grad()
def test_the_block_of_latent_diffusion_is_theirs(real: Tensor | None) -> None:
    attention = pytest.importorskip(
        "diffusers.models.attention", reason="the proof needs diffusers: pip install diffusers"
    )
    width, text = 64, 24
    theirs = attention.BasicTransformerBlock(width, 8, width // 8, cross_attention_dim=text).eval()
    for weight in theirs.parameters():
        weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 0.2)
    sizes = {"model.d_model": width, "model.memory.d_model": text, "model.layer.feedforward.d_ff": 4 * width}
    ours = build_model(load_recipe("latent-diffusion-block", overrides=sizes).blueprint()).eval()
    ours.load_state_dict(brought(theirs.state_dict()))
    x, memory = vectors(2, 30, width), vectors(2, 7, text)
    hidden = None if real is None else ((1 - real[:, None].float()) * -1e9)
    want = theirs(x, encoder_hidden_states=memory, encoder_attention_mask=hidden)
    found = ours(inputs_embeds=x, encoder_hidden_states=memory, encoder_attention_mask=real).hidden
    assert float((found - want).abs().max() / want.abs().max()) <= 1e-5


def test_the_block_has_as_many_weights_as_theirs() -> None:
    attention = pytest.importorskip(
        "diffusers.models.attention", reason="the proof needs diffusers: pip install diffusers"
    )
    with torch.device("meta"):
        theirs = attention.BasicTransformerBlock(320, 8, 40, cross_attention_dim=768)
    ours = build_model(load_recipe("latent-diffusion-block").blueprint(), device="meta")
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


# --- the patches of pictures


def vit(**options: Any) -> Model:
    embedding = {"type": "patches", "size": 2, "channels": 3, **options}
    return made(embedding=embedding, position="learned", max_length=7).double()


@pytest.mark.parametrize("class_token", [False, True])
@torch.no_grad()
def test_patches_are_a_convolution_with_its_own_stride(class_token: bool) -> None:
    model, pictures = vit(class_token=class_token), vectors(2, 4, 6, 3).double()
    embedding: Any = model.stack("encoder").embedding
    table: Any = model.stack("encoder").position[0]
    kernel = embedding.projection.weight.view(8, 2, 2, 3).permute(0, 3, 1, 2)
    convolved = torch.nn.functional.conv2d(pictures.permute(0, 3, 1, 2), kernel, embedding.projection.bias, stride=2)
    want = convolved.flatten(2).transpose(1, 2)
    if class_token:
        want = torch.cat((embedding.class_token.weight.expand(2, 1, 8), want), dim=1)
    captured = []
    embedding.register_forward_hook(lambda module, given, out: captured.append(out))
    out = model(inputs_embeds=pictures)
    assert torch.allclose(captured[0], want + table.table.weight[: want.shape[1]])
    assert out.hidden.shape == (2, 6 + class_token, 8)


def test_patches_that_do_not_divide_a_picture_are_refused() -> None:
    with pytest.raises(
        UsageError, match="patches of 2 x 2 do not tile an image of 4 x 5; use a patch size that divides both"
    ):
        vit()(inputs_embeds=vectors(1, 4, 5, 3))
    with pytest.raises(UsageError, match=r"images must have the shape \[height width 3\], got \[4, 4, 1\]"):
        vit()(inputs_embeds=vectors(1, 4, 4, 1))
    with pytest.raises(RecipeError, match="a patch has"):
        load_recipe(recipe(embedding={"type": "patches", "size": 100_000}))
