"""Linear layers by oneDNN's products: torch's results and gradients, in every mode, and only where they pay."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.flop_counter import FlopCounterMode

from tfkit.functional import linear
from tfkit.functional.linear import FORCED, WAYS, Linear, available, product, replace_linears

pytestmark = pytest.mark.skipif(linear.ONEDNN is None, reason="this build of torch has no oneDNN")


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED, "onednn")
    monkeypatch.setattr(linear, "WORTH", 0)


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias=bias)
    own = copy.deepcopy(plain)
    replace_linears(own)
    assert type(own) is Linear
    return plain, own


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
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


@pytest.mark.parametrize("bias", [torch.randn(80)[::2], torch.randn(1).expand(40), torch.randn(1)])
@pytest.mark.parametrize("way", ["onednn", "reordered", "packed", "transposed", "mkl"])
def test_a_bias_of_other_strides_or_size(way: str, bias: Tensor) -> None:
    x, weight = torch.randn(4, 24), torch.randn(40, 24)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(product(x, weight, bias), expected)
    torch.testing.assert_close(linear._differentiable(x, weight, bias), expected)
    if available(way) and bias.shape == (40,):
        torch.testing.assert_close(WAYS[way](weight, bias)(x, 4), expected)


@pytest.mark.parametrize("shape", [(4, 25), (8, 12), (12,)])
def test_a_wrong_width_is_refused_in_torchs_words(shape: tuple[int, ...]) -> None:
    plain, own = layers()
    with pytest.raises(RuntimeError) as expected:
        plain(torch.randn(shape))
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(expected.value))}$"):
        own(torch.randn(shape))


@pytest.mark.parametrize("shape", [(16, 24), (17, 24), (3, 43, 24)])
def test_results_may_be_changed_in_place(shape: tuple[int, ...]) -> None:
    plain, own = layers()
    x = torch.randn(shape)
    for found, expected in zip(gradients(_then_in_place(own), x), gradients(_then_in_place(plain), x), strict=True):
        torch.testing.assert_close(found, expected)


def _then_in_place(layer: nn.Linear) -> nn.Module:
    return nn.Sequential(layer, nn.ReLU(inplace=True))


def test_a_layer_is_traced_by_fx() -> None:
    plain, own = layers()
    x = torch.randn(4, 24)
    torch.testing.assert_close(torch.fx.symbolic_trace(nn.Sequential(own, nn.ReLU()))(x), plain(x).relu())


@pytest.mark.full
def test_onednn_sees_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps compiled code for each of them."""
    kernel, seen = linear.ONEDNN, set()

    def counted(x: Tensor, *rest: object) -> Tensor:
        seen.add(x.shape[:-1].numel())
        return kernel(x, *rest)

    monkeypatch.setattr(linear, "ONEDNN", counted)
    weight, bias = torch.randn(8, 24), torch.randn(8)
    for rows in range(1, 1025):
        x = torch.randn(rows, 24)
        torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias))
    assert len(seen) == 15 + 1 + 8 * 6 and max(seen) == 1024
    x = torch.randn(3, 43, 24)
    torch.testing.assert_close(product(x, weight, bias), F.linear(x, weight, bias))


def test_small_products_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, own = layers()
    monkeypatch.setattr(linear, "WORTH", 4 * 24 * 40 + 1)
    x = torch.randn(4, 24)
    assert torch.equal(own(x), plain(x))


def test_modes_see_the_products_of_torch() -> None:
    _, own = layers()
    x = torch.randn(4, 24)
    with FlopCounterMode(display=False) as counter:
        own(x).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 24 * 40  # forward, and the gradient of the weight


@pytest.mark.parametrize("name", ["mkl", "onednn"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_the_way_is_chosen_by_shape_and_layout(name: str, is_transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(linear, "fastest", lambda *shape: asked.append(shape) or name)
    weight = torch.randn(24, 40).t() if is_transposed else torch.randn(40, 24)
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(product(x, weight), F.linear(x, weight))
    assert asked == [(10, 24, 40, is_transposed)]
