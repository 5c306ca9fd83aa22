"""Phi 1 and 2 (Gunasekar et al. 2023, Li et al. 2023) and Phi-3 (Abdin et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import (
    CHECKPOINT,
    ENDS,
    LAYER,
    NORMS,
    Llama,
    attention_rules,
    end_rules,
    feedforward_rules,
    heads_of,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import Setting, Switch, amended
from tfkit.interop.huggingface.tensors import Rule

QKV = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
GATE_UP = tuple(f"{LAYER}.feedforward.{name}.{{kind}}" for name in ("gate", "up"))
DROPOUTS = (
    Setting("resid_pdrop", "layer.dropout", 0.0),
    Setting("embd_pdrop", "embedding.dropout", 0.0),
)


@register("family", "phi3")
class Phi3(Llama):
    """Phi-3: Llama with one matrix for query, key and value, another for gate and up; a window in all layers."""

    model_types = ("phi3",)
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


@register("family", "phi")
class Phi(Llama):
    """Phi 1 and 2: parallel attention and feed-forward after one norm, all biases, rotation of half of each head."""

    model_types = ("phi",)
    base = merged(
        Llama.base,
        {
            "layer": {
                "residual": {"type": "parallel"},
                "norm": {"type": "layer_norm"},
                "attention": {"bias": True},
                "feedforward": {"type": "mlp", "bias": True},
            }
        },
    )
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
