"""Residual layouts with streams: the shipped ones against their papers, own ones in few lines, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tfkit
from tfkit.cli import parts
from tfkit.components.residual import Branch, PreNorm, Residual
from tfkit.contracts.verify import verify
from tfkit.core.component import Shape
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.models import Model
from tfkit.models.build import build_model
from tfkit.recipe.load import load_recipe
from tfkit.reports.counts import count, count_parameters
from tfkit.reports.picture import picture
from tfkit.reports.show import as_data

from ..cli.typed import typed
from ..contracts.broken import Register
from ..sampling import looped
from ..training.small import small as trainable
from ..training.small import trained
from .small import small

IDS = torch.arange(10)[None] * 7 % 20
STATIC = {"type": "hyper_connections", "rate": 3, "dynamic": False}
SHIPPED: dict[str, Any] = {
    "static": STATIC,
    "dynamic": {**STATIC, "dynamic": True},
    "attention": "attention_residuals",
}


def recipe(residual: Any, **more: Any) -> dict[str, Any]:
    return small({"residual": residual, **more.pop("layer", {})}, **{"num_layers": 3, "position": "rotary", **more})


def made(residual: Any, noise: float = 0.3, **more: Any) -> Model:
    net = tfkit.build(recipe(residual, **more), seed=1).double().eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight += noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    return net


def agree(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def sublayers(net: Model) -> Iterable[tuple[nn.Module, str, Callable[[Tensor], Tensor]]]:
    """The layouts, names and functions Sublayer(Norm(x)) of all sublayers in order, without positions."""
    for layer in net.stack("decoder").layers:
        own: Any = layer

        def attention(x: Tensor, own: Any = own) -> Tensor:
            query, key, value = (
                part(x).unflatten(-1, (2, 4)).transpose(1, 2)
                for part in (own.attention.query, own.attention.key, own.attention.value)
            )
            scores = query @ key.mT / 2 + torch.full((10, 10), -torch.inf).triu(1)
            out: Tensor = own.attention.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
            return out

        def feedforward(x: Tensor, own: Any = own) -> Tensor:
            out: Tensor = own.feedforward.down(own.feedforward.up(x).relu())
            return out

        yield own.residual, "attention", lambda x, own=own, f=attention: f(own.attention_norm(x))
        yield own.residual, "feedforward", lambda x, own=own, f=feedforward: f(own.feedforward_norm(x))


def reference(net: Model, kind: str) -> Tensor:
    """The papers in plain torch: hyper-connections as one matrix per token and sublayer (eq. 2 and 10 to 13)."""
    x = net.get_parameter("decoder.embedding.tokens.weight")[IDS]
    if kind == "attention":
        past = [x]

        def mean(query: Tensor) -> Tensor:
            weights = [(query * v / (v.square().mean(-1, keepdim=True) + 2.0**-52).sqrt()).sum(-1) for v in past]
            shares = torch.stack(weights).softmax(0)
            return sum(share[..., None] * v for share, v in zip(shares, past, strict=True))  # type: ignore[return-value]

        for layout, name, f in sublayers(net):
            queries = dict(layout.named_parameters())
            past.append(f(mean(queries[f"queries.{name}"]) if len(past) > 1 else x))
        return net.stack("decoder").final_norm(mean(net.get_parameter("decoder.streams.queries.leave")))
    h = torch.stack([x] * 3, dim=-2)
    for layout, name, f in sublayers(net):
        own = {key.split(".")[-1]: one for key, one in layout.named_parameters() if f".{name}." in key}
        matrix = torch.zeros(1, 10, 4, 4, dtype=x.dtype)  # [[0, B], [A_m, A_r]]
        matrix[..., 0, 1:], matrix[..., 1:, 0], matrix[..., 1:, 1:] = own["write"], own["read"], own["mix"]
        if kind == "dynamic":
            normed = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            terms = (normed @ own["weight"].mT).tanh()
            matrix[..., 1:, :] = matrix[..., 1:, :] + own["scale"][0] * terms[..., :4]
            matrix[..., 0, 1:] = matrix[..., 0, 1:] + own["scale"][1] * terms[..., 4]
        widened = matrix[..., 1:, :].mT @ h  # what the sublayer reads, then the mixed streams
        h = matrix[..., :1, 1:].mT @ f(widened[..., 0, :])[..., None, :] + widened[..., 1:, :]
    return net.stack("decoder").final_norm(h.sum(-2))


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_papers_and_what_changes_nothing(kind: str) -> None:
    """The equations in plain torch; a cache, packing, padding and recomputation."""
    with torch.no_grad():
        net = made(SHIPPED[kind], position="none")
        agree(net(IDS).hidden, reference(net, kind))
    net = made(SHIPPED[kind])
    whole, state = net(IDS).logits, net.new_state()
    agree(torch.cat([net(piece, state=state).logits for piece in IDS.split((4, 1, 3, 2), dim=1)], dim=1), whole)
    both, places = torch.cat((IDS[:, :4], IDS), dim=1), torch.cat((torch.arange(4), torch.arange(10)))[None]
    second = (torch.arange(14) >= 4)[None].long()
    agree(net(both, segment_ids=second, position_ids=places).logits[:, 4:], whole)
    agree(net(both, attention_mask=second).logits[:, 4:], whole)
    gradients = []
    for net.stack("decoder").recompute in (0, 3):
        net.zero_grad()
        net.train()(IDS).logits.square().sum().backward()
        gradients.append([weight.grad for weight in net.parameters()])
    assert all(one is not None and torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    seen = net.eval()(IDS, observe={"hidden_states"}).observed
    streams = [3, 3, 3] if kind != "attention" else [3, 5, 7]
    assert [state.shape for state in seen.values()] == [(1, 10, number, 8) for number in streams]


@pytest.mark.full
@looped("residual", [STATIC, {**STATIC, "dynamic": True}])
def test_hyper_connections_start_as_pre_norm(residual: Any) -> None:
    exact = {"norm": {"type": "layer_norm", "eps": 1e-18}}
    one, other = (made(kind, noise=0, layer=exact, final_norm=True) for kind in (residual, "pre_norm"))
    agree(one(IDS).logits, other(IDS).logits)


def flops(net: Model) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        net(IDS)
    return counter.get_total_flops()


@pytest.mark.full
@looped("residual", [SHIPPED["dynamic"], SHIPPED["attention"]])
def test_counts_are_those_of_the_model(residual: Any) -> None:
    kinds = {"a": {}, "b": {"sublayers": ["attention", "feedforward", "attention"]}}
    for more in ({"layers": kinds, "pattern": ["b", "a"]}, {"layer": {"shared": True}}):
        net = made(residual, **more)
        counts = count(net.blueprint, length=10)
        number = sum(weight.numel() for weight in net.parameters())
        assert (counts.total.parameters, count_parameters(net.blueprint)) == (number, number)
        assert counts.total.flops_per_token == round(flops(net) / 10)
        rows = [row for row in as_data(net.blueprint, counts)["rows"] if "streams" in row]
        assert sum(row["times"] for row in rows) == 3
    assert any("streams: " in word for box in picture(net.blueprint).boxes() for word in box.text)


# --- own layouts


class Constrained(Residual):
    """Manifold-constrained hyper-connections: the mixing matrix is doubly stochastic (Xie et al. 2025, 2512.24880)."""

    class Config(Residual.Config):
        streams: int = 3
        rounds: int = 20

    final_norm = True

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        n, names = config.streams, shape.sublayers
        self.maps = nn.ModuleDict({name: nn.Linear(n * shape.d_model, n * (n + 2)) for name in names})
        self.scales = nn.ParameterDict({name: torch.full((3,), 0.01) for name in names})

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        n = self.config.streams
        for branch in branches:
            flat, linear = rearrange(x, "... streams d_model -> ... (streams d_model)"), self.maps[branch.name]
            terms = F.linear(F.rms_norm(flat, flat.shape[-1:]), linear.weight).split((n, n, n * n), dim=-1)
            parts = zip(terms, self.scales[branch.name], linear.bias.split((n, n, n * n)), strict=True)
            pre, post, mix = (term * scale + bias for term, scale, bias in parts)
            mix = rearrange(mix, "... (out streams) -> ... out streams", out=n)
            for _ in range(self.config.rounds):
                mix = mix - mix.logsumexp(-1, keepdim=True)
                mix = mix - mix.logsumexp(-2, keepdim=True)
            out = branch(branch.norm(einsum(pre.sigmoid(), x, "... streams, ... streams d_model -> ... d_model")))
            x = mix.exp() @ x + 2 * post.sigmoid()[..., None] * out[..., None, :]
        return x


class Dense(PreNorm):
    """Each layer reads a learned sum of the embedding and all earlier layers (DenseFormer, 2402.02622)."""

    class Config(PreNorm.Config):
        def added(self, sublayers: Any) -> int:
            return 1

    streams = 1

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        self.weights = nn.Parameter(F.one_hot(torch.tensor(shape.streams - 1), shape.streams).float())

    def forward(self, x: Tensor, branches: Iterable[Branch]) -> Tensor:
        out = super().forward(self.leave(x), branches)
        return torch.cat((x, out[:, :, None]), dim=2)

    def leave(self, x: Tensor) -> Tensor:
        return einsum(self.weights, x, "streams, batch time streams d_model -> batch time d_model")


OWN = {Constrained: 3 * (2 * 15 * 24 + 2 * 15 + 2 * 3), Dense: 1 + 2 + 3 + 4}


@pytest.mark.full
@pytest.mark.parametrize("part", OWN, ids=lambda part: part.__name__)
def test_own_layouts_are_short_and_keep_the_contracts(part: type[Residual], register: Register) -> None:
    assert len(inspect.getsource(part).splitlines()) <= 37  # and three lines of imports
    name = register("residual", part).part_name
    kept = ["built", "config", "shapes", "determinism", "gradients", "future", "padding", "packing", "cache"]
    report = verify(part, [*kept, "reorder", "copies", "saving", "meta"], options=False)
    assert report.holds, str(report)
    net, plain = made(name), made("pre_norm")
    assert sum(map(Tensor.numel, net.parameters())) - sum(map(Tensor.numel, plain.parameters())) == OWN[part]
    counts = count(net.blueprint, length=10)
    assert counts.total.flops_per_token == round(flops(net) / 10)


@pytest.fixture
def register() -> Iterable[Register]:
    entered: list[str] = []

    def enter(slot: str, part: Any) -> Any:
        made = REGISTRY.register(slot, f"streams_{part.__name__.lower()}")(part)
        entered.append(made.part_name)
        return made

    yield enter
    for name in entered:
        del REGISTRY.load("residual")[name]


# --- refusals and runs


@pytest.mark.full
def test_layouts_that_do_not_fit_are_refused(register: Register) -> None:
    class Twice(PreNorm):
        streams = 4

    class Wider(PreNorm):
        streams = 3

        def forward(self, x: Tensor, branches: Any) -> Tensor:
            return torch.cat((x, x), dim=2)

    names = [register("residual", part).part_name for part in (Twice, Wider)]
    mixed = [
        ("hyper_connections", "pre_norm", r"layer 1 \(residual 'pre_norm' with no streams\) does not fit layer 0"),
        ("pre_norm", STATIC, r"with 3 streams\) does not fit layer 0 \(residual 'pre_norm' with no streams, see "),
        (STATIC, {**STATIC, "rate": 2}, r"with 2 streams\) .* with 3 streams"),
        ("attention_residuals", {**STATIC, "rate": 1}, r"with 1 stream\) .* with 1 stream, .* entered and left alike"),
    ]
    for first, second, words in mixed:
        with pytest.raises(RecipeError, match=words):
            kinds = {"first": {"residual": first}, "second": {"residual": second}}
            load_recipe(recipe("pre_norm", layers=kinds, pattern=["first", "second"]))
    for second in ({**STATIC, "dynamic": True}, {"type": names[1]}):  # other weights, but the same ends
        load_recipe(recipe(STATIC, layers={"a": {}, "b": {"residual": second}}, pattern=["a", "b"]))
    broken = verify(REGISTRY.get("residual", names[1]), ["built", "shapes"], options=False)
    assert "in a decoder: the part maps [3, 7, 3, 16] to [3, 7, 6, 16]\n" in str(broken)
    with pytest.raises(UsageError, match="streams must be a number or None, got 'four'"):
        register("residual", type("Odd", (PreNorm,), {"streams": "four"}))
    with pytest.raises(UsageError, match="'hyper_connections' has streams, which only a model creates"):
        tfkit.part("residual", "hyper_connections", d_model=8)(torch.zeros(1, 2, 8), nn.Identity())


@pytest.mark.full
@looped("residual", ["hyper_connections", "attention_residuals"])
def test_a_run_trains_proves_writes_and_is_shown(
    residual: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)  # transformers takes seconds to import
    loaded = trainable(tmp_path, {"model.layer.residual": residual, "model.num_layers": 2, "model.final_norm": True})
    run = trained(loaded, tmp_path / residual)
    before = dict(build_model(run.model.blueprint).named_parameters())
    moved = {name for name, weight in run.model.named_parameters() if not torch.equal(weight, before[name])}
    assert {name for name in before if ".residual." in name or ".streams." in name} <= moved
    proofs = list(parts._promises(run))
    assert "cached = uncached" in {proof.name for proof in proofs} and all(proof.holds for proof in proofs), proofs
    assert len(run.generate("one two", 3)) == 1
    pupil = {"model.num_layers": 2, "train.teacher": {"run": str(run.folder), "hidden": {0: 1}}}
    with pytest.raises(tfkit.TfkitError, match="streams of a residual layout cannot be compared as hidden states"):
        trained(trainable(tmp_path, pupil), tmp_path / f"pupil of {residual}")
    shown = typed("show", run.folder)
    assert shown.exit_code == 0 and "streams: " in shown.output, shown.output
