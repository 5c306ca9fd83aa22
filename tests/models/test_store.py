"""The store between layers: parts that write and read it, value residuals, keys and values shared over layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tfkit
from tests.generation.searching import best
from tests.generation.test_speculative import strategy, written
from tests.reports.test_draw import check_places
from tfkit.components.attention import Attention
from tfkit.components.embedding import Tokens
from tfkit.components.feedforward import MLP
from tfkit.components.norm import Norm
from tfkit.components.position import Position
from tfkit.components.residual import PreNorm
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.inputs import OF_LAYERS
from tfkit.core.options import Slot
from tfkit.core.store import Stores
from tfkit.functional.attend import Scores, attend
from tfkit.generation.decoder import StepDecoder
from tfkit.interop.huggingface.matching import matching_family
from tfkit.models import Model
from tfkit.models.alone import context
from tfkit.models.static import decode_step
from tfkit.plain.code import code
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count
from tfkit.reports.picture import picture
from tfkit.reports.picture_text import mermaid
from tfkit.reports.show import as_data
from tfkit.reports.svg import svg

from .small import small

SHARED = {"layers": {"own": {}, "shared": {"attention": {"share": "previous"}}}, "pattern": ["own", "shared"]}
WINDOWED = {"layers": {"near": {"mask": {"type": "window", "size": 3}}, "far": {}}, "pattern": ["near", "near", "far"]}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "half": ({"value_residual": True}, {}),
    "learned": ({"value_residual": "learned"}, {}),
    "windows": ({"value_residual": "learned"}, {"num_layers": 6, **WINDOWED}),
    "shared": ({}, SHARED),
}
IDS = torch.arange(10)[None] * 7 % 20


def recipe(attention: dict[str, Any], **more: Any) -> dict[str, Any]:
    layer = {"attention": {"type": "multi_head", "num_heads": 2, "num_kv_heads": 1, "bias": False, **attention}}
    return small({**layer, **more.pop("layer", {})}, **{"num_layers": 4, "position": "rotary", **more})


def made(attention: dict[str, Any], **more: Any) -> Model:
    net = tfkit.build(recipe(attention, init={"type": "normal", "std": 0.4}, **more), seed=1).double().eval()
    for name, weight in net.named_parameters():
        weight.data += 0.3 * ("first_share" in name)
    return net


def agree(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def reference(net: Model, kind: str) -> Tensor:
    """Hidden states in plain torch, from the weights by name, without positions."""
    x, first, key, value = net.get_parameter("decoder.embedding.tokens.weight")[IDS], None, None, None
    for index, layer in enumerate(net.stack("decoder").layers):
        of = dict(layer.attention.named_parameters())
        normed = layer.attention_norm(x)
        query = (normed @ of["query.weight"].mT).unflatten(-1, (2, 4)).transpose(1, 2)
        if kind != "shared" or index % 2 == 0:
            key, value = normed @ of["key.weight"].mT, normed @ of["value.weight"].mT
        if kind != "shared":
            first = value if first is None else first
            share = of.get("first_share", 0.5) if index else 0.0
            value = share * first + (1 - share) * value
        scores = query @ key[:, None].mT / 2 + torch.full((10, 10), -torch.inf).triu(1)
        x = x + (scores.softmax(-1) @ value[:, None]).transpose(1, 2).flatten(2) @ of["output.weight"].mT
        up, down = layer.feedforward.up, layer.feedforward.down
        x = x + F.linear(up(layer.feedforward_norm(x)).relu(), down.weight, down.bias)
    return net.stack("decoder").final_norm(x)


@pytest.mark.parametrize("kind", MODELS)
def test_the_papers_and_what_changes_nothing(kind: str) -> None:
    """The equations in plain torch; a cache, packing, padding and recomputation."""
    if kind != "windows":
        net = made(MODELS[kind][0], **{**MODELS[kind][1], "position": "none"})
        agree(net(IDS).hidden, reference(net, kind))
    net = made(MODELS[kind][0], **MODELS[kind][1])
    whole, state = net(IDS).logits, net.new_state()
    agree(torch.cat([net(piece, state=state).logits for piece in IDS.split((4, 1, 3, 2), dim=1)], dim=1), whole)
    both, places = torch.cat((IDS[:, :4], IDS), dim=1), torch.cat((torch.arange(4), torch.arange(10)))[None]
    second = (torch.arange(14) >= 4)[None].long()
    agree(net(both, segment_ids=second, position_ids=places).logits[:, 4:], whole)
    agree(net(both, attention_mask=second).logits[:, 4:], whole)
    gradients = []
    for net.stack("decoder").recompute in (0, 6):
        net.zero_grad()
        net.train()(IDS).logits.square().sum().backward()
        gradients.append([weight.grad for weight in net.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*gradients, strict=True))


WINDOW = {"mask": {"type": "window", "size": 3}}
ALTERNATING = {
    "layers": {"far": {}, "far_too": {"attention": {"share": "previous"}}, "near": WINDOW,
               "near_too": {**WINDOW, "attention": {"share": "previous"}}},
    "pattern": ["near", "near_too", "far", "far_too"],
}  # fmt: skip
WRITTEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"qk_norm": "rms_norm", "sinks": True}, {**ALTERNATING, "num_layers": 8}),
    ({"value_residual": "learned", "num_kv_heads": 2}, {"position": "alibi", **WINDOWED}),
]


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_all_ways_to_decode_write_one_text(number: int) -> None:
    attention, more = WRITTEN[number]
    net, prompts = made(attention, max_length=100, **more), [[5, 6, 7, 3], [2], [3, 1]]
    greedy = best(net, prompts, 12, use_cache=False)
    letters = Slot("tokenizer").validate("character").build().fit(["abcdefghijklmnopqrs"])
    assert best(net, prompts, 12) == best(net, prompts, 12, step=decode_step) == greedy
    assert written(strategy(net, letters, tokens=3), net, prompts, 12) == greedy
    beams = {"type": "beam", "num_beams": 3}
    assert best(net, prompts, 8, strategy=beams) == best(net, prompts, 8, strategy=beams, use_cache=False)
    agree(StepDecoder(net.float()).current()(IDS).logits.double(), net(IDS).logits.double(), 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["learned", "shared"])
def test_graphs_printed_code_and_files_of_others(kind: str) -> None:
    attention, more = MODELS[kind]
    net, blueprint = made(attention, **more).float(), made(attention, **more).blueprint
    for graph in (torch.compile(net, backend="eager", fullgraph=True), torch.export.export(net, (IDS,)).module()):
        agree(graph(IDS).logits, net(IDS).logits, 1e-6)
    assert "class " in code(load_recipe(recipe(attention, **more)))  # proven equal by the printer
    assert matching_family(blueprint)[0] is None
    arrow = "first_value" if kind == "learned" else "keys, values"
    drawn = picture(load_recipe(recipe(attention, **{**more, **(WINDOWED if kind == "learned" else {})})).blueprint())
    check_places(svg([drawn]))
    assert f"<title>{arrow}</title></path>" in svg([drawn])
    assert f" -.->|{arrow.replace('_', '#95;')}| " in mermaid([drawn])


class Shift(MLP):
    """Reads the token before, kept in a state that knows nothing of windows."""

    capabilities = frozenset({"causal", "cache", "masks"})

    def new_state(self) -> list[Tensor]:
        return []

    def forward(self, x: Tensor, context: Any) -> Tensor:
        state = [] if context.state is None else context.state
        before = state.pop() if state else torch.zeros_like(x[:, :1])
        state.append(x[:, -1:])
        return super().forward(torch.cat((before, x), dim=1)[:, :-1], context)


@pytest.mark.full
@pytest.mark.parametrize("forgetful", ["own", "shared"])
def test_layers_that_share_drop_their_keys_together(forgetful: str) -> None:
    tfkit.register("feedforward", "stored_shift")(Shift)
    layers = {"own": WINDOW, "shared": {**WINDOW, "attention": {"share": "previous"}}}
    layers[forgetful] = {**layers[forgetful], "feedforward": {"type": "stored_shift", "d_ff": 8}}
    net = made({}, layers=layers, pattern=["own", "shared"])
    state = net.new_state()
    agree(torch.cat([net(piece, state=state).logits for piece in IDS.split(1, dim=1)], dim=1), net(IDS).logits)


class OwnResidual(Attention):
    """Value residual, whose keys and values a later `OwnBorrower` uses, from the documentation alone."""

    capabilities = frozenset(OF_LAYERS) - {"cross_attention", "bias", "temperature", "weights"}
    writes = frozenset({"own_first", "own_keys", "own_values"})
    reads = frozenset({"own_first"})

    def __init__(self, config: Any, shape: Any) -> None:
        super().__init__(config, shape)
        for name in ("query", "output", *(() if "own_keys" in self.reads else ("key", "value"))):
            self.add_module(name, nn.Linear(shape.d_model, shape.d_model, bias=False))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, -1)).transpose(1, 2)

    def forward(self, x: Tensor, context: Any) -> Tensor:
        store, rotate = context.store, context.position.rotation(x.shape[-1] // 2) or nn.Identity()
        query = rotate(self.heads(self.query(x)))
        if "own_keys" in self.reads:
            key, value = store["own_keys"], store["own_values"]
        else:
            key, value = rotate(self.heads(self.key(x))), self.heads(self.value(x))
            if "own_first" in store:
                value = (store["own_first"] + value) / 2
            else:
                store["own_first"] = value
            key, value = (key, value) if context.state is None else context.state.append(key, value)
            store["own_keys"], store["own_values"] = key, value
        out = attend(query, key, value, context.mask, Scores(query.shape[-1] ** -0.5))
        joined: Tensor = self.output(out.transpose(1, 2).flatten(2))
        return joined


class OwnBorrower(OwnResidual):
    reads = frozenset({"own_keys", "own_values"})
    writes = frozenset()

    class Config(OwnResidual.Config):
        def stores(self, shape: Any) -> Stores:
            return Stores(reads=OwnBorrower.reads, keys=OwnBorrower.reads)

    def new_state(self) -> None:
        return None


@pytest.mark.full
@pytest.mark.parametrize("mask", [{}, WINDOW], ids=["all", "window"])
def test_own_parts_equal_the_options(mask: dict[str, Any]) -> None:
    tfkit.register("attention", "own_residual")(OwnResidual)
    tfkit.register("attention", "own_borrower")(OwnBorrower)
    pattern = ["own", "shared", "own", "own", "shared"]
    share = {"share": "previous", "value_residual": False}
    kinds = {"own": mask, "shared": {**mask, "attention": share}}
    shipped = made({"value_residual": True, "num_kv_heads": 2}, layers=kinds, num_layers=5, pattern=pattern)
    parts = {"own": "own_residual", "shared": "own_borrower"}
    kinds = {name: {**mask, "attention": {"type": part}} for name, part in parts.items()}
    net = made({}, layers=kinds, num_layers=5, pattern=pattern)
    net.load_state_dict(shipped.state_dict())
    state = net.new_state()
    agree(net(IDS).logits, shipped(IDS).logits)
    agree(torch.cat([net(piece, state=state).logits for piece in IDS.split(1, dim=1)], dim=1), net(IDS).logits)


class Kept(Tokens):
    writes = frozenset({"ids"})

    def forward(self, inputs: Any, placement: Any, vectors: Any = None, context: Any = None) -> Tensor:
        context.store["ids"] = x = super().forward(inputs, placement, vectors)
        return x


class Added(Norm):
    reads = frozenset({"ids"})

    def forward(self, x: Tensor, context: Any) -> Tensor:
        return x + context.store["ids"]


class Back(PreNorm):
    reads = writes = frozenset({"back"})

    def forward(self, x: Tensor, branches: Any) -> Tensor:
        store = (branches := list(branches))[0].context.store
        x = super().forward(x + store["back"] if "back" in store else x, branches)
        store["back"] = x
        return x


@pytest.mark.full
def test_norms_layouts_and_embeddings_have_the_store() -> None:
    for slot, name, part in (("embedding", "kept", Kept), ("norm", "added", Added), ("residual", "back", Back)):
        tfkit.register(slot, name)(part)
    net = made({}, embedding="kept", layer={"norm": "added", "residual": "back"}, final_norm="added")
    state, whole = net.new_state(), net(IDS).logits
    agree(torch.cat([net(piece, state=state).logits for piece in IDS.split((4, 6), dim=1)], dim=1), whole)
    (row,) = [row for row in as_data(net.blueprint, count(net.blueprint))["rows"] if "reads" in row]
    assert (row["reads"], row["writes"]) == (["back", "ids"], ["back"])
    with pytest.raises(UsageError, match="a position or a mask has no store; sublayers, "):
        tfkit.register("position", "odd")(type("Odd", (Position,), {"reads": frozenset({"ids"})}))
    with pytest.raises(RecipeError, match=r"norm 'added' uses .* which a part inside another does not have"):
        made({"qk_norm": "added"}, embedding="kept")
    call = context(torch.zeros(1, 2, 8))
    call.apart().store["other"] = torch.ones(1)
    with pytest.raises(
        UsageError,
        match=r"has no 'other': no earlier part wrote it, .*; it holds nothing",
    ):
        call.store["other"]


UNLIKE = {"layers": {"a": {}, "b": {"attention": {"num_kv_heads": 2}}}, "pattern": ["a", "b"]}
MASKED = {**SHARED, "layers": {"own": {}, "shared": {"attention": {"share": "previous"}, "mask": "prefix"}}}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"share": "previous"},
        {},
        "layer 0 .* reads 'keys' and 'values' .* but no earlier layer of the decoder writes them",
    ),
    ({}, {**SHARED, "pattern": ["shared", "own"]}, r"layer 0 .*; layer 1 \(.* does, but later"),
    ({}, MASKED, "need the same mask .*layer 1 .* reads what layer 0 .* writes"),
    ({"value_residual": True}, SHARED, "value_residual: has no effect with share, .*; set value_residual: false"),
    ({"bias": ["key"]}, SHARED, "'key' is not a projection of this part; available: query, output"),
    ({"value_residual": True}, UNLIKE, "value_residual: needs equal key-value heads: 2 here, 1 there"),
    ({"value_residual": True}, {"type": "encoder_decoder"}, "set value_residual: false in cross_attention"),
]


@pytest.mark.full
def test_refusals_and_a_warning_name_the_layers() -> None:
    for attention, more, words in REFUSED:
        with pytest.raises(RecipeError, match=words):
            load_recipe(recipe(attention, **more))
    (warning,) = load_recipe(recipe({"value_residual": True}, num_layers=1)).warnings
    assert "layer 0 (attention 'multi_head') writes 'first_value' to context.store, but no later" in str(warning)
