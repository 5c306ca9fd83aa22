"""Copies of weights for decoding: the same results, nothing left behind, and int8 within its bounds."""

from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import tfkit
from tests.generation.searching import best
from tfkit.components import feedforward
from tfkit.components.attention import MultiHead
from tfkit.components.head import LanguageModel
from tfkit.components.norm import Norm
from tfkit.core.context import Context
from tfkit.core.errors import UsageError
from tfkit.functional import linear
from tfkit.functional.linear import FEW, FORCED, WAYS, OneDNN, Transposed, available
from tfkit.functional.loss import cross_entropy
from tfkit.generation import decoder as decoders
from tfkit.generation.decoder import Copies, StepDecoder, copies_of
from tfkit.generation.layers import Int8, check_quantized
from tfkit.generation.stepper import Stepper, evaluating
from tfkit.models import Model
from tfkit.models.layer import Layer
from tfkit.recipe.load import load_recipe

PLAIN: dict[str, Any] = {"type": "multi_head", "num_heads": 4}
MLP: dict[str, Any] = {"type": "mlp", "d_ff": 64}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"attention": PLAIN, "feedforward": MLP, "dropout": 0.1},
    "grouped, gated": {
        "attention": {**PLAIN, "num_kv_heads": 2, "bias": ["query"], "qk_norm": "rms_norm", "gate": {"over": "head"}},
        "feedforward": {"type": "glu", "d_ff": 48, "bias": False},
    },
    "all norms": {
        "attention": {
            **PLAIN,
            "value_dim": 5,
            "value_scale": 0.7,
            "qk_norm": "rms_norm",
            "qk_norm_at": "width",
            "output_norm": "rms_norm",
        },
        "feedforward": {**MLP, "inner_norm": "layer_norm", "dropout": 0.1},
    },
    "latent": {
        "attention": {"type": "latent", "num_heads": 4, "kv_rank": 8, "head_dim": 8, "rotary_head_dim": 4},
        "feedforward": MLP,
    },
    "experts": {
        "attention": PLAIN,
        "feedforward": {"type": "experts", "num_experts": 4, "num_active": 2, "expert": {"type": "glu", "d_ff": 24}},
    },
    "experts, normed": {
        "attention": PLAIN,
        "feedforward": {
            "type": "experts",
            "num_experts": 3,
            "num_active": 1,
            "expert": {**MLP, "inner_norm": "rms_norm", "activation": "prelu", "dropout": 0.1},
        },
    },
}


BOUNDS = {"experts": 0.3, "experts, normed": 0.3}  # of int8: a token may choose another expert


def decoder(name: str = "plain", **more: Any) -> Model:
    model = {
        "type": "decoder",
        "d_model": 32,
        "num_layers": 2,
        "vocab_size": 50,
        "embedding": "tokens",
        "position": "rotary",
        "layer": {"residual": "pre_norm", "norm": "layer_norm", **LAYERS[name]},
        "head": {"type": "language_model", "tied": True},
        **more,
    }
    return tfkit.build(tfkit.load_recipe({"tfkit": 1, "model": model}), seed=0).eval()


def pair() -> Model:
    model = {
        "type": "encoder_decoder",
        "d_model": 32,
        "vocab_size": 50,
        "embedding": {"type": "tokens", "shared": True},
        "position": "sinusoidal",
        "layer": {"residual": "post_norm", "norm": "layer_norm", **LAYERS["plain"]},
        "encoder": {"num_layers": 1},
        "decoder": {"num_layers": 2},
        "head": {"type": "language_model", "tied": True},
    }
    return tfkit.build(tfkit.load_recipe({"tfkit": 1, "model": model}), seed=0).eval()


def ids(rows: int, length: int = 5) -> Tensor:
    return torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(rows))


def steps(
    model: Model, rows: int, quantize: Any = None, copied: bool = True, kept: StepDecoder | None = None
) -> Tensor:
    """Logits of some steps of decoding, [rows steps vocab], the tokens always the same."""
    count, found = 4, []
    tokens = ids(rows, 5 + count)
    with evaluating(model):
        sources = None if model.blueprint.encoder is None else ids(rows, 7).tolist()
        net = (kept or StepDecoder(model, quantize)).current() if copied else model
        stepper = Stepper(net, tokens[:, :5].tolist(), sources)
        for step in range(count):
            found.append(stepper.logits())
            stepper.append(tokens[:, 5 + step])
    return torch.stack(found, dim=1)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*LAYERS, "pair"])
