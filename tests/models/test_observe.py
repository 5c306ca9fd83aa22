"""A model that is observed: weights and hidden states by place, equal to a naive softmax, and free when unused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from tfkit.models import Model

ROWS, TIME, SOURCE, HEADS = 2, 6, 4, 4
IDS = torch.randint(1, 23, (ROWS, TIME), generator=torch.Generator().manual_seed(0))
TEXT = torch.randint(1, 23, (ROWS, SOURCE), generator=torch.Generator().manual_seed(1))
REAL = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
WATCH = {"attention", "hidden_states"}


def built(type: str = "decoder", **layer: Any) -> Model:
    parts = {"residual": "pre_norm", "norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 24}}
    if "mixer" not in layer:
        parts["attention"] = {"type": "multi_head", "num_heads": HEADS}
    model = {"type": type, "d_model": 16, "num_layers": 3, "vocab_size": 23, "max_length": 32, "embedding": "tokens",
             "position": "sinusoidal", "layer": {**parts, **layer}, "head": "language_model"}  # fmt: skip
    return tfkit.build({"tfkit": 1, "model": model}, dtype=torch.float64).eval()


def naive(part: Any, x: Tensor, source: Tensor, visible: Tensor) -> Tensor:
    """softmax(query keyᵀ / sqrt(head_dim)), head by head."""
    query, key = part.query(x), part.key(source)
    heads = []
    for one, other in zip(query.chunk(HEADS, dim=-1), key.chunk(HEADS, dim=-1), strict=True):
        scores = one @ other.transpose(1, 2) / one.shape[-1] ** 0.5
        heads.append(scores.masked_fill(~visible, float("-inf")).softmax(dim=-1))
    return torch.stack(heads, dim=1)


def inputs_of(model: Model, call: dict[str, Any]) -> tuple[dict[str, tuple[Tensor, Any]], Any]:
    """What each attention is called with, and the output."""
    seen: dict[str, tuple[Tensor, Any]] = {}

    def keep(place: str) -> Any:
        return lambda module, given: seen.__setitem__(place, given)

    kept = [
        module.register_forward_pre_hook(keep(name))
        for name, module in model.named_modules()
        if name.endswith("attention")
    ]
    with torch.no_grad():
        out = model(**call, observe=WATCH)
    for one in kept:
        one.remove()
    return seen, out


PACKED = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 2]])
CALLS: dict[str, tuple[str, dict[str, Any], Tensor]] = {
    "causal": ("decoder", {"input_ids": IDS}, torch.ones(TIME, TIME).tril()),
    "both-ways-padded": ("encoder", {"input_ids": IDS, "attention_mask": REAL}, REAL[:, None, :]),
    "packed": (
        "decoder",
        {"input_ids": IDS, "segment_ids": PACKED},
        torch.ones(TIME, TIME).tril() * (PACKED[:, :, None] == PACKED[:, None, :]),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_weights_are_those_of_a_naive_softmax(name: str) -> None:
    type, call, visible = CALLS[name]
    model = built(type)
    seen, out = inputs_of(model, call)
    places = {f"{type}.layers.{index}" for index in range(3)}
    assert out.observed.keys() == places | {f"{place}.attention" for place in places}
    for place, (x, _) in seen.items():
        want = naive(model.get_submodule(place), x, x, visible.bool())
        assert (out.observed[place] - want).abs().max() < 1e-12
    last = out.observed[f"{type}.layers.2"]
    assert torch.equal(model.stack(type).final_norm(last), out.hidden)


def test_an_encoder_decoder_has_both_sides_and_cross_attention() -> None:
    model = built("encoder_decoder")
    real = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    seen, out = inputs_of(model, {"input_ids": TEXT, "attention_mask": real, "decoder_input_ids": IDS})
    kinds = {place.split(".")[0] + "." + place.split(".")[3] for place in seen}
    assert kinds == {"encoder.attention", "decoder.attention", "decoder.cross_attention"}
    for place, (x, context) in seen.items():
        cross = place.endswith("cross_attention")
        visible = real[:, None, :] if cross or "encoder" in place else torch.ones(TIME, TIME).tril()
        want = naive(model.get_submodule(place), x, context.source if cross else x, visible.bool())
        assert out.observed[place].shape == want.shape
        assert (out.observed[place] - want).abs().max() < 1e-12


@pytest.mark.parametrize("type", ["decoder", "encoder_decoder"])
def test_a_decode_step_observes_its_row_of_the_whole(type: str) -> None:
    model = built(type)
    pair = type == "encoder_decoder"
    source = {"input_ids": TEXT} if pair else {}
    name = "decoder_input_ids" if pair else "input_ids"
    state = model.new_state()
    with torch.no_grad():
        whole = model(**source, **{name: IDS}, observe={"attention"}).observed
        model(**source, **{name: IDS[:, :-1]}, state=state)
        step = model(**source, **{name: IDS[:, -1:]}, state=state, observe={"attention"}).observed
    assert step and all(place.startswith("decoder") for place in step)
    for place, weights in step.items():
        assert torch.allclose(weights, whole[place][:, :, -1:], atol=1e-12)


def test_layers_without_weights_are_left_out_by_name() -> None:
    layer = {"residual": "pre_norm", "norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 24}}
    kinds = {"mixed": {"mixer": "mamba"}, "attended": {"attention": {"type": "multi_head", "num_heads": HEADS}}}
    model = {"type": "decoder", "d_model": 16, "num_layers": 3, "vocab_size": 23, "embedding": "tokens",
             "layer": layer, "layers": kinds, "pattern": ["mixed", "attended", "mixed"]}  # fmt: skip
    mixed = tfkit.build({"tfkit": 1, "model": model})
    assert mixed(IDS, observe={"attention"}).observed.keys() == {"decoder.layers.1.attention"}
    assert mixed.attention_places() == (
        ["decoder.layers.1.attention"],
        ["decoder.layers.0.mixer (mamba)", "decoder.layers.2.mixer (mamba)"],
    )


def test_what_is_observed_is_refused_by_name() -> None:
    model = built()
    for wrong in ("attention", {"atention"}, True):
        with pytest.raises(tfkit.UsageError, match="observe must be a set of attention and hidden_states"):
            model(IDS, observe=wrong)
    with pytest.raises(tfkit.UsageError, match=r"exposes attention weights: decoder.layers.0.mixer \(mamba\)"):
        built(mixer="mamba")(IDS, observe={"attention"})


def test_a_call_that_observes_nothing_makes_no_new_objects() -> None:
    model = built()
    contexts: list[int] = []
    for layer in model.stack("decoder").layers:
        layer.register_forward_pre_hook(lambda module, given: contexts.append(id(given[1])))
    model(IDS)
    assert len(set(contexts)) == 1  # equal layers share one context


@pytest.mark.full
def test_an_observed_model_compiles_whole() -> None:
    model = built()
    compiled: nn.Module = torch.compile(model, fullgraph=True, backend="eager")  # type: ignore[assignment]
    with torch.no_grad():
        want, got = model(IDS, observe=frozenset(WATCH)), compiled(IDS, observe=frozenset(WATCH))
    assert want.observed.keys() == got.observed.keys()
    assert all(torch.allclose(want.observed[place], got.observed[place]) for place in want.observed)
