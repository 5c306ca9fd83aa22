"""GPT-NeoX (Black et al. 2022), Pythia, GPT-2 (Radford et al. 2019), and OPT, XGLM and BioGPT from fairseq."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.gpt_neo import (
    GROUPED,
    INNER,
    LAYER,
    QKV,
    SIZES,
    TRANSPOSED,
    ClassicDecoder,
    heads_of,
    named,
)
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import (
    ACTIVATIONS,
    ConfigJson,
    Fixed,
    Rope,
    Setting,
    Switch,
    amended,
    layers_of,
    look,
    set_kinds,
    sizes,
)
from tfkit.interop.huggingface.tensors import Rule, read_only

CHECKPOINT = "layers.{layer}"
FEEDFORWARD = named(f"{CHECKPOINT}.mlp", feedforward__up="dense_h_to_4h", feedforward__down="dense_4h_to_h")
NORMS = named(CHECKPOINT, attention_norm="input_layernorm", feedforward_norm="post_attention_layernorm")


def attention_rules(name: str) -> tuple[Rule, ...]:
    """Return the rules for the fused query, key and value matrix and the output."""
    qkv = Rule(f"{CHECKPOINT}.{name}.query_key_value.{{kind}}", QKV, GROUPED, GROUPED)
    return (qkv, *named(f"{CHECKPOINT}.{name}", attention__output="dense"))


@register("family", "gpt_neox")
class GPTNeoX(ClassicDecoder):
    """GPT-NeoX: parallel attention and feed-forward with separate norms; rotation of a quarter of each head."""

    varying = ("layer.residual",)
    base: ClassVar = merged(
        ClassicDecoder.base, {"position": {"type": "rotary"}, "layer": {"residual": {"type": "parallel_two_norms"}}}
    )
    heads: ClassVar = heads_of("GPTNeoX")
    settings: ClassVar[tuple[Setting, ...]] = (
        *sizes(),
        Setting("intermediate_size", INNER),
        Setting("hidden_act", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("hidden_dropout", ("layer.dropout", "embedding.dropout"), 0.0),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("attention_bias", "layer.attention.bias", True),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.02),
    )
    rules = (
        Rule("embed_in.weight", "decoder.embedding.tokens.weight"),
        *attention_rules("attention"),
        *FEEDFORWARD,
        *NORMS,
        Rule("final_layer_norm.{kind}", "decoder.final_norm.{kind}"),
        Rule("embed_out.weight", "head.output.weight"),
        *read_only(Rule("lm_head.weight", "head.output.weight")),
    )
    prefix, unprefixed = "gpt_neox.", ("embed_out.", "lm_head.")
    tied: ClassVar = dict.fromkeys(("embed_out.weight", "lm_head.weight"), "embed_in.weight")
    ignored = tuple(f"layers.{{layer}}.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))
    ties = False
    rope: ClassVar[Rope] = Rope(fraction=0.25, partial=True)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["position"] = cls.rope.read(config)
        if not cls.side_by_side(config):
            override(model, {"layer.residual.type": "pre_norm"})

    @classmethod
    def side_by_side(cls, config: ConfigJson) -> bool:
        """True if attention and feed-forward are computed in parallel from the same input."""
        return bool(config.get("use_parallel_residual", True))

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["rope_parameters"] = rope = cls.rope.write(model["position"], config)
        config["rotary_emb_base"], config["rotary_pct"] = rope["rope_theta"], rope["partial_rotary_factor"]
        config["use_parallel_residual"] = look(model, "layer.residual.type") == "parallel_two_norms"


@register("family", "gpt_neox_japanese")
class GPTNeoXJapanese(GPTNeoX):
    """GPT-NeoX Japanese: sequential sublayers; the only bias is the attention output bias of the last layer."""

    base: ClassVar = merged(
        GPTNeoX.base,
        {"layer": {"residual": {"type": "pre_norm"}, "attention": {"bias": False}, "feedforward": {"bias": False}}},
    )
    heads: ClassVar = heads_of("GPTNeoXJapanese", classifies=False)
    settings = amended(
        GPTNeoX.settings,
        Setting("hidden_dropout", "layer.dropout", 0.0),
        without=("attention_bias", "intermediate_size"),
        attention_dropout=0.1,
    )
    rules = (Rule(f"{CHECKPOINT}.attention.dense_bias", f"{LAYER}.attention.output.bias"), *GPTNeoX.rules)
    prefix = "gpt_neox_japanese."
    ties, rope = True, Rope(partial=True)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {INNER: model["d_model"] * (config.get("intermediate_multiple_size") or 4)})
        super().to_recipe(model, config)
        kinds = ["inner"] * (model["num_layers"] - 1) + ["last"]
        set_kinds(model, kinds, {"last": {"attention": {"bias": ["output"]}}})

    @classmethod
    def side_by_side(cls, config: ConfigJson) -> bool:
        return False

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        del config["use_parallel_residual"]
        last = layers_of(model)[-1]
        config["intermediate_multiple_size"] = last["feedforward"]["d_ff"] // model["d_model"]


ATTENTION = {"attention__query": "q_proj", "attention__key": "k_proj", "attention__value": "v_proj"}


def body_rules(side: str = "") -> tuple[Rule, ...]:
    """Return the rules for tables and layers; `side` prefixes the checkpoint names."""
    layer = f"{side}layers.{{layer}}"
    return (
        Rule(f"{side}embed_tokens.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{side}embed_positions.weight", "decoder.position.0.table.weight"),
        *named(f"{layer}.self_attn", **ATTENTION, attention__output="out_proj"),
        *named(layer, attention_norm="self_attn_layer_norm", feedforward_norm="final_layer_norm"),
        *named(layer, feedforward__up="fc1", feedforward__down="fc2"),
    )


END = Rule("layer_norm.{kind}", "decoder.final_norm.{kind}")


@register("family", "opt")
class OPT(ClassicDecoder):
    """OPT: learned positions that skip padding; OPT-350M is post-norm with a narrow token table."""

    varying = ("layer.residual",)
    base: ClassVar = merged(ClassicDecoder.base, {"position": {"offset": 2, "skip_padding": True}})
    heads: ClassVar = heads_of("OPT")
    settings = (
        *sizes(),
        Setting("ffn_dim", INNER),
        Setting("activation_function", "layer.feedforward.activation", "relu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("enable_bias", ("layer.attention.bias", "layer.feedforward.bias"), True),
        Setting("layer_norm_elementwise_affine", "layer.norm.affine", True),
        Setting("init_std", "init.std", 0.02),
    )
    rules = (
        *body_rules("decoder."),
        Rule("decoder.project_in.weight", "decoder.embedding.projection.weight"),
        Rule("decoder.final_layer_norm.{kind}", "decoder.final_norm.{kind}"),
        Rule("decoder.project_out.weight", "head.projection.weight"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix, unprefixed = "model.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "decoder.embed_tokens.weight"}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        narrow = config.get("word_embed_proj_dim") or model["d_model"]
        if narrow != model["d_model"]:
            if not look(model, "head.tied"):
                raise DataError("config.json: word_embed_proj_dim is supported only with a tied head")
            model["embedding"] |= {"d_embedding": narrow, "project_tokens": True, "projection_bias": False}
        before, bare = config.get("do_layer_norm_before", True), config.get("_remove_final_layer_norm", False)
        if not before:
            override(model, {"layer.residual.type": "post_norm"})
        elif bare:
            model["final_norm"] = "none"

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        before = look(model, "layer.residual.type") == "pre_norm"
        config["do_layer_norm_before"] = before
        config["_remove_final_layer_norm"] = before and model["final_norm"] is None
        config["word_embed_proj_dim"] = model["embedding"]["d_embedding"] or model["d_model"]


@register("family", "xglm")
class XGLM(ClassicDecoder):
    """XGLM: sinusoidal positions that start at 2, embeddings scaled by sqrt(d_model)."""

    base: ClassVar = merged(
        ClassicDecoder.base,
        {"position": {"type": "sinusoidal", "layout": "halves", "spacing": "endpoints", "offset": 2}},
    )
    heads: ClassVar = heads_of("XGLM", classifies=False)
    settings = (
        *sizes(width="d_model", depth="num_layers", heads="attention_heads"),
        Setting("ffn_dim", INNER),
        Setting("activation_function", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
        Setting("activation_dropout", "layer.feedforward.dropout", 0.0),
        Setting("init_std", "init.std", 0.02),
        Switch("scale_embedding", "embedding.scale", True, on="sqrt_d_model"),
    )
    fixed = (Fixed("add_cross_attention", (False,)),)
    rules = (*body_rules(), END, Rule("lm_head.weight", "head.output.weight"))
    prefix, unprefixed = "model.", ("lm_head.",)
    tied: ClassVar = {"lm_head.weight": "embed_tokens.weight"}
    ignored = ("embed_positions.weights", "embed_positions.weight")


@register("family", "biogpt")
class BioGPT(ClassicDecoder):
    """BioGPT: learned positions that skip padding, embeddings scaled by sqrt(d_model)."""

    base: ClassVar = merged(ClassicDecoder.base, {"position": {"offset": 2, "skip_padding": True}})
    heads: ClassVar = heads_of("BioGpt")
    # the implementation ignores layer_norm_eps
    settings = (
        *sizes(longest=1024),
        Setting("intermediate_size", INNER),
        Setting("hidden_act", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("hidden_dropout_prob", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_probs_dropout_prob", "layer.attention.dropout", 0.1),
        Setting("activation_dropout", "layer.feedforward.dropout", 0.0),
        Setting("initializer_range", "init.std", 0.02),
        Switch("scale_embedding", "embedding.scale", True, on="sqrt_d_model"),
    )
    rules = (*body_rules(), END, Rule("output_projection.weight", "head.output.weight"))
    prefix, unprefixed = "biogpt.", ("output_projection.",)
    tied: ClassVar = {"output_projection.weight": "embed_tokens.weight"}


@register("family", "gpt2")
class GPT2(Family):
    """GPT-2: transposed weights; query, key and value in one matrix."""

    model_types = ("gpt2", "gpt-sw3")
    base = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": "learned",
        "layer": {
            "residual": "pre_norm",
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "scaled_residual"},
    }
    heads = {"GPT2LMHeadModel": {"head": {"type": "language_model"}}, "GPT2Model": {"head": "none"}}
    settings = (*SIZES, Setting("activation_function", "layer.feedforward.activation", "gelu_new", ACTIVATIONS))
    fixed = (Fixed("add_cross_attention", (False,)),)
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("wpe.weight", "decoder.position.0.table.weight"),
        Rule("h.{layer}.ln_1.{kind}", f"{LAYER}.attention_norm.{{kind}}"),
        Rule("h.{layer}.attn.c_attn.{kind}", QKV, "width slot -> slot width", "slot width -> slot width"),
        Rule("h.{layer}.attn.c_proj.{kind}", f"{LAYER}.attention.output.{{kind}}", TRANSPOSED),
        Rule("h.{layer}.ln_2.{kind}", f"{LAYER}.feedforward_norm.{{kind}}"),
        Rule("h.{layer}.mlp.c_fc.{kind}", f"{LAYER}.feedforward.up.{{kind}}", TRANSPOSED),
        Rule("h.{layer}.mlp.c_proj.{kind}", f"{LAYER}.feedforward.down.{{kind}}", TRANSPOSED),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    prefix, unprefixed = "transformer.", ("lm_head.",)
    tied = {"lm_head.weight": "wte.weight"}
    ignored = ("h.{layer}.attn.bias", "h.{layer}.attn.masked_bias")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.d_ff": config.get("n_inner") or 4 * model["d_model"]})
        if model["head"] is not None:
            override(model, {"head.tied": config.get("tie_word_embeddings", True)})
        scaled = config.get("scale_attn_weights", True)
        if config.get("scale_attn_by_inverse_layer_idx", False):
            whole = (model["d_model"] // look(model, "layer.attention.num_heads")) ** -0.5 if scaled else 1.0
            override(model, {"layer.attention.scale": {"per_layer": _by_depth(whole, model["num_layers"])}})
        elif not scaled:
            override(model, {"layer.attention.scale": 1.0})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        layers = layers_of(model)
        config["n_inner"] = layers[0]["feedforward"]["d_ff"]
        scales = [layer["attention"]["scale"] for layer in layers]
        by_depth = len(set(scales)) > 1
        config["scale_attn_by_inverse_layer_idx"] = by_depth
        config["scale_attn_weights"] = scales[0] != 1.0
        if by_depth and scales != _by_depth(scales[0], len(scales)):
            raise DataError("config.json can express attention scales per layer only as 1, 1/2, 1/3, ...")
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied"))


def _by_depth(first: float, count: int) -> list[float]:
    """Return the attention scale of each layer: the first layer's scale divided by the layer number."""
    return [first / number for number in range(1, count + 1)]