def test_every_way_to_multiply_gives_the_same(name: str, way: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available(way):
        pytest.skip("this build of torch lacks its kernels")
    monkeypatch.setenv(FORCED, way)
    monkeypatch.setattr(linear, "THIN", 1)
    model = pair() if name == "pair" else decoder(name)
    kept = StepDecoder(model)
    assert distance(steps(model, rows, kept=kept), steps(model, rows, copied=False)) < 1e-6
    head: Any = kept.current().head
    used = head.output.layers.product(rows)
    assert used is None if way == "mkl" else type(used) is WAYS[way]


def test_large_weights_are_multiplied_in_the_fastest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(decoders, "fastest", lambda *shape, copies: asked.append(shape) or "transposed")
    model = decoder()
    kept = StepDecoder(model)
    assert distance(steps(model, 2, kept=kept), steps(model, 2, copied=False)) < 1e-6
    assert set(asked) >= {(2, 32, 3 * 32)}
    head: Any = kept.current().head
    assert type(head.output.layers.product(2)) is Transposed
    monkeypatch.setattr(decoders, "fastest", lambda *shape, copies: "onednn")
    assert type(head.output.layers.product(FEW)) is OneDNN and head.output.layers.product(FEW + 1) is None


def test_copies_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not available("packed"):
        pytest.skip("this build of torch has no packed products")
    monkeypatch.setattr(linear, "THIN", 1)
    model = decoder()
    kept = StepDecoder(model)
    assert kept.bytes == 0
    steps(model, 2, kept=kept)
    attention, down = 2 * 4 * 32 * 32, 2 * 2 * 32 * 64
    assert kept.bytes >= 4 * (attention + down + 50 * 32)


def test_a_model_is_never_written_to() -> None:
    model = decoder("grouped, gated")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    saved, plain = copy.deepcopy(model.state_dict()), model(input_ids=ids(2)).logits
    with evaluating(model):
        small = StepDecoder(model, "int8").current()
        small(input_ids=ids(2))
        assert torch.equal(model(input_ids=ids(2)).logits, plain)
    for one in (model, small):
        assert list(one.state_dict()) == list(saved)
        assert all(torch.equal(value, saved[key]) for key, value in one.state_dict().items())
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_decoders_of_one_model_live_side_by_side() -> None:
    model = decoder()
    expected = {quantize: steps(model, 2, quantize) for quantize in (None, "int8")}
    with evaluating(model):
        steppers = {
            quantize: Stepper(StepDecoder(model, quantize).current(), ids(2, 9)[:, :5].tolist())  # type: ignore[arg-type]
            for quantize in expected
        }
        for step in range(4):
            for quantize, stepper in steppers.items():
                assert torch.equal(stepper.logits(), expected[quantize][:, step])
                stepper.append(ids(2, 9)[:, 5 + step])


@pytest.mark.parametrize("name", ["plain", "experts"])
def test_threads_that_decode_give_what_each_gives_alone(name: str) -> None:
    model = decoder(name)
    kinds = (None, "int8")
    alone = {quantize: steps(model, 3, quantize) for quantize in kinds}
    kept = {quantize: StepDecoder(model, quantize) for quantize in kinds}  # type: ignore[arg-type]
    plain = model(input_ids=ids(3)).logits

    def call(number: int) -> bool:
        if number % 3 == 2:
            return torch.equal(model(input_ids=ids(3)).logits, plain)
        quantize = kinds[number % 3]
        return torch.equal(steps(model, 3, kept=kept[quantize]), alone[quantize])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(24)))


def _trained(model: Model) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def _behind_its_back(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.5)  # which torch does not count


def _one_element_behind_its_back(model: Model) -> None:
    for parameter in model.parameters():
        parameter.data.view(-1)[1] += 5.0


def _loaded(model: Model) -> None:
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


def _replaced(model: Model) -> None:
    part: Any = next(module for module in model.modules() if isinstance(module, MultiHead))
    part.value = nn.Linear(part.value.in_features, part.value.out_features)


def _assigned_with_other_strides(model: Model) -> None:
    state = {name: 1.5 * value for name, value in model.state_dict().items()}
    strided = {name: value.t().contiguous().t() if value.dim() == 2 else value for name, value in state.items()}
    model.load_state_dict(strided, assign=True)


def _rewritten(model: Model) -> None:
    part: Any = next(module for module in model.modules() if isinstance(module, MultiHead))
    own = part.forward
    part.forward = lambda x, context: 3 * own(x, context)


def _set_otherwise(model: Model) -> None:
    head: Any = model.head
    head.scale = 3.0


