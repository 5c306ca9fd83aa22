"""The original architecture against torch.nn.Transformer and the paper's formulas, and the names of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.components.position import Sinusoidal
from tfkit.core.component import Shape
from tfkit.models import Model, build_model
from tfkit.recipe.load import load_recipe

from ..sampling import looped

D_MODEL, HEADS, D_FF, LAYERS, VOCAB = 32, 4, 48, 3, 50
SOURCE, TARGET = 7, 5


def original(**changes: Any) -> dict[str, Any]:
    """The original architecture in small: biases on, no dropout. `changes` are laid over `model`."""
    model: dict[str, Any] = {
        "type": "encoder_decoder",
        "d_model": D_MODEL,
        "vocab_size": VOCAB,
        "num_layers": LAYERS,
        "embedding": {"type": "tokens", "scale": "sqrt_d_model", "shared": True},
        "position": "sinusoidal",
        "layer": {
            "residual": "post_norm",
            "norm": "layer_norm",
            "attention": {"type": "multi_head", "num_heads": HEADS},
            "feedforward": {"type": "mlp", "d_ff": D_FF, "activation": "relu"},
        },
        "head": {"type": "language_model", "tied": True},
    }
    return {"tfkit": 1, "model": model | changes}


def build(recipe: dict[str, Any], **overrides: Any) -> Model:
    return build_model(load_recipe(recipe, overrides=overrides).blueprint())


def torch_original(pre_norm: bool = False) -> nn.Transformer:
    """torch's Transformer of the same size; its two final norms only where the layout has them."""
    options: dict[str, Any] = {"dropout": 0.0, "activation": "relu", "batch_first": True, "norm_first": pre_norm}
    ends = [nn.LayerNorm(D_MODEL) if pre_norm else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D_MODEL, HEADS, D_FF, **options), LAYERS, norm=ends[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D_MODEL, HEADS, D_FF, **options), LAYERS, norm=ends[1])
    return nn.Transformer(D_MODEL, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


@torch.no_grad()
def copy_weights(ours: Model, theirs: nn.Transformer) -> None:
    """Random weights everywhere, biases and norms too, the same in both."""
    torch.manual_seed(1)
    for weight in ours.parameters():
        weight.copy_(torch.randn_like(weight) * 0.2 + (weight.dim() == 1) * 0.3)
    for side in ("encoder", "decoder"):
        stack, other = ours.stack(side), getattr(theirs, side)
        for layer, twin in zip(stack.layers, other.layers, strict=True):
            norms = ["attention_norm", *(["cross_attention_norm"] if side == "decoder" else []), "feedforward_norm"]
            for number, name in enumerate(norms, 1):
                copy(getattr(layer, name), getattr(twin, f"norm{number}"))
            copy_attention(layer.attention, twin.self_attn)
            if side == "decoder":
                copy_attention(layer.cross_attention, twin.multihead_attn)
            copy(layer.feedforward.up, twin.linear1)
            copy(layer.feedforward.down, twin.linear2)
        if other.norm is not None:
            copy(stack.final_norm, other.norm)


def copy(ours: Any, theirs: Any) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_attention(ours: Any, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    copy(ours.output, theirs.out_proj)


def padding(*lengths: int, width: int) -> Tensor:
    """1 = a real token."""
    return (torch.arange(width)[None] < torch.tensor(lengths)[:, None]).long()


@looped("pre_norm", [False, True])
@looped("padded", [False, True])
def test_layers_equal_torch_transformer(pre_norm, padded):
    recipe = original(embedding=None, position=None, head=None)
    ours = build(recipe, **{"model.layer.residual": "pre_norm" if pre_norm else "post_norm"})
    theirs = torch_original(pre_norm)
    copy_weights(ours, theirs)
    source, target = torch.randn(3, SOURCE, D_MODEL), torch.randn(3, TARGET, D_MODEL)
    source_real = padding(SOURCE, 4, 1, width=SOURCE) if padded else None
    target_real = padding(3, TARGET, 2, width=TARGET) if padded else None
    out = ours(
        inputs_embeds=source,
        decoder_inputs_embeds=target,
        attention_mask=source_real,
        decoder_attention_mask=target_real,
    )
    hidden = None if source_real is None else source_real == 0
    expected = theirs(
        source,
        target,
        tgt_mask=torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden,
        tgt_key_padding_mask=None if target_real is None else target_real == 0,
        memory_key_padding_mask=hidden,
    )
    torch.testing.assert_close(out.hidden, expected, rtol=1e-5, atol=1e-5)
    assert out.hidden.dtype == torch.float32
    assert expected.std() > 0.1


def test_whole_model_equals_torch_transformer_with_the_papers_ends():
    """Ids to logits: table * sqrt(d_model) + sinusoids, the layers, the table again."""
    ours, theirs = build(original()), torch_original()
    copy_weights(ours, theirs)
    table = ours.state_dict()["encoder.embedding.tokens.weight"]
    source, target = torch.randint(VOCAB, (2, SOURCE)), torch.randint(VOCAB, (2, TARGET))
    real = padding(SOURCE, 3, width=SOURCE)

    def embed(ids: Tensor) -> Tensor:
        return table[ids] * math.sqrt(D_MODEL) + torch.tensor(encodings(range(ids.shape[1]), D_MODEL)).float()

    expected = theirs(
        embed(source),
        embed(target),
        tgt_mask=torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1),
        src_key_padding_mask=real == 0,
        memory_key_padding_mask=real == 0,
    )
    out = ours(source, attention_mask=real, decoder_input_ids=target)
    torch.testing.assert_close(out.logits, expected @ table.T, rtol=1e-5, atol=1e-4)  # logits of up to 30


def encodings(positions: Any, width: int) -> list[list[float]]:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d)), in plain float64 steps."""
    rows = []
    for position in positions:
        row = [0.0] * width
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            row[2 * i], row[2 * i + 1] = math.sin(angle), math.cos(angle)
        rows.append(row)
    return rows


def test_sinusoids_are_the_papers_at_every_position():
    width = 64
    part = Sinusoidal(Sinusoidal.Config(), Shape(width))
    ours = part.embed(torch.arange(10_001)[None])[0]
    expected = torch.tensor(encodings(range(10_001), width), dtype=torch.float64)
    assert ours.shape == (10_001, width)
    assert (ours[:, 0::2].double() - expected[:, 0::2]).abs().max() < 1e-6  # even channels: sines
    assert (ours[:, 1::2].double() - expected[:, 1::2]).abs().max() < 1e-6  # odd channels: cosines
    torch.testing.assert_close(part.embed(torch.tensor([[9999]]))[0], ours[9999:10_000])


def test_one_table_serves_both_sides_and_the_output():
    model = build(original())
    table = model.stack("encoder").embedding.tokens.weight
    assert model.stack("decoder").embedding.tokens.weight is table
    assert model.head.output.weight is table
    assert sum(weight is table for weight in model.parameters()) == 1
    apart = build(original(), **{"model.embedding.shared": False, "model.head.tied": False})
    tables = {id(apart.stack(side).embedding.tokens.weight) for side in ("encoder", "decoder")}
    assert len(tables | {id(apart.head.output.weight)}) == 3


def test_a_head_is_tied_to_its_own_stack():
    model = build(original(), **{"model.embedding.shared": False})
    assert model.head.output.weight is model.stack("decoder").embedding.tokens.weight
    assert model.head.output.weight is not model.stack("encoder").embedding.tokens.weight


@looped(
    ("residual", "ends"),
    [
        ("post_norm", False),
        ("deep_norm", False),
        ("pre_norm", True),
        ("sandwich", True),
        ("branch_norm", True),
        ("parallel", True),
        ("parallel_two_norms", True),
    ],
)
def test_layouts_say_whether_a_stack_ends_in_a_norm(residual, ends):
    model = build(original(), **{"model.layer.residual": residual})
    for side in ("encoder", "decoder"):
        assert (not isinstance(model.stack(side).final_norm, nn.Identity)) == ends


def test_final_norm_overrides_the_layout():
    post = build(original(), **{"model.final_norm": True})
    assert all(type(post.stack(side).final_norm).__name__ == "LayerNorm" for side in ("encoder", "decoder"))
    pre = build(original(), **{"model.layer.residual": "pre_norm", "model.decoder": {"final_norm": None}})
    assert not isinstance(pre.stack("encoder").final_norm, nn.Identity)
    assert isinstance(pre.stack("decoder").final_norm, nn.Identity)
    rms = build(original(), **{"model.final_norm": "rms_norm"})
    assert type(rms.stack("encoder").final_norm).__name__ == "RMSNorm"


# ------------------------------------------------------------------------------------------- names of the weights

LAYER = {"residual": "pre_norm", "norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2}}

ENCODER_ONLY = {
    "type": "encoder",
    "d_model": 8,
    "vocab_size": 20,
    "max_length": 16,
    "num_layers": 1,
    "embedding": {"type": "tokens", "segments": 2, "norm": True, "d_embedding": 4},
    "position": "learned",
    "layer": LAYER | {"residual": "post_norm", "feedforward": {"type": "mlp", "d_ff": 16}},
    "head": {"type": "masked_lm", "tied": True},
    "heads": {
        "next_sentence": {"type": "classifier", "num_classes": 2, "activation": "tanh"},
        "replaced": "discriminator",
    },
}
ATTENTION, BOTH = "query key value output", "weight bias"


def under(place: str, *levels: str) -> set[str]:
    """All names below `place`: one word of each level, the levels being lists of words."""
    found = {place}
    for level in levels:
        found = {f"{one}.{word}" for one in found for word in level.split()}
    return found


DECODER_ONLY = {
    "type": "decoder",
    "d_model": 8,
    "vocab_size": 20,
    "num_layers": 2,
    "embedding": "tokens",
    "layer": {
        "residual": "sandwich",
        "norm": "rms_norm",
        "attention": {"type": "multi_head", "num_heads": 2, "bias": False, "qk_norm": True},
        "feedforward": {"type": "glu", "d_ff": 16, "bias": False},
        "position": {"type": "t5_bias", "num_buckets": 8, "max_distance": 16},
        "sublayers": ["feedforward", "attention", "feedforward"],
    },
    "head": "language_model",
}
ENCODER_DECODER = original(num_layers=1, layer=LAYER | {"residual": "parallel"}, position=["sinusoidal", "alibi"])[
    "model"
]


def names(model: dict[str, Any]) -> set[str]:
    return set(build_model(load_recipe({"tfkit": 1, "model": model}).blueprint(), "meta").state_dict())


def test_names_of_an_encoder():
    layer, embedding = "encoder.layers.0", "encoder.embedding"
    assert names(ENCODER_ONLY) == (
        {f"{embedding}.tokens.weight", f"{embedding}.segments.weight", "encoder.position.0.table.weight"}
        | under(embedding, "norm projection", BOTH)
        | under(f"{layer}.attention", ATTENTION, BOTH)
        | under(f"{layer}.feedforward", "up down", BOTH)
        | under(layer, "attention_norm feedforward_norm", BOTH)
        | under("head", "dense norm output", BOTH)
        | under("heads", "next_sentence replaced", "dense output", BOTH)
    )


def test_names_of_a_decoder():
    layers = under("decoder.layers", "0 1")
    expected = {"decoder.embedding.tokens.weight", "decoder.final_norm.weight", "head.output.weight"}
    for layer in layers:
        expected |= under(layer, "attention", f"{ATTENTION} query_norm key_norm", "weight")
        expected |= under(layer, "feedforward feedforward_2", "gate up down", "weight")
        sublayers = ("attention", "feedforward", "feedforward_2")
        expected |= {f"{layer}.{name}_{norm}.weight" for name in sublayers for norm in ("norm", "output_norm")}
        expected.add(f"{layer}.position.0.table.weight")
    assert names(DECODER_ONLY) == expected


def test_names_of_an_encoder_and_a_decoder():
    expected = {"encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight", "head.output.weight"}
    for side in ("encoder", "decoder"):
        expected |= under(side, "layers.0.norm final_norm", BOTH)
        expected |= under(f"{side}.layers.0.attention", ATTENTION, BOTH)
    assert names(ENCODER_DECODER) == expected | under("decoder.layers.0.cross_attention", ATTENTION, BOTH)
