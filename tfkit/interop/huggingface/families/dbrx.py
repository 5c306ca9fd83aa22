"""DBRX (Databricks 2024)."""

from __future__ import annotations

from typing import Any

from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.llama import LAYER, heads_of
from tfkit.interop.huggingface.families.sparse import BASE, FEEDFORWARD, STACKS, Sparse
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, look
from tfkit.interop.huggingface.tensors import Rule

BLOCK = "blocks.{layer}"
ATTENTION = f"{BLOCK}.norm_attn_norm"
# common key -> DBRX key
OWN = {
    "max_position_embeddings": "max_seq_len",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
}
ROWS = "(expert inner) width -> expert inner width"  # all experts stacked along the rows


@register("family", "dbrx")
class Dbrx(Sparse):
    """DBRX: 16 experts, 4 per token; layer norms without biases; clipped queries, keys and values."""

    model_types = ("dbrx",)
    base = merged(BASE, {"layer.norm": {"type": "layer_norm", "bias": False}})
    heads = heads_of("Dbrx")
    settings = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048, also=(OWN["max_position_embeddings"],)),
        Setting("hidden_size", "d_model", also=(OWN["hidden_size"],)),
        Setting("num_hidden_layers", "num_layers", also=(OWN["num_hidden_layers"],)),
        Setting("num_attention_heads", "layer.attention.num_heads", also=(OWN["num_attention_heads"],)),
        Setting("attn_config.kv_n_heads", "layer.attention.num_kv_heads", 1),
        Setting("attn_config.clip_qkv", "layer.attention.clip", None),
        Setting("attn_config.attn_pdrop", "layer.attention.dropout", 0.0),
        Setting("resid_pdrop", "layer.dropout", 0.0),
        Setting("emb_pdrop", "embedding.dropout", 0.0),
        Setting("ffn_config.moe_num_experts", "layer.feedforward.num_experts", 4),
        Setting("ffn_config.moe_top_k", "layer.feedforward.num_active", 1),
        Setting("ffn_config.ffn_hidden_size", "layer.feedforward.expert.d_ff"),
        Setting("ffn_config.ffn_act_fn.name", "layer.feedforward.expert.activation", "silu", ACTIVATIONS),
        Setting("initializer_range", "init.std", 0.02),
    )
    derived = ("num_key_value_heads", "ffn_config.hidden_size")
    fixed = (Fixed("ffn_config.moe_jitter_eps", (None, 0, 0.0)),)
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{ATTENTION}.norm_1.weight", f"{LAYER}.attention_norm.weight"),
        Rule(
            f"{ATTENTION}.attn.Wqkv.weight",
            tuple(f"{LAYER}.attention.{name}.weight" for name in ("query", "key", "value")),
        ),
        Rule(f"{ATTENTION}.attn.out_proj.weight", f"{LAYER}.attention.output.weight"),
        Rule(f"{ATTENTION}.norm_2.weight", f"{LAYER}.feedforward_norm.weight"),
        Rule(f"{BLOCK}.ffn.router.layer.weight", f"{FEEDFORWARD}.router.projection.weight"),
        Rule(f"{BLOCK}.ffn.experts.mlp.w1", f"{STACKS}.gate.weight", ROWS),
        Rule(f"{BLOCK}.ffn.experts.mlp.v1", f"{STACKS}.up.weight", ROWS),
        Rule(f"{BLOCK}.ffn.experts.mlp.w2", f"{STACKS}.down.weight", "(expert inner) out -> expert out inner"),
        Rule("norm_f.weight", "decoder.final_norm.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix = "transformer."
    tied = {"lm_head.weight": "wte.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        power = look(config, "ffn_config.moe_normalize_expert_weights", 1.0)
        if power not in (None, 1):
            raise DataError(f"config.json: moe_normalize_expert_weights: only none or 1 is supported, got {power}")
        override(model, {"layer.feedforward.router.normalized": power is not None})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["attn_config"]["rope_theta"] = value_of(model, "position.theta")
        normalized = value_of(model, "layer.feedforward.router.normalized")
        for common, own in OWN.items():
            config[own] = config.pop(common)
        config["ffn_config"]["moe_normalize_expert_weights"] = 1.0 if normalized else None

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        theta = look(config, "attn_config.rope_theta")  # used by DBRX's published files
        return cls.rope.read(config if look(config, "rope_parameters") or theta is None else {"rope_theta": theta})