@pytest.mark.parametrize(
    "change",
    [
        _trained,
        _behind_its_back,
        _one_element_behind_its_back,
        _loaded,
        _replaced,
        _assigned_with_other_strides,
        _rewritten,
        _set_otherwise,
    ],
)
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_changed_weights_are_copied_anew(change: Any, quantize: Any) -> None:
    model = decoder()
    kept = StepDecoder(model, quantize)
    first = steps(model, 2, kept=kept)
    change(model)
    plain = steps(model, 2, copied=False)
    assert distance(first, plain) > 0.1
    found = steps(model, 2, kept=kept)
    assert distance(found, plain if quantize is None else steps(model, 2, quantize)) < 1e-6


def test_the_same_weights_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Copies] = []

    class Counted(Copies):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(decoders, "Copies", Counted)
    model = decoder()
    kept = StepDecoder(model)
    steps(model, 2, kept=kept)
    steps(model, 2, kept=kept)
    assert len(made) == 1


def test_without_the_kernel_layers_are_joined_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "PACK", None)
    model = decoder()
    kept = StepDecoder(model)
    assert distance(steps(model, 2, kept=kept), steps(model, 2, copied=False)) < 1e-6
    assert kept.bytes == 2 * 4 * 3 * 32 * 32  # queries, keys and values of two layers


def test_layers_whose_declared_sizes_are_wrong() -> None:
    """A weight of another shape, as after pruning, is multiplied as torch does it; a bias may be broadcast."""
    model = decoder()
    part: Any = next(module for module in model.modules() if isinstance(module, MultiHead))
    for layer in (part.query, part.key, part.value):
        layer.out_features = layer.in_features = 7
    part.output.bias = nn.Parameter(torch.ones(1))
    assert distance(steps(model, 2), steps(model, 2, copied=False)) < 1e-6


def test_copies_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "MOST_BYTES", 4 * 50 * 32 - 1)  # a byte less than the table of the head
    model = decoder()
    kept = StepDecoder(model)
    assert distance(steps(model, 2, kept=kept), steps(model, 2, copied=False)) < 1e-6
    head: Any = kept.current().head
    assert head.output.layers.product(2) is None


def test_a_layer_that_somebody_watches_is_called() -> None:
    model, seen = decoder(), []
    linear = next(module for module in model.modules() if isinstance(module, nn.Linear))
    linear.register_forward_hook(lambda *_: seen.append(1))
    steps(model, 2)
    assert len(seen) == 4


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", [nn.Linear, Layer, MultiHead, Norm])
def test_whoever_begins_to_watch_later_is_told_too(kind: type[nn.Module], rows: int) -> None:
    model, seen = decoder(), []
    before = steps(model, rows)
    watched = next(module for module in model.modules() if isinstance(module, kind))
    hook = watched.register_forward_hook(lambda *_: seen.append(1))
    assert distance(steps(model, rows), before) < 1e-6
    assert len(seen) == 4
    hook.remove()
    steps(model, rows)
    assert len(seen) == 4


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", [*LAYERS, "pair"])
def test_int8_is_close(name: str, rows: int) -> None:
    model = pair() if name == "pair" else decoder(name)
    assert 0 < distance(steps(model, rows, "int8"), steps(model, rows, copied=False)) < BOUNDS.get(name, 0.1)


@pytest.fixture
def has_bfloat16() -> None:
    try:
        check_quantized(torch.zeros(1), "bfloat16")
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", [*LAYERS, "pair"])
def test_bfloat16_is_closer_than_int8(has_bfloat16: None, name: str, rows: int) -> None:
    model = pair() if name == "pair" else decoder(name)
    exact = steps(model, rows, copied=False)
    found = distance(steps(model, rows, "bfloat16"), exact)
    assert 0 < found < BOUNDS.get(name, 0.02)


@pytest.mark.parametrize("quantize", ["int8", "bfloat16"])
def test_a_search_with_quantized_weights_holds_their_bytes_alone(quantize: Any, request: pytest.FixtureRequest) -> None:
    """The joined float32 weights of queries, keys and values are not kept."""
    if quantize == "bfloat16":
        request.getfixturevalue("has_bfloat16")
    model = decoder()
    kept = StepDecoder(model, quantize)
    assert len(best(model, [[1, 2, 3]], 4, decoder=kept)[0]) == 4
    copied = [one for one in model.modules() if isinstance(one, nn.Linear)]
    weights, outs = sum(one.weight.numel() for one in copied), sum(len(one.weight) for one in copied)
    assert 0 < kept.bytes <= (weights + 8 * outs if quantize == "int8" else 2 * weights)


