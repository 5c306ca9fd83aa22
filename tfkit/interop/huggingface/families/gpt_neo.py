"""Relatives of GPT-2: GPT, CTRL, GPT-Neo, GPTBigCode, GPT-J, CodeGen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import OF_TEXTS, read_classes, write_classes
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    ConfigJson,
    Fixed,
    Setting,
    amended,
    layers_of,
    look,
    set_kinds,
    sizes,
)
from tfkit.interop.huggingface.tensors import Rule

LAYER = "decoder.layers.{layer}"
QKV = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
# query, key and value heads interleaved by key-value group
GROUPED = "(group slot dim) width -> slot group dim width"
TRANSPOSED = "width out -> out width"
CLASSIFIER: Tree = {"type": "classifier", "pool": "last", "bias": False}
INNER = "layer.feedforward.d_ff"
# names and defaults of GPT-2
SIZES = (
    *sizes("n_positions", "n_embd", "n_layer", "n_head", longest=1024),
    Setting("resid_pdrop", "layer.dropout", 0.1),
    Setting("embd_pdrop", "embedding.dropout", 0.1),
    Setting("attn_pdrop", "layer.attention.dropout", 0.1),
    Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
    Setting("initializer_range", "init.std", 0.02),
)


def named(checkpoint: str, layout: str = "", **names: str) -> tuple[Rule, ...]:
    """Return rules for names in a layer: tfkit name (__ for a dot) = checkpoint name below `checkpoint`."""
    return tuple(
        Rule(f"{checkpoint}.{name}.{{kind}}", f"{LAYER}.{own.replace('__', '.')}.{{kind}}", layout)
        for own, name in names.items()
    )


def heads_of(
    name: str, head: str = "ForCausalLM", classifies: bool = True, **options: object
) -> dict[str, ModelSection]:
    """Return the model classes of a decoder: generation, headless, and text classification if `classifies`."""
    writes: dict[str, Mapping[str, object]] = {f"{name}{head}": {"head": {"type": "language_model", **options}}}
    both = {**writes, f"{name}Model": {"head": "none"}}
    return both | ({f"{name}ForSequenceClassification": {"head": CLASSIFIER}} if classifies else {})


class ClassicDecoder(Family):
    """Base of GPT-style decoders that are neither GPT-2 nor Llama."""

    base: ClassVar = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": {"type": "learned"},
        "layer": {
            "residual": {"type": "pre_norm"},
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "normal"},
    }
    prefix: ClassVar[str] = "transformer."
    unprefixed: ClassVar[tuple[str, ...]] = ("lm_head.",)
    tied: ClassVar[Mapping[str, str]] = {"lm_head.weight": "wte.weight"}
    ties: ClassVar[bool] = True  # default of tie_word_embeddings
    score: ClassVar[str] = "score.weight"  # checkpoint name of a classifier's output, without a prefix

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        rules = super().rules_of(blueprint)
        classifies = blueprint.head is not None and blueprint.head.part.part_name in OF_TEXTS
        return (Rule(cls.score, "head.output.weight"), *rules) if classifies else rules

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        return "" if name == cls.score else super().prefix_of(name, blueprint)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        if look(model, INNER) is None:
            override(model, {INNER: 4 * model["d_model"]})
        if look(model, "head.type") == "language_model":
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", cls.ties))})
        read_classes(model, config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", cls.ties))
        write_classes(config, model)


CHECKPOINT = "h.{layer}"
# in GPT's files, "gelu" is the tanh approximation
FIRST_WORDS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


@register("family", "openai_gpt")
class OpenAIGPT(ClassicDecoder):
    """GPT: post-norm, without a final norm."""

    model_types = ("openai-gpt",)
    base: ClassVar = merged(ClassicDecoder.base, {"layer.residual.type": "post_norm"})
    heads: ClassVar = heads_of("OpenAIGPT", "LMHeadModel")
    settings = amended(SIZES, Setting("afn", "layer.feedforward.activation", "gelu", FIRST_WORDS), n_positions=512)
    rules = (
        Rule("tokens_embed.weight", "decoder.embedding.tokens.weight"),
        Rule("positions_embed.weight", "decoder.position.0.table.weight"),
        Rule(f"{CHECKPOINT}.attn.c_attn.{{kind}}", QKV, "width slot -> slot width"),
        *named(CHECKPOINT, TRANSPOSED, feedforward__up="mlp.c_fc", feedforward__down="mlp.c_proj"),
        *named(CHECKPOINT, TRANSPOSED, attention__output="attn.c_proj"),
        *named(CHECKPOINT, attention_norm="ln_1", feedforward_norm="ln_2"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    tied: ClassVar = {"lm_head.weight": "tokens_embed.weight"}
    ignored = ("h.{layer}.attn.bias", "position_ids")

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        check_inner(model)


@register("family", "ctrl")
class CTRL(ClassicDecoder):
    """CTRL: sinusoidal positions, embeddings scaled by sqrt(d_model), an output bias."""

    base: ClassVar = merged(
        ClassicDecoder.base,
        {
            "embedding": {"scale": "sqrt_d_model"},
            "position": {"type": "sinusoidal", "layout": "halves"},
            "layer": {"norm": {"eps": 1e-6}, "feedforward": {"activation": "relu"}},
        },
    )
    heads: ClassVar = heads_of("CTRL", "LMHeadModel", bias=True)
    # layer_norm_epsilon applies only to the final norm
    settings = amended(SIZES, Setting("dff", INNER), without=("attn_pdrop", "layer_norm_epsilon"), n_positions=256)
    rules = (
        Rule("w.weight", "decoder.embedding.tokens.weight"),
        *named(
            f"{CHECKPOINT}.multi_head_attention",
            attention__query="Wq",
            attention__key="Wk",
            attention__value="Wv",
            attention__output="dense",
        ),
        *named(CHECKPOINT, feedforward__up="ffn.0", feedforward__down="ffn.2"),
        *named(CHECKPOINT, attention_norm="layernorm1", feedforward_norm="layernorm2"),
        Rule("layernorm.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.{kind}", "head.output.{kind}"),
    )
    tied: ClassVar = {"lm_head.weight": "w.weight"}
    score = "classifier.weight"

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        final = config.get("layer_norm_epsilon", 1e-6)
        if final != look(model, "layer.norm.eps"):
            model["final_norm"] = {"type": "layer_norm", "eps": final}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["layer_norm_epsilon"] = model["final_norm"]["eps"]


@register("family", "gpt_neo")
class GPTNeo(ClassicDecoder):
    """GPT-Neo: unscaled scores, a window in every other layer."""

    base: ClassVar = merged(ClassicDecoder.base, {"layer.attention": {"scale": 1.0, "bias": ["output"]}})
    heads: ClassVar = heads_of("GPTNeo")
    settings = (
        *sizes(depth="num_layers", heads="num_heads"),
        Setting("intermediate_size", INNER, None),
        Setting("activation_function", "layer.feedforward.activation", "gelu_new", ACTIVATIONS),
        Setting("resid_dropout", "layer.dropout", 0.0),
        Setting("embed_dropout", "embedding.dropout", 0.0),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-5),
        Setting("initializer_range", "init.std", 0.02),
    )
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("wpe.weight", "decoder.position.0.table.weight"),
        *named(
            f"{CHECKPOINT}.attn.attention",
            attention__query="q_proj",
            attention__key="k_proj",
            attention__value="v_proj",
            attention__output="out_proj",
        ),
        *named(CHECKPOINT, feedforward__up="mlp.c_fc", feedforward__down="mlp.c_proj"),
        *named(CHECKPOINT, attention_norm="ln_1", feedforward_norm="ln_2"),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    ignored = ("h.{layer}.attn.attention.bias", "h.{layer}.attn.attention.masked_bias")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        periods = config.get("attention_types") or [[["global", "local"], 12]]
        names = [name for period, count in periods for name in period * count]
        if config.get("attention_layers") not in (None, names):
            raise DataError("config.json: attention_types and attention_layers contradict each other")
        types = [SLIDING if name == "local" else FULL for name in names]
        if len(types) != model["num_layers"]:
            count = model["num_layers"]
            raise DataError(f"config.json: attention_types covers {len(types)} layers, but num_layers is {count}")
        window = {"mask": {"type": "window", "size": config.get("window_size", 256)}}
        set_kinds(model, types, {SLIDING: window, FULL: {}})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        masks = [layer["mask"] for layer in layers_of(model)]
        sizes = {mask["size"] for mask in masks if mask}
        if len(sizes) > 1:
            raise DataError("config.json cannot express windows of different sizes")
        config["attention_types"] = [[["local" if mask else "global" for mask in masks], 1]]
        config["window_size"] = next(iter(sizes), 256)


@register("family", "gpt_bigcode")
class GPTBigCode(ClassicDecoder):
    """SantaCoder and StarCoder: GPT-2 with multi-query attention."""

    base: ClassVar = ClassicDecoder.base
    heads: ClassVar = heads_of("GPTBigCode")
    settings = (
        *SIZES,
        Setting("n_inner", INNER, None),
        Setting("activation_function", "layer.feedforward.activation", "gelu_pytorch_tanh", ACTIVATIONS),
    )
    fixed = (Fixed("scale_attn_weights", (True,)), Fixed("add_cross_attention", (False,)))
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("wpe.weight", "decoder.position.0.table.weight"),
        Rule(f"{CHECKPOINT}.attn.c_attn.{{kind}}", QKV, GROUPED, GROUPED),
        *named(CHECKPOINT, attention__output="attn.c_proj", attention_norm="ln_1", feedforward_norm="ln_2"),
        *named(CHECKPOINT, feedforward__up="mlp.c_fc", feedforward__down="mlp.c_proj"),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.weight", "head.output.weight"),
    )
    ignored = ("h.{layer}.attn.bias", "h.{layer}.attn.masked_bias")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if config.get("multi_query", True):
            override(model, {"layer.attention.num_kv_heads": 1})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        groups = look(model, "layer.attention.num_kv_heads") or config["n_head"]
        if groups not in (1, config["n_head"]):
            raise DataError(f"config.json cannot express {groups} key-value heads; use 1 or num_heads")
        config["multi_query"] = groups == 1


def check_inner(model: ModelSection) -> None:
    """Raise DataError if the config cannot express the width of the feed-forward."""
    if look(model, INNER) != 4 * model["d_model"]:
        raise DataError("config.json cannot express a feed-forward width other than 4 * d_model")


@register("family", "gptj")
class GPTJ(ClassicDecoder):
    """GPT-J: parallel attention and feed-forward, partial rotary positions, an output bias."""

    base: ClassVar = merged(
        ClassicDecoder.base,
        {
            "position": {"type": "rotary", "layout": "interleaved"},
            "layer": {"residual": {"type": "parallel"}, "attention": {"bias": False}},
        },
    )
    heads: ClassVar = heads_of("GPTJ", bias=True)
    settings = amended(
        SIZES,
        Setting("n_inner", INNER, None),
        Setting("activation_function", "layer.feedforward.activation", "gelu_new", ACTIVATIONS),
        n_positions=2048,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    rules = (
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        *named(f"{CHECKPOINT}.attn", attention__query="q_proj", attention__key="k_proj", attention__value="v_proj"),
        *named(CHECKPOINT, norm="ln_1", feedforward__up="mlp.fc_in", feedforward__down="mlp.fc_out"),
        *named(CHECKPOINT, attention__output="attn.out_proj"),
        Rule("ln_f.{kind}", "decoder.final_norm.{kind}"),
        Rule("lm_head.{kind}", "head.output.{kind}"),
    )
    ignored: ClassVar = tuple(f"{CHECKPOINT}.attn.{name}" for name in ("bias", "masked_bias", "embed_positions"))
    ties = False

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        turned, dim = look(config, "rotary_dim", 64), model["d_model"] // look(model, "layer.attention.num_heads")
        if turned is None:
            raise DataError("config.json: rotary_dim is required")
        fraction = turned / dim
        fraction = fraction if int(dim * fraction) == turned else math.nextafter(fraction, 1)
        override(model, {"position.fraction": fraction})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["rotary_dim"] = int(config["n_embd"] // config["n_head"] * model["position"]["fraction"])


@register("family", "codegen")
class CodeGen(GPTJ):
    """CodeGen: GPT-J with queries, values and keys in one matrix, partitioned for four devices."""

    heads: ClassVar = heads_of("CodeGen", classifies=False, bias=True)
    rules = (
        *(
            rule
            for rule in GPTJ.rules
            if "_proj" not in rule.checkpoint_names[0] or "out_proj" in rule.checkpoint_names[0]
        ),
        Rule(
            f"{CHECKPOINT}.attn.qkv_proj.weight",
            tuple(f"{LAYER}.attention.{name}.weight" for name in ("query", "value", "key")),
            "(shard slot part) width -> (slot shard part) width",
        ),
    )
    sizes: ClassVar = {"shard": 4, "slot": 3}
    ignored = (*GPTJ.ignored, "h.{layer}.attn.causal_mask")
