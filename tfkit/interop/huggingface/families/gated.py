"""Llama variants that settings distinguish: ERNIE 4.5, Helium, Seed-OSS, Hunyuan, CWM, BitNet, nanochat, InternLM 3."""

from __future__ import annotations

from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    BIASES,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    Llama,
    attention_rules,
    feedforward_rules,
    heads_of,
    stretched_by,
)
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, amended
from tfkit.interop.huggingface.tensors import Rule


@register("family", "ernie4_5")
class Ernie45(Llama):
    """ERNIE 4.5 (Baidu 2025), dense: interleaved rotation, one flag for all biases."""

    heads = heads_of("Ernie4_5")
    settings = amended(
        Llama.settings,
        Setting("use_bias", ("layer.attention.bias", "layer.feedforward.bias"), False),
        without=("attention_bias", "mlp_bias", "attention_dropout"),
        max_position_embeddings=131072,
        num_key_value_heads=2,
        head_dim=128,
        rms_norm_eps=1e-5,
    )
    rope, ties = Rope(theta=500000.0, layout="interleaved"), True


@register("family", "helium")
class Helium(Llama):
    """Helium (Kyutai 2025): interleaved rotation."""

    heads = heads_of("Helium")
    settings = amended(
        Llama.settings,
        Setting("attention_bias", "layer.attention.bias", False, BIASES),
        max_position_embeddings=4096,
        num_key_value_heads=20,
        head_dim=128,
        rms_norm_eps=1e-8,
    )
    rope = Rope(theta=100000.0, layout="interleaved")

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
            raise DataError("config.json cannot express heads whose combined width differs from hidden_size")


@register("family", "seed_oss")
class SeedOSS(Llama):
    """Seed-OSS (ByteDance 2025): one flag for query, key and value biases, another for the output bias."""

    heads = heads_of("SeedOss")
    settings = amended(
        Llama.settings,
        Setting("residual_dropout", "layer.dropout", 0.1),
        without=("attention_bias",),
        max_position_embeddings=524288,
        num_key_value_heads=8,
        head_dim=128,
        attention_dropout=0.1,
    )

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        inputs = config.get("attention_bias", True)
        names = ["query", "key", "value"] if inputs else []
        names += ["output"] if config.get("attention_out_bias", False) else []
        override(model, {"layer.attention.bias": names})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        names = model["layer"]["attention"]["bias"]
        config["attention_bias"] = "query" in names
        config["attention_out_bias"] = "output" in names


@register("family", "hunyuan_v1_dense")
class HunYuanDense(Llama):
    """Hunyuan (Tencent 2025), dense: norms of rotated queries and keys, a larger theta for long texts."""

    base = merged(Llama.base, {"layer.attention": {"qk_norm": True, "qk_norm_at": "rotated"}})
    heads = heads_of("HunYuanDenseV1")
    settings = amended(Llama.settings, without=("mlp_bias",), rms_norm_eps=1e-5)
    rules = (*ENDS, *NORMS, *attention_rules(norms=("query_layernorm", "key_layernorm")), *GATED)
    rope = Rope(alpha=True)


@register("family", "cwm")
class CWM(Llama):
    """Code World Model (Meta FAIR 2025): Llama 3 with a window in three of four layers."""

    heads = heads_of("Cwm")
    settings = amended(
        Llama.settings,
        without=("attention_bias",),
        max_position_embeddings=131072,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
    )
    rope = Rope(theta=1000000.0)
    stretched = stretched_by(16.0, 1000000.0)
    listed, period, window = True, (FULL, SLIDING, SLIDING, SLIDING), 8192


@register("family", "bitnet")
class BitNet(Llama):
    """BitNet b1.58 (Ma et al. 2025), weights not packed: norms before the output and down projections, squared ReLU."""

    base = merged(Llama.base, {"layer": {"attention": {"output_norm": True}, "feedforward": {"inner_norm": True}}})
    heads = heads_of("BitNet")
    settings = amended(
        Llama.settings, without=("head_dim", "mlp_bias"), num_key_value_heads=5, hidden_act="relu2", rms_norm_eps=1e-5
    )
    rules = (
        *Llama.rules,
        Rule(f"{CHECKPOINT}.self_attn.attn_sub_norm.weight", f"{LAYER}.attention.output_norm.weight"),
        Rule(f"{CHECKPOINT}.mlp.ffn_sub_norm.weight", f"{LAYER}.feedforward.inner_norm.weight"),
    )
    rope = Rope(theta=500000.0)


@register("family", "nanochat")
class NanoChat(Llama):
    """nanochat (Karpathy 2025): norms without weights, also of embeddings, queries and keys; clockwise rotation."""

    base = merged(
        HunYuanDense.base,
        {"embedding.norm": True, "layer.norm.affine": False, "layer.feedforward": {"type": "mlp", "bias": False}},
    )
    heads = heads_of("NanoChat")
    settings = amended(Llama.settings, without=("head_dim", "mlp_bias"), hidden_act="relu2")
    head_settings = (Setting("final_logit_softcapping", "head.softcap", 15.0),)
    rules = (*ENDS, *attention_rules(), *feedforward_rules(up="fc1", down="fc2"))
    rope = Rope(clockwise=True)


@register("family", "internlm3")
class InternLM3(Llama):
    """InternLM 3 (Shanghai AI Laboratory 2025): Llama under another name."""

    heads = {**heads_of("Llama"), "InternLM3ForCausalLM": {"head": {"type": "language_model"}}}
    settings = amended(
        Llama.settings, max_position_embeddings=32768, num_key_value_heads=2, head_dim=128, rms_norm_eps=1e-5
    )


@register("family", "iquestcoder")
class IQuestCoder(Llama):
    """IQuest-Coder (IQuestLab 2026): Llama under another name."""

    heads = {**heads_of("Llama"), "IQuestCoderForCausalLM": {"head": {"type": "language_model"}}}
    settings = amended(
        Llama.settings, max_position_embeddings=131072, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-5
    )
    # the implementation rejects other values
    fixed = (Fixed("clip_qkv", (None,)), Fixed("use_sliding_window", (False, None)))
