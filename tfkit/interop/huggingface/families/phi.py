"""Phi 1 to 3 (2023, 2024), GLM, and decoders with an ungated feed-forward, such as StarCoder 2 and Nemotron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.gemma import TANH
from tfkit.interop.huggingface.families.gpt_neo import GROUPED
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    BIASES,
    CHECKPOINT,
    ENDS,
    LAYER,
    NORMS,
    PLAIN,
    Llama,
    attention_rules,
    end_rules,
    feedforward_rules,
    heads_of,
    norm_rules,
    sandwich_rules,
    stretched_by,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.settings import ACTIVATIONS, SLIDING, Rope, Setting, Switch, amended
from tfkit.interop.huggingface.tensors import Rule

BASE = merged(Llama.base, {"layer.feedforward": {"type": "mlp", "bias": False}})
QKV = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
GATE_UP = tuple(f"{LAYER}.feedforward.{name}.{{kind}}" for name in ("gate", "up"))
DROPOUTS = (Setting("resid_pdrop", "layer.dropout", 0.0), Setting("embd_pdrop", "embedding.dropout", 0.0))


@register("family", "phi3")
class Phi3(Llama):
    """Phi-3: Llama with one matrix for query, key and value, another for gate and up; a window in all layers."""

    heads = heads_of("Phi3")
    settings = amended(
        Llama.settings,
        DROPOUTS[0],
        without=("head_dim", "attention_bias", "mlp_bias"),
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    )
    rules = (
        *ENDS,
        *NORMS,
        Rule(f"{CHECKPOINT}.self_attn.qkv_proj.{{kind}}", QKV),
        Rule(f"{CHECKPOINT}.self_attn.o_proj.{{kind}}", f"{LAYER}.attention.output.{{kind}}"),
        Rule(f"{CHECKPOINT}.mlp.gate_up_proj.{{kind}}", GATE_UP),
        *feedforward_rules(down="down_proj"),
    )
    rope, period = Rope(partial=True), (SLIDING,)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_positions(config, layers)
        rope = config["rope_parameters"]
        length = rope.get("original_max_position_embeddings")
        config["original_max_position_embeddings"] = length or config["max_position_embeddings"]
        if rope["rope_type"] != "default":  # transformers 4 accepts three keys, and computes the attention factor
            older = {"type": rope["rope_type"], **{key: rope.get(key) for key in ("short_factor", "long_factor")}}
            same = older["type"] == "longrope" and cls.rope.read(config, rope | older) == cls.rope.read(config)
            config |= {"rope_scaling": older} if same else {"rope_scaling": None, "transformers_version": "5.0.0"}


BIASED = merged(BASE, {"layer.norm.type": "layer_norm", "layer.attention.bias": True, "layer.feedforward.bias": True})


@register("family", "phi")
class Phi(Llama):
    """Phi 1 and 2: parallel attention and feed-forward after one norm, all biases, rotation of half of each head."""

    base = merged(BIASED, {"layer.residual.type": "parallel"})
    heads = {"PhiForCausalLM": {"head": {"type": "language_model", "bias": True}}, "PhiModel": {"head": "none"}}
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        Switch("qk_layernorm", "layer.attention.qk_norm", False),
        *DROPOUTS,
        without=("head_dim", "attention_bias", "mlp_bias", "rms_norm_eps"),
        hidden_act="gelu_new",
    )
    rules = (
        *end_rules("final_layernorm"),
        Rule(f"{CHECKPOINT}.input_layernorm.{{kind}}", f"{LAYER}.norm.{{kind}}"),
        *attention_rules("dense", ("q_layernorm", "k_layernorm")),
        *feedforward_rules(up="fc1", down="fc2"),
    )
    rope = Rope(fraction=0.5, partial=True)


@register("family", "persimmon")
class Persimmon(Llama):
    """Persimmon (Adept 2023): layer norms, also of queries and keys, squared ReLU, rotation of half of each head."""

    base = BIASED
    heads = heads_of("Persimmon")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        Switch("qk_layernorm", "layer.attention.qk_norm", True),
        Setting("hidden_dropout", "layer.dropout", 0.0),
        without=("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "rms_norm_eps"),
        max_position_embeddings=16384,
        hidden_act="relu2",
    )
    rules = (
        *(*end_rules("final_layernorm"), *NORMS, *attention_rules("dense", ("q_layernorm", "k_layernorm"))[3:]),
        Rule(f"{CHECKPOINT}.self_attn.query_key_value.{{kind}}", QKV, GROUPED, GROUPED),
        *feedforward_rules(up="dense_h_to_4h", down="dense_4h_to_h"),
    )
    rope = Rope(fraction=0.5, partial=True)


FEEDFORWARD = (Rule(f"{CHECKPOINT}.mlp.gate_up_proj.{{kind}}", GATE_UP), *feedforward_rules(down="down_proj"))


@register("family", "glm")
class Glm(Llama):
    """GLM-4: interleaved rotation of half of each head; query, key and value biases; gate and up in one matrix."""

    heads = heads_of("Glm")
    settings = amended(
        Llama.settings,
        Setting("attention_bias", "layer.attention.bias", True, BIASES),
        without=("mlp_bias",),
        max_position_embeddings=131072,
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=1.5625e-7,
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *FEEDFORWARD)
    rope = Rope(fraction=0.5, layout="interleaved", partial=True)


@register("family", "glm4")
class Glm4(Glm):
    """GLM-4-0414: GLM-4 with norms before and after each sublayer."""

    base = merged(Glm.base, {"layer.residual.type": "sandwich"})
    heads = heads_of("Glm4")
    rules = (
        *ENDS,
        *sandwich_rules("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        *ATTENTION,
        *FEEDFORWARD,
    )


SQUARED = Setting("hidden_act", "layer.feedforward.activation", "relu2", ACTIVATIONS)
RULES = (*ENDS, *NORMS, *ATTENTION, *PLAIN)


@register("family", "arcee")
class Arcee(Llama):
    """AFM 4.5B (Arcee 2025): Llama with a squared ReLU and no gate."""

    base = BASE
    heads = heads_of("Arcee")
    settings = amended(Llama.settings, SQUARED, max_position_embeddings=4096, rms_norm_eps=1e-5)
    rules = RULES


@register("family", "apertus")
class Apertus(Llama):
    """Apertus (Swiss AI 2025): xIELU, norms of queries and keys, rotary scaling of Llama 3.1."""

    base = merged(BASE, {"layer.attention.qk_norm": True})
    heads = heads_of("Apertus")
    settings = amended(
        Llama.settings,
        without=("head_dim", "mlp_bias"),
        max_position_embeddings=65536,
        hidden_act="xielu",
        rms_norm_eps=1e-5,
    )
    rules = (
        *ENDS,
        *norm_rules(attention_norm="attention_layernorm", feedforward_norm="feedforward_layernorm"),
        *ATTENTION,
        *PLAIN,
        Rule(f"{CHECKPOINT}.mlp.act_fn.alpha_p", f"{LAYER}.feedforward.activation.positive"),
        Rule(f"{CHECKPOINT}.mlp.act_fn.alpha_n", f"{LAYER}.feedforward.activation.negative"),
    )
    # beta and eps are constants; "beta" would be mistaken for an old suffix of bias
    ignored = (*Llama.ignored, *(f"{CHECKPOINT}.mlp.act_fn.{name}" for name in ("beta", "bias", "eps")))
    rope = Rope(theta=12000000.0)
    stretched = stretched_by(8.0, 12000000.0)

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
    """Nemotron 4 (Parmar et al. 2024): layer norms with weights offset by 1, squared ReLU, rotation of half a head."""

    base = merged(BASE, {"layer.norm": {"type": "layer_norm", "weight_offset": 1.0}})
    heads = heads_of("Nemotron")
    settings = amended(
        Llama.settings,
        Setting("norm_eps", "layer.norm.eps", 1e-5),
        SQUARED,
        without=("rms_norm_eps",),
        max_position_embeddings=4096,
        initializer_range=0.0134,
    )
    rules = RULES
    rope = Rope(fraction=0.5, partial=True)


@register("family", "jais2")
class Jais2(Llama):
    """Jais 2 (Inception 2025): layer norms, all biases, squared ReLU."""

    base = merged(BASE, {"layer.norm.type": "layer_norm"})
    heads = heads_of("Jais2")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        SQUARED,
        without=("rms_norm_eps",),
        max_position_embeddings=8192,
        attention_bias=True,
        mlp_bias=True,
    )
    rules = RULES


@register("family", "starcoder2")
class StarCoder2(Llama):
    """StarCoder 2 (Lozhkov et al. 2024): layer norms, biases, GELU, a window in all layers, a tied head."""

    base = merged(BASE, {"layer.norm.type": "layer_norm"})
    heads = heads_of("Starcoder2")
    settings = amended(
        Llama.settings,
        Setting("hidden_act", "layer.feedforward.activation", "gelu_pytorch_tanh", TANH),
        Setting("norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("use_bias", ("layer.attention.bias", "layer.feedforward.bias"), True),
        Setting("residual_dropout", "layer.dropout", 0.0),
        Setting("embedding_dropout", "embedding.dropout", 0.0),
        without=("head_dim", "attention_bias", "mlp_bias", "rms_norm_eps"),
        max_position_embeddings=4096,
        num_key_value_heads=2,
        initializer_range=0.018042,
    )
    rules = (*ENDS, *NORMS, *ATTENTION, *feedforward_rules(up="c_fc", down="c_proj"))
    period, ties = (SLIDING,), True
