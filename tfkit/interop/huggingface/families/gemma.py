"""Gemma to Gemma 3 (2024, 2025), VaultGemma, T5Gemma, Cohere's Command R and StableLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.llama import (
    ATTENTION,
    BIASES,
    CHECKPOINT,
    ENDS,
    GATED,
    LAYER,
    NORMS,
    ByType,
    Llama,
    attention_rules,
    head_width,
    heads_of,
    norm_rules,
    sandwich_rules,
)
from tfkit.interop.huggingface.family import Family, merged, override, value_of
from tfkit.interop.huggingface.settings import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    ConfigJson,
    Factor,
    Fixed,
    Power,
    Rope,
    Setting,
    amended,
    first,
    with_values,
)
from tfkit.interop.huggingface.tensors import Rule

TANH = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}  # if a value has several names, export writes the first
FIRST_WORDS = {**TANH, "gelu": "gelu_tanh"}  # early Gemma files write gelu but mean gelu_tanh


@register("family", "gemma")
class Gemma(Llama):
    """Gemma: embeddings scaled by sqrt(d_model), norm weights offset by 1, GEGLU, a tied head."""

    base = merged(
        Llama.base,
        {
            "embedding.scale": "sqrt_d_model",
            "layer.norm.weight_offset": 1.0,
            "layer.feedforward.activation": "gelu_tanh",
        },
    )
    heads = heads_of("Gemma")
    settings = amended(
        Llama.settings,
        Setting("hidden_act", "layer.feedforward.activation", "gelu_pytorch_tanh", FIRST_WORDS),
        without=("mlp_bias",),
        max_position_embeddings=8192,
        num_key_value_heads=16,
        head_dim=256,
    )
    fixed: ClassVar[tuple[Fixed, ...]] = (Fixed("use_bidirectional_attention", (None, False)),)
    ties = True


@register("family", "gemma2")
class Gemma2(Gemma):
    """Gemma 2: norms before and after each sublayer, soft-capped scores and logits, a window in every other layer."""

    base = merged(Gemma.base, {"layer.residual.type": "sandwich"})
    heads = heads_of("Gemma2")
    settings = amended(
        Gemma.settings,
        Setting("hidden_activation", "layer.feedforward.activation", "gelu_pytorch_tanh", TANH),
        Power("query_pre_attn_scalar", "layer.attention.scale", 256, power=-0.5),
        Setting("attn_logit_softcapping", "layer.attention.softcap", 50.0),
        without=("hidden_act",),
        num_key_value_heads=4,
    )
    head_settings = (Setting("final_logit_softcapping", "head.softcap", 30.0),)
    rules = (
        *ENDS,
        *sandwich_rules("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
        *ATTENTION,
        *GATED,
    )
    listed, period, window = True, (SLIDING, FULL), 4096

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        if config["query_pre_attn_scalar"] is None:
            config["query_pre_attn_scalar"] = head_width(model)


@register("family", "vaultgemma")
class VaultGemma(Gemma2):
    """VaultGemma: pre-norm Gemma 2, trained with differential privacy."""

    base = Gemma.base
    heads = heads_of("VaultGemma")
    rules = (
        *ENDS,
        *norm_rules(attention_norm="input_layernorm", feedforward_norm="pre_feedforward_layernorm"),
        *ATTENTION,
        *GATED,
    )
    fixed = ()


@register("family", "gemma3")
class Gemma3(ByType, Gemma2):
    """Gemma 3, text model: query and key norms, five windowed layers per full layer, a theta for each layer type."""

    model_types = ("gemma3_text",)
    base = merged(Gemma2.base, {"layer.attention.qk_norm": True})
    heads = {"Gemma3ForCausalLM": {"head": {"type": "language_model"}}, "Gemma3TextModel": {"head": "none"}}
    settings = amended(Gemma2.settings, without=("attn_logit_softcapping",), max_position_embeddings=131072)
    fixed = (*Gemma2.fixed, Fixed("attn_logit_softcapping", (None,)))  # ignored by the implementation
    head_settings = (Setting("final_logit_softcapping", "head.softcap", None),)
    rope, local, thetas = Rope(theta=1000000.0), Rope(), {SLIDING: "rope_local_base_freq"}

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 6)


def every(config: ConfigJson, default: int) -> tuple[str, ...]:
    """Return one period of layer types: `sliding_window_pattern` layers, all windowed except the last."""
    count = int(first(config.get("sliding_window_pattern"), default))
    return (*[SLIDING] * (count - 1), FULL)


OWN, T5GEMMA_CHECKPOINT = "{side}.layers.{layer}", "{side}.layers.{layer}"
PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"}
SUBLAYERS = {"self_attn": "attention", "cross_attn": "cross_attention", "feedforward": "feedforward"}
DROPOUTS = ("layer.dropout", "layer.feedforward.dropout", "embedding.dropout", "final_dropout")


@register("family", "t5gemma")
class T5Gemma(Family):
    """T5Gemma: Gemma 2's layers on both sides, with cross-attention in the decoder."""

    base = {"type": "encoder_decoder", "encoder": {}, "decoder": {}, "init": {"type": "normal"}}
    heads: ClassVar[Mapping[str, ModelSection]] = {
        "T5GemmaForConditionalGeneration": {"head": {"type": "language_model"}}
    }
    rules = (
        Rule("{side}.embed_tokens.weight", "{side}.embedding.tokens.weight"),
        *(
            Rule(f"{T5GEMMA_CHECKPOINT}.{checkpoint}.{name}.{{kind}}", f"{OWN}.{own}.{projection}.{{kind}}")
            for checkpoint, own in list(SUBLAYERS.items())[:2]
            for name, projection in PROJECTIONS.items()
        ),
        *(
            Rule(f"{T5GEMMA_CHECKPOINT}.mlp.{name}_proj.{{kind}}", f"{OWN}.feedforward.{name}.{{kind}}")
            for name in ("gate", "up", "down")
        ),
        *(
            Rule(f"{T5GEMMA_CHECKPOINT}.{when}_{checkpoint}_layernorm.weight", f"{OWN}.{own}_{norm}.weight")
            for checkpoint, own in SUBLAYERS.items()
            for when, norm in (("pre", "norm"), ("post", "output_norm"))
        ),
        Rule("{side}.norm.weight", "{side}.final_norm.weight"),
        Rule("lm_head.out_proj.weight", "head.output.weight"),
    )
    prefix, unprefixed = "model.", ("lm_head.",)
    tied = {"lm_head.out_proj.weight": "decoder.embed_tokens.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        for side in ("encoder", "decoder"):
            if not isinstance(config.get(side), Mapping):
                raise DataError(f"config.json: {side} is required")
            ties = config.get("tie_word_embeddings", True)
            more = {"tie_word_embeddings": ties, "architectures": ["Gemma2ForCausalLM"]}
            stack = Gemma2.recipe(with_values(more, config[side]))
            head, model["init"] = stack.pop("head"), stack.pop("init")
            del stack["type"]
            override(stack, {"layer.attention.dropout": config.get("attention_dropout", 0.0)})
            for key in DROPOUTS:
                override(stack, {key: config.get("dropout_rate", 0.0)})
            model[side] = stack
        model["head"] = head
        _scale_windows(model["encoder"], 2)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        for side in ("encoder", "decoder"):
            stack = {**model[side], "type": "decoder", "head": model["head"], "init": model["init"]}
            if side == "encoder":
                _scale_windows(stack, 0.5)
            config[side] = {**Gemma2.config(stack, "Gemma2ForCausalLM"), "model_type": "t5_gemma_module"}
            del config[side]["architectures"]
        config["vocab_size"] = config["decoder"]["vocab_size"]
        config["tie_word_embeddings"] = config["decoder"]["tie_word_embeddings"]
        config["attention_dropout"] = config["decoder"]["attention_dropout"]
        config["dropout_rate"] = model["decoder"]["final_dropout"]


def _scale_windows(stack: Tree, factor: float) -> None:
    """Scale the window sizes: config.json counts one side of an encoder's window, tfkit counts both."""
    if "layers" in stack:
        stack["layers"] = {name: _scaled(kind, factor) for name, kind in stack["layers"].items()}
    stack["layer"] = _scaled(stack["layer"], factor)


def _scaled(layer: Tree, factor: float) -> Tree:
    mask = layer.get("mask")
    return layer if not mask else {**layer, "mask": {**mask, "size": int(mask["size"] * factor)}}


@register("family", "cohere")
class Cohere(Llama):
    """Command R: parallel attention and feed-forward after one bias-free norm, interleaved rotation, scaled logits."""

    base = merged(Llama.base, {"layer.residual.type": "parallel", "layer.norm": {"type": "layer_norm", "bias": False}})
    heads = heads_of("Cohere")
    settings = amended(
        Llama.settings,
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        without=("head_dim", "mlp_bias", "rms_norm_eps"),
        max_position_embeddings=8192,
    )
    head_settings: ClassVar[tuple[Setting, ...]] = (Factor("logit_scale", "head.scale", 0.0625),)
    rules = (
        *ENDS,
        Rule(f"{CHECKPOINT}.input_layernorm.weight", f"{LAYER}.norm.weight"),
        *attention_rules(norms=()),
        *(
            Rule(
                f"{CHECKPOINT}.self_attn.{checkpoint}.weight",
                f"{LAYER}.attention.{own}.weight",
                "number dim -> (number dim)",
            )
            for checkpoint, own in (("q_norm", "query_norm"), ("k_norm", "key_norm"))
        ),
        *GATED,
    )
    rope, ties = Rope(theta=500000.0, layout="interleaved"), True

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if config.get("use_qk_norm", False):
            each_head(model)
        super().to_recipe(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["use_qk_norm"] = value_of(model, "layer.attention.qk_norm") is not None


@register("family", "cohere2")
class Cohere2(Cohere):
    """Command R7B: three windowed rotary layers for each full layer without positions."""

    heads = heads_of("Cohere2")
    rope = Rope(layout="interleaved")
    listed, window = True, 4096
    period: ClassVar[tuple[str, ...]] = (SLIDING, SLIDING, SLIDING, FULL)

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        return every(config, 4)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return super().position(config, name) if name == SLIDING else None

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        del config["use_qk_norm"]


def each_head(model: Tree) -> None:
    """Add query and key norms with separate weights per head, expressed as group norms over all heads."""
    width = model["d_model"] // model["layer"]["attention"]["num_heads"]
    norm = {"type": model["layer"]["norm"]["type"], "bias": False, "group_size": width}
    override(model, {"layer.attention": {"qk_norm": norm, "qk_norm_at": "width"}})


JOINED = ("", "(number dim) -> number dim")  # norm weights of all heads in one tensor
PARALLEL = Rule(f"{CHECKPOINT}.input_layernorm.{{kind}}", f"{LAYER}.norm.{{kind}}")


@register("family", "stablelm")
class StableLM(Llama):
    """StableLM 2: layer norms, rotation of a quarter of each head, optional norms for each head."""

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
