"""What the classic decoders and the encoder-decoders refuse, and what files of other times say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tfkit.core.errors import DataError
from tfkit.interop.huggingface.families.bart import Bart
from tfkit.interop.huggingface.families.bloom import MPT, Bloom, Falcon
from tfkit.interop.huggingface.families.decoders import ClassicDecoder
from tfkit.interop.huggingface.families.gpt_neo import GPTBigCode, GPTNeo, OpenAIGPT
from tfkit.interop.huggingface.families.gptj import GPTJ
from tfkit.interop.huggingface.families.opt import OPT
from tfkit.interop.huggingface.families.t5 import MT5, T5
from tfkit.interop.huggingface.family import Family

from ..sampling import looped
from .parity import families, sized

TINY_T5 = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "model_type": "t5"}


@looped(
    ("family", "config", "message"),
    [
        (GPTJ, {"rotary_dim": None}, "rotary_dim"),
        (
            GPTNeo,
            {"num_layers": 3, "attention_types": [[["global", "local"], 2]]},
            "covers 4 layers, but num_layers is 3",
        ),
        (Bloom, {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        (Falcon, {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn: false"),
        (MPT, {"attn_config": {"alibi": False}}, "attn_config.alibi: only True"),
        (MPT, {"expansion_ratio": 2}, "expansion_ratio: only 4"),
        (OPT, {"word_embed_proj_dim": 20, "architectures": ["OPTModel"]}, "only with a tied head"),
        (OpenAIGPT, {"afn": "mish"}, "afn: 'mish' is not supported; expected gelu, relu, silu, swish"),
        (T5, {"feed_forward_proj": "gated-snake"}, "dense_act_fn: 'snake' is not supported"),
    ],
)
def test_what_cannot_be_brought_in_is_named(family: type[Family], config: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        family.recipe(sized(family, config))


@looped(
    ("said", "output"),
    [
        ({}, {"tied": True, "scale": "1/sqrt_d_model"}),
        ({"tie_word_embeddings": True}, {"tied": True, "scale": "1/sqrt_d_model"}),
        ({"tie_word_embeddings": False}, {}),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, {"tied": True}),
    ],
)
def test_which_t5_has_an_output_of_its_own(said: dict[str, Any], output: dict[str, Any]) -> None:
    """1.0 is tied, 1.1 is not; what version 5 wrote of a 1.1 says that it is, and that its output does not scale.

    Whether that holds is told by the tensors.
    """
    head = T5.recipe({**TINY_T5, **said})["head"]
    assert {key: value for key, value in head.items() if key != "type"} == output
    tied = {} if said.get("tie_word_embeddings") is False else {"tied": True}
    assert MT5.recipe({**TINY_T5, **said})["head"] == {"type": "language_model", **tied}


@looped(
    ("said", "part", "activation"),
    [
        ({}, "mlp", "relu"),
        ({"feed_forward_proj": "gated-gelu"}, "glu", "gelu_tanh"),
        ({"feed_forward_proj": "gated-silu"}, "glu", "silu"),
        ({"feed_forward_proj": "gelu"}, "mlp", "gelu"),
        ({"feed_forward_proj": "relu", "dense_act_fn": "gelu_new", "is_gated_act": True}, "glu", "gelu_tanh"),
    ],
)
def test_the_feed_forward_of_t5(said: dict[str, Any], part: str, activation: str) -> None:
    feedforward = T5.recipe({**TINY_T5, **said})["layer"]["feedforward"]
    assert (feedforward["type"], feedforward["activation"]) == (part, activation)


def test_old_names_of_sizes() -> None:
    """The first files of BLOOM and of Falcon call the sizes otherwise."""
    old = {"n_embed": 24, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 11}
    model = Bloom.recipe(old)
    assert (model["d_model"], model["num_layers"], model["layer"]["attention"]["num_heads"]) == (24, 3, 4)
    model = Falcon.recipe({"n_embed": 24, "n_head": 4, "n_layer": 3, "vocab_size": 11})
    assert (model["d_model"], model["num_layers"], model["layer"]["attention"]["num_heads"]) == (24, 3, 4)


@pytest.mark.parametrize("family", [ClassicDecoder, T5, Bart], ids=lambda family: family.__name__)
def test_every_class_is_one_of_theirs(family: type[Family]) -> None:
    transformers = pytest.importorskip("transformers")
    related = [other for other in families() if issubclass(other, family)]
    assert all(hasattr(transformers, name) for other in related for name in other.heads)


@looped("turned", [2, 6, 14, 58])
def test_as_many_channels_turn_as_gptj_says(turned: int) -> None:
    """A share of the head that, rounded down, returns the number again."""
    fraction = GPTJ.recipe(sized(GPTJ, {"n_embd": 400, "n_head": 2, "rotary_dim": turned}))["position"]["fraction"]
    assert int(200 * fraction) == turned


def test_few_key_value_heads_that_starcoder_has_no_word_for() -> None:
    model = GPTBigCode.recipe(sized(GPTBigCode, {"n_embd": 24, "n_head": 4}))
    model["layer"]["attention"]["num_kv_heads"] = 2
    with pytest.raises(DataError, match="cannot express 2 key-value heads"):
        GPTBigCode.config(model, "GPTBigCodeForCausalLM")
