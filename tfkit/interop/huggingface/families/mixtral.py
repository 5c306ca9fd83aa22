"""Mixtral (Jiang et al. 2024), and decoders that differ from it in a few settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import Tree
from tfkit.interop.huggingface.families.llama import ATTENTION, ENDS, GATED, NORMS, heads_of, norm_rules
from tfkit.interop.huggingface.families.sparse import (
    BASE,
    FEEDFORWARD,
    SHELL,
    SIGMOID,
    Sparse,
    expert_rules,
    expert_settings,
    selection_rules,
    shared_rules,
)
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.layer_types import SLIDING
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, amended, look
from tfkit.interop.huggingface.tensors import Rule

NORMALIZED = Setting("norm_topk_prob", "layer.feedforward.router.normalized", False)
NO_JITTER = Fixed("router_jitter_noise", (0.0, 0, None))
BY_NUMBER = expert_rules("block_sparse_moe", "w1", "w3", "w2")  # Mixtral's names of gate, up and down


@register("family", "mixtral")
class Mixtral(Sparse):
    """Mixtral: experts in every layer; a softmax over all experts, renormalized over the selected ones."""

    model_types = ("mixtral",)
    base = merged(BASE, {"layer.feedforward.router.normalized": True})
    heads = heads_of("Mixtral")
    settings = (
        *amended(SHELL, without=("attention_bias",), rms_norm_eps=1e-5),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    fixed = (NO_JITTER,)
    rules = (*ENDS, *NORMS, *ATTENTION, *BY_NUMBER)
    rope = Rope(theta=1000000.0)
    period = (SLIDING,)


class QwenMoe(Sparse):
    """Base of Qwen2-MoE and Qwen3-MoE: dense layers at regular intervals or listed."""

    fixed = (Fixed("use_sliding_window", (False,)),)
    derived = ("sliding_window", "max_window_layers", "layer_types")

    @classmethod
    def is_dense(cls, config: ConfigJson, layer: int) -> bool:
        named = config.get("mlp_only_layers") or ()
        return layer in named or (layer + 1) % int(config.get("decoder_sparse_step", 1)) != 0

    @classmethod
    def write_dense(cls, config: Tree, dense: Sequence[bool]) -> None:
        config["mlp_only_layers"] = [layer for layer, each in enumerate(dense) if each]
        config["decoder_sparse_step"] = 1


@register("family", "qwen2_moe")
class Qwen2Moe(QwenMoe):
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert; biases of queries, keys and values."""

    model_types = ("qwen2_moe",)
    base = merged(BASE, {"layer.feedforward": {"shared_expert": {"type": "glu"}, "shared_gate": True}})
    heads = heads_of("Qwen2Moe")
    settings = (
        *amended(
            SHELL,
            Setting("qkv_bias", "layer.attention.bias", True, {True: ["query", "key", "value"], False: False}),
            without=("head_dim", "attention_bias"),
        ),
        *expert_settings(),
        NORMALIZED,
        Setting("shared_expert_intermediate_size", "layer.feedforward.shared_expert.d_ff"),
    )
    rules = (
        *(*ENDS, *NORMS, *ATTENTION, *GATED, *expert_rules(), *shared_rules("shared_expert")),
        Rule("layers.{layer}.mlp.shared_expert_gate.weight", f"{FEEDFORWARD}.shared_gate.weight"),
    )


@register("family", "qwen3_moe")
class Qwen3Moe(QwenMoe):
    """Qwen3-MoE: per-head norms of queries and keys; many small experts, no shared expert."""

    model_types = ("qwen3_moe",)
    base = merged(BASE, {"layer.attention.qk_norm": True})
    heads = heads_of("Qwen3Moe")
    settings = (*SHELL, *expert_settings(), NORMALIZED)


@register("family", "olmoe")
class Olmoe(Sparse):
    """OLMoE: one norm of all query heads together, and one of all key heads."""

    model_types = ("olmoe",)
    base = merged(BASE, {"layer.attention": {"qk_norm": True, "qk_norm_at": "width"}})
    heads = heads_of("Olmoe")
    settings = (*amended(SHELL, without=("head_dim",)), *expert_settings(d_ff="intermediate_size"), NORMALIZED)
    fixed: ClassVar[tuple[Fixed, ...]] = (Fixed("clip_qkv", (None,)),)  # OLMoE clips after the norm, tfkit before it
    rules = (*ENDS, *NORMS, *ATTENTION, *expert_rules())


@register("family", "flex_olmo")
class FlexOlmo(Olmoe):
    """FlexOlmo: OLMoE with norms of the sublayer outputs."""

    model_types = ("flex_olmo",)
    base = merged(Olmoe.base, {"layer.residual": "branch_norm"})
    heads = heads_of("FlexOlmo")
    fixed = ()
    rules = (
        *(*ENDS, *ATTENTION, *expert_rules()),
        *norm_rules(attention_norm="post_attention_layernorm", feedforward_norm="post_feedforward_layernorm"),
    )
    rope = Rope(theta=500000.0)


@register("family", "minimax_m2")
class MiniMaxM2(Sparse):
    """MiniMax-M2: sigmoid scores with a selection bias, partial rotary positions, norms over all heads."""

    model_types = ("minimax_m2",)
    base = merged(
        BASE,
        {
            "layer": {
                "attention": {"qk_norm": True, "qk_norm_at": "width"},
                "feedforward": merged(SIGMOID, {"router.normalized": True}),
            }
        },
    )
    heads = heads_of("MiniMaxM2")
    settings = (
        *amended(SHELL, without=("attention_bias",)),
        *expert_settings("num_local_experts", d_ff="intermediate_size"),
    )
    fixed = (NO_JITTER,)
    rules = (*ENDS, *NORMS, *ATTENTION, *BY_NUMBER, *selection_rules("block_sparse_moe", "mlp", "mlp.gate"))
    rope = Rope(theta=5000000.0, partial=True)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> Any:
        position, turned = super().position(config, name), config.get("rotary_dim")
        fractions = (look(config, f"{at}partial_rotary_factor") for at in ("", "rope_parameters.", "rope_scaling."))
        if turned is not None and not any(fractions):  # published files state rotary channels instead
            heads = config["num_attention_heads"]
            position["fraction"] = turned / (config.get("head_dim") or config["hidden_size"] // heads)
        return position
