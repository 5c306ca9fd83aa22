import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch import nn

import tfkit
from tfkit.components.norm import LayerNorm
from tfkit.core.component import Shape
from tfkit.core.errors import RecipeError, UsageError
from tfkit.core.registry import REGISTRY

from ..sampling import looped
from .small import RECIPE

SMALL = {**RECIPE["model"], "vocab_size": 32, "num_layers": 2, "head": {"type": "language_model", "tied": False}}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)
        self.norm = LayerNorm.Config().build(Shape(d_model=4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight


def make(kind, net, lr=0.1, /, **options):
    return REGISTRY.get("optimizer", kind).Config.model_validate(options).build().make(net, lr)


def names(net, group):
    ids = {id(p) for p in group["params"]}
    return {name for name, p in net.named_parameters() if id(p) in ids}


def test_norms_biases_and_vectors_do_not_decay():
    net = Net()
    decayed, spared = make("adamw", net).param_groups
    assert names(net, decayed) == {"table.weight", "inner.weight"} and decayed["weight_decay"] == 0.01
    assert names(net, spared) == {"inner.bias", "norm.weight", "norm.bias"} and spared["weight_decay"] == 0
    (both,) = make("adamw", net, decay_norms_and_biases=True).param_groups
    assert len(both["params"]) == 5 and both["weight_decay"] == 0.01


def test_a_norms_matrix_does_not_decay_either():
    net = Net()
    net.norm.weight = nn.Parameter(torch.ones(2, 2))
    assert "norm.weight" in names(net, make("adamw", net).param_groups[1])


def test_frozen_parameters_are_left_out_and_tied_ones_stand_once():
    net = Net()
    net.inner.requires_grad_(False)
    groups = make("adamw", net).param_groups
    assert set().union(*(names(net, group) for group in groups)) == {"table.weight", "norm.weight", "norm.bias"}
    assert sum(len(group["params"]) for group in groups) == 3
    net.requires_grad_(False)
    with pytest.raises(UsageError, match="every parameter is frozen"):
        make("adam", net)


def test_adam_is_the_papers():
    (group,) = make("adam", Net()).param_groups
    assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 and group["weight_decay"] == 0


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_fused_equals_the_formula(name):
    torch.manual_seed(0)
    weight, gradient = torch.randn(3, 3), torch.randn(3, 3)
    net = nn.Linear(3, 3, bias=False)
    net.weight.data = weight.clone()
    optimizer = make(name, net, betas=[0.9, 0.98], eps=1e-9)
    assert optimizer.param_groups[0]["fused"]
    decay = 0.01 if name == "adamw" else 0.0
    mean, square = torch.zeros(3, 3), torch.zeros(3, 3)
    for step in range(1, 4):
        net.weight.grad = gradient.clone()
        optimizer.step()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.98 * square + 0.02 * gradient**2
        weight = weight * (1 - 0.1 * decay)
        weight = weight - 0.1 * (mean / (1 - 0.9**step)) / ((square / (1 - 0.98**step)).sqrt() + 1e-9)
    torch.testing.assert_close(net.weight.data, weight)


def test_any_of_torch():
    net = Net()
    decayed, spared = make("torch", net, name="SGD", options={"momentum": 0.9, "weight_decay": 0.1}).param_groups
    assert decayed["momentum"] == 0.9 and decayed["weight_decay"] == 0.1 and spared["weight_decay"] == 0
    assert make("torch", net, name="RAdam", options={"betas": [0.8, 0.9]}).param_groups[0]["betas"] == (0.8, 0.9)
    assert isinstance(make("torch", net, name="Adafactor"), torch.optim.Adafactor)
    assert not make("torch", net, name="Adam", options={"foreach": True}).param_groups[0]["fused"]


def test_on_meta_it_is_not_fused():
    assert not make("adamw", Net().to("meta")).param_groups[0]["fused"]


@looped(
    ("options", "message"),
    [
        ({"name": "SDG"}, "no optimizer 'SDG'. Did you mean 'SGD'"),
        ({"name": "Optimizer"}, "no optimizer 'Optimizer'"),
        ({"name": "lr_scheduler"}, "no optimizer 'lr_scheduler'"),
        ({"name": "LBFGS"}, "LBFGS cannot be used: it evaluates the loss several times per step"),
        ({"name": "SparseAdam"}, "SparseAdam cannot be used: it requires sparse gradients"),
        ({"name": "SGD", "options": {"momentun": 0.9}}, "SGD has no option 'momentun'. Did you mean 'momentum'"),
        ({"name": "SGD", "options": {"zzz": 1}}, "SGD has no option 'zzz'. Available: momentum"),
        ({"name": "SGD", "options": {"lr": 0.9}}, "the learning rate is set by the schedule"),
        ({"name": "SGD", "options": {"params": []}}, "SGD has no option 'params'"),
        ({"name": "SGD", "options": {"momentum": -1}}, "SGD rejects its options: Invalid momentum"),
        ({"name": "Adam", "options": {"betas": 3}}, "Adam rejects its options"),
    ],
)
def test_what_torch_refuses(options, message):
    with pytest.raises(ValidationError, match=message):
        REGISTRY.get("optimizer", "torch").Config.model_validate(options)


@looped("options", [{"betas": [0.9]}, {"betas": [0.9, 1.0]}, {"eps": 0}, {"eps": "1e-8"}, {"lr": 0.1}])
def test_what_adam_refuses(options):
    with pytest.raises(ValidationError):
        REGISTRY.get("optimizer", "adamw").Config.model_validate(options)


def test_muon_takes_hidden_matrices_and_leaves_the_rest_to_adamw():
    model = tfkit.build({"tfkit": 1, "model": SMALL}, seed=0)
    optimizer = make("muon", model, adamw=["*attention.output*"])
    by = {name: group["by"] for group in optimizer.param_groups for name in names(model, group)}
    muon = {name for name, one in by.items() if one == "muon"}
    layers = {name for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2}
    assert muon == {name for name in layers if "attention.output" not in name} != set()
    assert by["decoder.embedding.tokens.weight"] == by["head.output.weight"] == "adamw"


def test_muon_equals_both_of_torch():
    model, other = (tfkit.build({"tfkit": 1, "model": SMALL}, seed=0).eval() for _ in range(2))
    optimizer = make("muon", model, 0.02)
    weights = dict(other.named_parameters())
    matrices = [p for name, p in weights.items() if ".layers." in name and p.dim() == 2]
    tables = [weights["decoder.embedding.tokens.weight"], weights["head.output.weight"]]
    vectors = [p for p in weights.values() if p.dim() < 2]
    pair = [
        torch.optim.Muon(matrices, lr=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [{"params": tables, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=0.02, betas=(0.9, 0.95), fused=True,
        ),
    ]  # fmt: skip
    for step in range(3):
        ids = torch.arange(16).view(2, 8) + step
        for net in (model, other):
            net.zero_grad()
            net(ids).logits.square().mean().backward()
        optimizer.step()
        for one in pair:
            one.step()
        if step == 0:  # a checkpoint goes on alike
            saved = optimizer.state_dict()
            optimizer = make("muon", model, 0.5)
            optimizer.load_state_dict(saved)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


STEPS = """
import sys, torch
from tests.training.test_optimizers import Net, make
from tfkit.training.optimizer import made
pair = [Net(), Net()]
pair[1].load_state_dict(pair[0].state_dict())
kinds = torch.optim.{0}, type(made(torch.optim.{0}, [{{'params': [torch.ones(2)]}}], 0.1, {{}}))
for kind, net in zip(kinds[::-1], pair):
    optimizer = kind(net.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        net.head(net.norm(net.inner(net.table(torch.arange(6) + step // 2)))).square().mean().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    print('torch._dynamo' in sys.modules)
assert all(torch.equal(*two) for two in zip(pair[0].parameters(), pair[1].parameters()))
"""


@pytest.mark.full
@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop"])
def test_steps_equal_those_of_torch_without_importing_dynamo(name):
    done = subprocess.run([sys.executable, "-c", STEPS.format(name)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


def test_muon_without_a_matrix_is_refused():
    model = tfkit.build({"tfkit": 1, "model": SMALL}, seed=0)
    with pytest.raises(UsageError, match="no hidden matrix is trained; use adamw"):
        make("muon", model, adamw=["*"])


def test_a_name_that_muon_does_not_find_has_a_place():
    recipe = {"tfkit": 1, "model": SMALL, "train": {"optimizer": {"type": "muon", "adamw": ["*atention*"]}}}
    with pytest.raises(RecipeError, match=r"train\.optimizer\.adamw: no hidden matrix matches \*atention\*"):
        tfkit.load_recipe(recipe).blueprint()


def test_a_rise_that_lasts_into_the_fall_has_a_place():
    train = {"steps": 100, "schedule": {"type": "warmup_stable_decay", "lr": 0.1, "warmup": 81}}
    with pytest.raises(RecipeError, match=r"train\.schedule\.warmup: the warmup of 81 steps overlaps"):
        tfkit.load_recipe("gpt2", overrides={"train": train}).blueprint()
