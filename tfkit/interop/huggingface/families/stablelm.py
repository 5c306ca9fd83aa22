"""StableLM 2 (Bellagente et al. 2024)."""

from __future__ import annotations

from tfkit.core.blueprint import Blueprint
from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.cohere import each_head
from tfkit.interop.huggingface.families.llama import (
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    Llama,
    attention_rules,
    heads_of,
)
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

JOINED = ("", "(number dim) -> number dim")  # norm weights of all heads in one tensor
PARALLEL = Rule(f"{CHECKPOINT}.input_layernorm.{{kind}}", f"{LAYER}.norm.{{kind}}")
BIASES = {True: ["query", "key", "value"], False: False}


@register("family", "stablelm")
class StableLM(Llama):
    """StableLM 2: layer norms, rotation of a quarter of each head, optional norms for each head."""

    model_types = ("stablelm",)
    varying = ("layer.residual",)
    base = merged(Llama.base, {"layer.norm.type": "layer_norm"})
    heads = heads_of("StableLm")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        Setting("hidden_dropout", "layer.dropout", 0.0),
        Setting("use_qkv_bias", "layer.attention.bias", False, BIASES),
        without=("head_dim", "attention_bias", "mlp_bias", "rms_norm_eps"),
        max_position_embeddings=4096,
        num_key_value_heads=32,
    )
    rules = (
        *ENDS,
        *NORMS,
        *attention_rules(norms=()),
        *(
            Rule(
                f"{CHECKPOINT}.self_attn.{checkpoint}.norms.{{head}}.weight", f"{LAYER}.attention.{own}.weight", *JOINED
            )
            for checkpoint, own in (("q_layernorm", "query_norm"), ("k_layernorm", "key_norm"))
        ),
        *GATED,
    )
    rope = Rope(fraction=0.25, partial=True)

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        parallel = blueprint.last.layers[0].residual.part.part_name == "parallel"
        return (*((PARALLEL,) * parallel), *super().rules_of(blueprint))

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("qk_layernorm", False):
            each_head(model)
        if config.get("use_parallel_residual", False):
            override(model, {"layer.residual.type": "parallel"})
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["qk_layernorm"] = value_of(model, "layer.attention.qk_norm") is not None
        config["use_parallel_residual"] = value_of(model, "layer.residual.type") == "parallel"