def test_a_processor_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(UsageError, match=r"needs a CPU with bfloat16 instructions \(AVX512_BF16\); use int8"):
        StepDecoder(decoder(), "bfloat16").current()


def test_int8_of_a_row_hardly_depends_on_the_others() -> None:
    linear = nn.Linear(64, 32, bias=False)
    nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(1))
    product = Int8(linear.weight.detach(), None)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1000.0], [0.001]])
    together, alone = product(x, 3), torch.cat([product(row[None], 1) for row in x])
    for number, exact in enumerate(linear(x).detach()):
        assert distance(together[number], exact) < 0.03 and distance(alone[number], exact) < 0.03
    assert not product(torch.zeros(2, 64), 2).any()


def test_int8_of_half_precision() -> None:
    model = decoder().to(torch.bfloat16)
    found = steps(model, 2, "int8")
    assert found.dtype == torch.bfloat16
    assert 0 < distance(found.float(), steps(model, 2, copied=False).float()) < 0.1


def test_a_decoder_is_its_own_decoder() -> None:
    model = decoder()
    small = StepDecoder(model, "int8").current()
    assert torch.equal(steps(small, 2), steps(model, 2, "int8"))


def test_a_part_that_computes_by_other_weights_for_a_call_is_not_given_copies() -> None:
    class Doubled(nn.Module):
        def __init__(self, linear: nn.Linear) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = functional_call(self.linear, {"weight": 2 * self.linear.weight}, (x,))
            return out

    model = decoder()
    for module in [module for module in model.modules() if isinstance(module, feedforward.MLP)]:
        module.up = Doubled(module.up)  # type: ignore[assignment]
    assert distance(steps(model, 2), steps(model, 2, copied=False)) < 1e-6


