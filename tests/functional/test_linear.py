"""Linear layers by oneDNN's products: torch's results and gradients, in every mode, and only where they pay."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

import tfkit
from tfkit.core.errors import UsageError
from tfkit.functional import linear
from tfkit.functional.linear import Linear, replace_linears, uses_onednn

pytestmark = pytest.mark.skipif(linear.ONEDNN is None, reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(linear.FORCED, "onednn")
    monkeypatch.setattr(linear, "WORTH", 0)
    uses_onednn.cache_clear()
    yield
    uses_onednn.cache_clear()


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    own = copy.deepcopy(plain)
    replace_linears(own)
    assert type(own) is Linear
    return plain, own


def gradients(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad is not None
    return [x.grad, *(one.grad for one in layer.parameters() if one.grad is not None)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (3, 5, 24), (0, 24)])
def test_results_and_gradients_are_those_of_torch(shape: tuple[int, ...], bias: bool) -> None:
    plain, own = layers(bias)
    x = torch.randn(shape)
    torch.testing.assert_close(own(x), plain(x))
    assert isinstance(own(x).grad_fn, linear._Product._backward_cls)
    for found, expected in zip(gradients(own, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_of_gradients() -> None:
    _, own = layers()
    x = torch.randn(3, 24, requires_grad=True)

    def squared(weight: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = functional_call(own, {"weight": weight, "bias": bias}, (x,))
        return result.tanh()

    hessian = torch.autograd.functional.hessian(lambda bias: squared(own.weight, bias).sum(), own.bias.detach())
    expected = torch.autograd.functional.hessian(
        lambda bias: F.linear(x, own.weight, bias).tanh().sum(), own.bias.detach()
    )
    torch.testing.assert_close(hessian, expected)
    first = torch.autograd.grad(squared(own.weight, own.bias).sum(), x, create_graph=True)[0]
    second = torch.autograd.grad(first.square().sum(), own.weight)[0]
    other = torch.autograd.grad(F.linear(x, own.weight, own.bias).tanh().sum(), x, create_graph=True)[0]
    torch.testing.assert_close(second, torch.autograd.grad(other.square().sum(), own.weight)[0])


def test_modes_of_torch_func() -> None:
    plain, own = layers()
    x, tangent = torch.randn(3, 5, 24), torch.randn(3, 5, 24)
    torch.testing.assert_close(vmap(own)(x), plain(x))
    for found, expected in zip(jvp(own, (x,), (tangent,)), jvp(plain, (x,), (tangent,)), strict=True):
        torch.testing.assert_close(found, expected)
    by_row = vmap(grad(lambda row: own(row).square().sum()))
    torch.testing.assert_close(by_row(x[0]), vmap(grad(lambda row: plain(row).square().sum()))(x[0]))


def test_autocast_and_other_types_are_left_to_torch() -> None:
    _, own = layers()
    x = torch.randn(4, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert own(x).dtype == torch.bfloat16
    double = copy.deepcopy(own).double()
    assert torch.equal(double(x.double()), F.linear(x.double(), double.weight, double.bias))


def test_a_layer_is_pickled_exported_and_printed_as_one() -> None:
    plain, own = layers()
    x = torch.randn(4, 24)
    torch.testing.assert_close(pickle.loads(pickle.dumps(own))(x), plain(x))
    program = torch.export.export(own, (x,))
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == ["aten.linear.default"]
    assert repr(own) == repr(plain)


def test_small_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, own = layers()
    monkeypatch.setattr(linear, "WORTH", 4 * 24 * 40 + 1)
    x = torch.randn(4, 24)
    assert torch.equal(own(x), plain(x))


@pytest.mark.parametrize(("forced", "uses"), [("mkl", False), ("onednn", True)])
def test_the_library_can_be_forced(forced: str, uses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(linear.FORCED, forced)
    uses_onednn.cache_clear()
    assert uses_onednn() == uses


def test_an_unknown_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(linear.FORCED, "blas")
    uses_onednn.cache_clear()
    with pytest.raises(UsageError, match="TFKIT_PRODUCTS must be mkl or onednn, got 'blas'"):
        uses_onednn()


@pytest.mark.parametrize(("processor", "uses"), [("AMD EPYC", True), ("Intel(R) Xeon(R) Platinum", False)])
def test_the_processor_decides(processor: str, uses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(linear.FORCED)
    monkeypatch.setattr(linear, "machine", lambda: {"processor": processor})
    uses_onednn.cache_clear()
    assert uses_onednn() == uses


def test_a_model_learns_the_same_with_either_library(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {
        "norm": "layer_norm",
        "attention": {"type": "multi_head", "num_heads": 4},
        "feedforward": {"type": "mlp", "d_ff": 64},
    }
    model = {"type": "decoder", "vocab_size": 60, "d_model": 32, "num_layers": 2, "embedding": "tokens"}
    recipe = {"tfkit": 1, "model": {**model, "layer": layer, "head": "language_model"}}
    ids = torch.arange(2 * 9).view(2, 9) % 60
    found = []
    for library in ("mkl", "onednn"):
        monkeypatch.setenv(linear.FORCED, library)
        uses_onednn.cache_clear()
        built = tfkit.build(recipe)
        assert any(type(module) is Linear for module in built.modules())
        built(ids).logits.square().mean().backward()
        found.append([one.grad for one in built.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
