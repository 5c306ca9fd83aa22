"""Decoders like Llama with a plain feed-forward: StarCoder 2, Nemotron, Arcee, Apertus, Jais 2."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    LAYER,
    NORMS,
    PLAIN,
    THEIRS,
    Llama,
    feedforward_rules,
    heads_of,
    norm_rules,
)
from tfkit.interop.huggingface.family import laid
from tfkit.interop.huggingface.layer_types import SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ACTIVATIONS, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

BASE = laid(Llama.base, {"layer": {"feedforward": {"type": "mlp", "bias": False}}})
TANH = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}  # the word that is written
SQUARED = Setting("hidden_act", "layer.feedforward.activation", "relu2", ACTIVATIONS)
RULES = (*ENDS, *NORMS, *ATTENTION, *PLAIN)


@register("family", "arcee")
class Arcee(Llama):
    """AFM 4.5B (Arcee 2025): a Llama with a squared ReLU and no gate."""

    model_types = ("arcee",)
    base = BASE
    heads = heads_of("Arcee")
    settings = amended(
        Llama.settings,
        Setting("max_position_embeddings", "max_length", 4096),
        Setting("hidden_size", "d_model", 2560),
        Setting("intermediate_size", "layer.feedforward.d_ff", 18432),
        Setting("rms_norm_eps", "layer.norm.eps", 1e-5),
        SQUARED,
    )
    rules = RULES


@register("family", "apertus")
class Apertus(Llama):
    """Apertus (Swiss AI 2025): xIELU, norms of queries and keys, rotary positions stretched as in Llama 3.1."""

    model_types = ("apertus",)
    base = laid(BASE, {"layer": {"attention": {"qk_norm": True}}})
    heads = heads_of("Apertus")
    settings = amended(
        Llama.settings,
        Setting("vocab_size", "vocab_size", 131072),
        Setting("max_position_embeddings", "max_length", 65536),
        Setting("intermediate_size", "layer.feedforward.d_ff", 14336),
        Setting("hidden_act", "layer.feedforward.activation", "xielu", ACTIVATIONS),
        Setting("rms_norm_eps", "layer.norm.eps", 1e-5),
        without=("head_dim", "mlp_bias"),
    )
    rules = (
        *ENDS,
        *norm_rules(attention_norm="attention_layernorm", feedforward_norm="feedforward_layernorm"),
        *ATTENTION,
        *PLAIN,
        Rule(f"{THEIRS}.mlp.act_fn.alpha_p", f"{LAYER}.feedforward.activation.positive"),
        Rule(f"{THEIRS}.mlp.act_fn.alpha_n", f"{LAYER}.feedforward.activation.negative"),
    )
    # two constants, the first called beta, which is taken for the old spelling of a bias
    ignored = (*Llama.ignored, *(f"{THEIRS}.mlp.act_fn.{name}" for name in ("beta", "bias", "eps")))
    rope = Rope(theta=12000000.0)
    stretched = {
        "rope_type": "llama3",
        "rope_theta": 12000000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        values = {"beta": 0.5, "eps": -1e-6}
        layers = range(blueprint.last.num_layers)
        return {
            f"layers.{layer}.mlp.act_fn.{name}": torch.tensor(value)
            for layer in layers
            for name, value in values.items()
        }


@register("family", "nemotron")
class Nemotron(Llama):
    """Nemotron 4 (Parmar et al. 2024): layer norms whose weight counts from 1, squared ReLU, half a head turns."""

    model_types = ("nemotron",)
    base = laid(BASE, {"layer": {"norm": {"type": "layer_norm", "weight_offset": 1.0}}})
    heads = heads_of("Nemotron")
    settings = amended(
        Llama.settings,
        Setting("vocab_size", "vocab_size", 256000),
        Setting("max_position_embeddings", "max_length", 4096),
        Setting("hidden_size", "d_model", 6144),
        Setting("num_attention_heads", "layer.attention.num_heads", 48),
        Setting("intermediate_size", "layer.feedforward.d_ff", 24576),
        Setting("norm_eps", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.0134),
        SQUARED,
        without=("rms_norm_eps",),
    )
    rules = RULES
    rope = Rope(fraction=0.5, partial=True)


@register("family", "jais2")
class Jais2(Llama):
    """Jais 2 (Inception 2025): layer norms, biases everywhere, squared ReLU."""

    model_types = ("jais2",)
    base = laid(BASE, {"layer": {"norm": {"type": "layer_norm"}}})
    heads = heads_of("Jais2")
    settings = amended(
        Llama.settings,
        Setting("vocab_size", "vocab_size", 150272),
        Setting("max_position_embeddings", "max_length", 8192),
        Setting("hidden_size", "d_model", 3328),
        Setting("num_attention_heads", "layer.attention.num_heads", 26),
        Setting("intermediate_size", "layer.feedforward.d_ff", 26624),
        Setting("attention_bias", "layer.attention.bias", True),
        Setting("mlp_bias", "layer.feedforward.bias", True),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        SQUARED,
        without=("rms_norm_eps",),
    )
    rules = RULES


@register("family", "starcoder2")
class StarCoder2(Llama):
    """StarCoder 2 (Lozhkov et al. 2024): layer norms, biases, GELU, a window in all layers, a tied head."""

    model_types = ("starcoder2",)
    base = laid(BASE, {"layer": {"norm": {"type": "layer_norm"}}})
    heads = heads_of("Starcoder2")
    settings = amended(
        Llama.settings,
        Setting("vocab_size", "vocab_size", 49152),
        Setting("max_position_embeddings", "max_length", 4096),
        Setting("hidden_size", "d_model", 3072),
        Setting("num_hidden_layers", "num_layers", 30),
        Setting("num_attention_heads", "layer.attention.num_heads", 24),
        Setting("num_key_value_heads", "layer.attention.num_kv_heads", 2),
        Setting("intermediate_size", "layer.feedforward.d_ff", 12288),
        Setting("hidden_act", "layer.feedforward.activation", "gelu_pytorch_tanh", TANH),
        Setting("norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.018042),
        Setting("use_bias", ("layer.attention.bias", "layer.feedforward.bias"), True),
        Setting("residual_dropout", "layer.dropout", 0.0),
        Setting("embedding_dropout", "embedding.dropout", 0.0),
        without=("head_dim", "attention_bias", "mlp_bias", "rms_norm_eps"),
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *feedforward_rules(up="c_fc", down="c_proj"))
    period, ties = (SLIDING,), True