class Packed(MultiHead):
    """One projection instead of three."""

    def project(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        return self.packed(x).chunk(3, dim=-1)  # type: ignore[operator,no-any-return]


class Doubled(MultiHead):
    def project(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        return tuple([2 * part for part in super().project(x, context)])


class Tripled(MultiHead):
    def apply_fused(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple([3 * part for part in super().apply_fused(x)])


class Reversed(MultiHead):
    def join_heads(self, x: Tensor) -> Tensor:
        return super().join_heads(x.flip(1))


class CallsTwice(MultiHead):
    def __call__(self, *inputs: Any) -> Any:
        return 2 * super().__call__(*inputs)


def test_what_a_subclass_overrides_is_not_fused() -> None:
    for kind in (Packed, Doubled, Tripled, Reversed, CallsTwice):
        model = decoder()
        for part in [module for module in model.modules() if isinstance(module, MultiHead)]:
            part.__class__ = kind
            if kind is Packed:
                part.packed = nn.Linear(32, 96)
                del part.query, part.key, part.value
        assert distance(steps(model, 2), steps(model, 2, copied=False)) < 1e-6, kind.__name__


def test_the_loss_of_a_head_with_its_own_forward() -> None:
    class Cooled(LanguageModel):
        def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
            return super().forward(hidden) / 3

    head: Any = decoder().head
    head.__class__, hidden, targets = Cooled, torch.randn(6, 32), ids(1, 6)[0]
    torch.testing.assert_close(head.loss(hidden, targets), F.cross_entropy(head(hidden), targets, reduction="sum"))


def test_what_cannot_be_is_said() -> None:
    model = decoder()
    with pytest.raises(UsageError, match="quantize must be int8 or bfloat16, got 'int4'"):
        StepDecoder(model, "int4")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a model in evaluation mode"):
        StepDecoder(model.train()).current()
    meta = decoder().to("meta")
    with pytest.raises(UsageError, match="int8 runs only on a CPU, but this model is on meta"):
        StepDecoder(meta, "int8").current()


@pytest.mark.slow
def test_int8_keeps_the_perplexity(tmp_path: Path) -> None:
    small = {"model.d_model": 96, "model.num_layers": 3, "train.steps": 100}
    recipe = load_recipe("gpt-docstrings", overrides=small)
    run = tfkit.train(recipe, out=tmp_path / "run", progress=False)
    plain, int8 = run.evaluate("valid", 40), run.evaluate("valid", 40, quantize="int8")
    assert run.evaluate("valid", 40) == plain
    assert plain["loss"] != int8["loss"]
    assert abs(int8["perplexity"] / plain["perplexity"] - 1) < 0.01


def test_the_loss_is_that_of_the_copies() -> None:
    model, hidden, targets = decoder(), torch.randn(6, 32), ids(1, 6)[0]
    with evaluating(model):
        head: Any = StepDecoder(model, "int8").current().head
        assert torch.equal(head.loss(hidden, targets), cross_entropy(head(hidden), targets))
        assert not torch.equal(head(hidden), F.linear(hidden, head.output._parameters["weight"]))


WIDE = {"d_model": 512, "vocab_size": 600, "layer.attention.num_heads": 8, "layer.feedforward.d_ff": 1024}


def packed(activation: str = "gelu_tanh", **more: Any) -> Model:
    model = {
        "type": "encoder_decoder",
        "embedding": "tokens",
        "position": "sinusoidal",
        "layer": {
            "residual": "post_norm",
            "norm": "layer_norm",
            "attention": "multi_head",
            "feedforward": {"type": "mlp", "activation": activation},
        },
        "encoder": {"num_layers": 1},
        "decoder": {"num_layers": 1},
        "head": {"type": "language_model", "tied": True},
    }
    sizes = {f"model.{name}": size for name, size in WIDE.items()}
    return tfkit.build({"tfkit": 1, "model": model}, overrides=sizes, **{"packed": True, **more})


def plainly(model: Model, inputs: dict[str, Tensor]) -> Tensor:
    out = type(model).forward(model, **inputs)
    assert out.logits is not None
    return out.logits


@pytest.mark.full
def test_a_packed_model_computes_the_same() -> None:
    model = packed()
    copies = copies_of(model)
    assert copies is not None
    ways = {length: {"input_ids": ids(9, length), "decoder_input_ids": ids(9, 4)} for length in (1, 8, 9)}
    for inputs in ways.values():
        logits = model(**inputs).logits  # gradients are recorded
        assert logits.requires_grad and torch.equal(logits, plainly(model, inputs)) and not copies.bytes
    weights = sum(one.weight.nbytes for one in model.modules() if isinstance(one, nn.Linear))
    with torch.inference_mode():
        for inputs in ways.values():
            assert distance(model(**inputs).logits, plainly(model, inputs)) < 1e-5
            assert copies.bytes <= 1.15 * weights
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            own = copies_of(twin)
            assert own is not None and own.model is twin
        up = model.get_parameter("decoder.layers.0.feedforward.up.weight").data  # writes do not make a new version
        for change in (
            lambda: up[3].mul_(7),
            lambda: up.__setitem__([1, 2], up[[2, 1]]),
            lambda: up[0].fill_(math.nan),
        ):
            before = model(**inputs).logits
            change()
            torch.testing.assert_close(model(**inputs).logits, plainly(model, inputs), equal_nan=True)
            assert not torch.equal(model(**inputs).logits, before)
        plain = {name: weight.detach() for name, weight in twin.named_parameters()}
        assert torch.equal(functional_call(twin, plain, (), inputs).logits, plainly(twin, inputs))
    assert model.eval() is model and copies.current().training is False


@pytest.mark.full
def test_a_packed_model_is_refused_where_nothing_is_packed() -> None:
    for more, message in (
        ({"device": "meta"}, "packed=True needs float32 weights on a CPU, but these are float32 on meta"),
        ({"dtype": torch.bfloat16}, "packed=True needs float32 weights on a CPU, but these are bfloat16 on cpu"),
        ({"packed": "no"}, "packed must be True or False, got 'no'"),
    ):
        with pytest.raises(UsageError, match=message):
            packed(**more)
    model = packed()
    with pytest.raises(UsageError, match="a model built with packed=True cannot be trained; build it without packed"):
        model.train()
    with torch.inference_mode(), pytest.raises(UsageError, match="these are float64 on cpu"):
        model.double()(input_ids=ids(1), decoder_input_ids=ids(1))
    weight = torch.ones(2, 2).as_subclass(type("Shard", (Tensor,), {}))
    model.register_parameter("apart", nn.Parameter(weight))
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match="packed=True needs whole weights, but these are of type Shard"),
    ):
        model(input_ids=ids(1), decoder_input_ids=ids(1))


@pytest.mark.full
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_an_activation_is_part_of_the_product(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available("reordered"):
        pytest.skip("this build of torch lacks oneDNN's products")
    inputs = {"input_ids": ids(9, 9), "decoder_input_ids": ids(9, 9)}
    for way in ("reordered", "mkl"):
        monkeypatch.setenv(FORCED, way)
        model = packed(activation)
        with torch.inference_mode():
            assert distance(model(**inputs).logits, plainly(model, inputs)) < 1e-5
            up: Any = copies_of(model).current().encoder.layers[0].feedforward.up
            assert hasattr(up, "post") == activation.startswith("gelu")
