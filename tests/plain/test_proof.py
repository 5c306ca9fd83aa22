"""What a printed model is proven with: its inputs, a small version of its recipe, and the comparison."""

import pytest
import torch

from tfkit.core.errors import UsageError
from tfkit.models.build import build_model, weights_of
from tfkit.plain.inputs import Unprintable, chosen, tensors
from tfkit.plain.proof import prove
from tfkit.plain.smaller import smaller
from tfkit.recipe.load import load_recipe

from ..sampling import each, shares
from ..shipped import MODELS, shipped

LAYER = {"residual": "pre_norm", "norm": "layer_norm", "feedforward": {"type": "mlp", "d_ff": 32}}
MODEL = {"type": "decoder", "d_model": 16, "num_layers": 1, "vocab_size": 61, "embedding": "tokens", "layer": LAYER}
TEXT = """
import torch.nn.functional as F
from torch import nn
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        mlp = nn.ModuleDict({"up": nn.Linear(16, 32), "down": nn.Linear(32, 16)})
        layer = {"feedforward": mlp, "feedforward_norm": nn.LayerNorm(16)}
        self.decoder = nn.ModuleDict({"final_norm": nn.LayerNorm(16), "layers": nn.ModuleList([nn.ModuleDict(layer)])})
        self.decoder["embedding"] = nn.ModuleDict({"tokens": nn.Embedding(61, 16)})
    def forward(self, input_ids):
        x, layer = self.decoder["embedding"]["tokens"](input_ids), self.decoder["layers"][0]
        x = x + layer["feedforward"]["down"](F.relu(layer["feedforward"]["up"](layer["feedforward_norm"](x))))
        return self.decoder["final_norm"](x)
"""


@pytest.mark.parametrize("names", shares(MODELS, 32))
def test_every_model_has_a_small_version_that_runs(names: list[str]) -> None:
    def check(name: str) -> None:
        small = smaller(shipped(name))
        assert small is not None
        blueprint = small.blueprint()
        assert weights_of(blueprint) < 4_000_000
        build_model(blueprint, "meta")(**tensors(blueprint, chosen(blueprint), 2, 11, 13, "meta"))

    each(names, check)


def test_more_inputs_are_chosen_by_name() -> None:
    assert chosen(shipped("t5-small").blueprint()) == ["input_ids", "attention_mask", "decoder_input_ids"]
    assert chosen(shipped("gpt2").blueprint(), ["segment_ids"]) == ["input_ids", "segment_ids"]
    with pytest.raises(UsageError, match="no input 'attention_mask'; available: input_ids, token_type_ids, "):
        chosen(shipped("fnet-base").blueprint(), ["attention_mask"])


def test_a_text_is_compared_with_its_model() -> None:
    blueprint, state = load_recipe({"tfkit": 1, "model": MODEL}).blueprint(), torch.get_rng_state()
    prove(blueprint, TEXT, "Decoder", ["input_ids"])
    assert torch.equal(torch.get_rng_state(), state)
    wrong = [
        ("F.relu", "F.gelu", "computes something else as printed"),
        ('"down": nn', '"other": nn', "has other weights"),
        ("(input_ids)", "(input_ids).detach()", "something else"),
        ("(input_ids)", "(ids)", "fails for 2 x 11"),
    ]
    for old, new, message in wrong:
        with pytest.raises(Unprintable, match=message):
            prove(blueprint, TEXT.replace(old, new), "Decoder", ["input_ids"])
