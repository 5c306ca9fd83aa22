"""Llama (Touvron et al. 2023), and families that only settings distinguish: Qwen, SmolLM3, EuroBERT, DiffLlama."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.errors import DataError
from tfkit.core.output import some
from tfkit.core.registry import REGISTRY, register
from tfkit.interop.huggingface.family import Family, merged, override, value_of
from tfkit.interop.huggingface.settings import (
    ACTIVATIONS,
    FULL,
    SLIDING,
    ConfigJson,
    Rope,
    Setting,
    amended,
    first,
    layers_of,
    look,
    set_kinds,
    sizes,
)
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "decoder.layers.{layer}", "layers.{layer}"
BIASES = {True: ["query", "key", "value"], False: False}  # values of a flag that does not concern the output


def attention_rules(output: str = "o_proj", norms: Sequence[str] = ("q_norm", "k_norm")) -> tuple[Rule, ...]:
    """Return the rules for the four projections and, unless `norms` is empty, the query and key norms."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": output}
    names |= dict(zip(("query_norm", "key_norm"), norms, strict=False))
    return tuple(
        Rule(f"{CHECKPOINT}.self_attn.{checkpoint}.{{kind}}", f"{LAYER}.attention.{own}.{{kind}}")
        for own, checkpoint in names.items()
    )


def feedforward_rules(block: str = "mlp", /, **names: str) -> tuple[Rule, ...]:
    """Return the rules for the projections of the feed-forward `block`. `names`: tfkit name = checkpoint name."""
    return tuple(
        Rule(f"{CHECKPOINT}.{block}.{checkpoint}.{{kind}}", f"{LAYER}.feedforward.{own}.{{kind}}")
        for own, checkpoint in names.items()
    )


def norm_rules(**names: str) -> tuple[Rule, ...]:
    """Return the rules for a layer's norms. `names`: tfkit name = checkpoint name."""
    return tuple(
        Rule(f"{CHECKPOINT}.{checkpoint}.{{kind}}", f"{LAYER}.{own}.{{kind}}") for own, checkpoint in names.items()
    )


def sandwich_rules(attention_output: str, feedforward: str, feedforward_output: str) -> tuple[Rule, ...]:
    """Return the rules for norms before and after each sublayer, named by the arguments; the first: input_layernorm."""
    return norm_rules(
        attention_norm="input_layernorm",
        attention_output_norm=attention_output,
        feedforward_norm=feedforward,
        feedforward_output_norm=feedforward_output,
    )


def end_rules(norm: str = "norm") -> tuple[Rule, ...]:
    """Return the rules for the token table, the final norm and the head."""
    return (
        Rule("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        Rule(f"{norm}.{{kind}}", "decoder.final_norm.{kind}"),
        Rule("lm_head.{kind}", "head.output.{kind}"),
    )


def heads_of(name: str) -> dict[str, ModelSection]:
    """Return the classes of a decoder, with and without a language model head."""
    return {f"{name}ForCausalLM": {"head": {"type": "language_model"}}, f"{name}Model": {"head": "none"}}


def stretched_by(factor: float, theta: float) -> ConfigJson:
    """Return the rotary scaling of Llama 3.1 for texts longer than 8,192 tokens."""
    bounds = {"original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_type": "llama3", "rope_theta": theta, "factor": factor, **bounds}


ATTENTION = attention_rules()
GATED_NAMES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
GATED = feedforward_rules(**GATED_NAMES)
PLAIN = feedforward_rules(up="up_proj", down="down_proj")
NORMS = norm_rules(attention_norm="input_layernorm", feedforward_norm="post_attention_layernorm")
ENDS = end_rules()


@register("family", "llama")
class Llama(Family):
    """Llama: RMS norms, rotary positions, a gated feed-forward, few key-value heads, no biases.

    Similar families override class variables and methods for positions and layer types.
    """

    base: ClassVar[ModelSection] = {
        "type": "decoder",
        "embedding": {"type": "tokens"},
        "position": {"type": "rotary"},
        "layer": {
            "residual": {"type": "pre_norm"},
            "norm": {"type": "rms_norm"},
            "attention": {"type": "multi_head", "bias": False},
            "feedforward": {"type": "glu", "bias": False},
        },
        "init": {"type": "normal"},
    }
    heads: ClassVar[Mapping[str, ModelSection]] = heads_of("Llama")
    settings: ClassVar[tuple[Setting, ...]] = (
        *sizes(),
        Setting("num_key_value_heads", "layer.attention.num_kv_heads", None),
        Setting("head_dim", "layer.attention.head_dim", None),
        Setting("attention_bias", "layer.attention.bias", False),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("intermediate_size", "layer.feedforward.d_ff"),
        Setting("hidden_act", "layer.feedforward.activation", "silu", ACTIVATIONS),
        Setting("mlp_bias", "layer.feedforward.bias", False),
        Setting("rms_norm_eps", "layer.norm.eps", 1e-6),
        Setting("initializer_range", "init.std", 0.02),
    )
    rules: ClassVar[tuple[Rule, ...]] = (*ENDS, *NORMS, *ATTENTION, *GATED)
    prefix = "model."
    unprefixed: ClassVar[tuple[str, ...]] = ("lm_head.",)
    tied = {"lm_head.weight": "embed_tokens.weight"}
    ignored: ClassVar[tuple[str, ...]] = ("layers.{layer}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq")

    rope: ClassVar[Rope] = Rope()
    stretched: ClassVar[ConfigJson] = {}  # default of rope_parameters
    ties: ClassVar[bool] = False  # default of tie_word_embeddings
    period: ClassVar[tuple[str, ...]] = (FULL,)  # repeating layer types, if config.json does not list them
    once: ClassVar[int] = 0  # number of leading layers before the period starts
    listed: ClassVar[bool] = False  # True if config.json may list the layer types
    window: ClassVar[int | None] = None  # default of sliding_window

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        _leave_out_defaults(model)
        types = cls.types(config, model["num_layers"])
        positions = {name: cls.position(config, name) for name in dict.fromkeys(types)}
        model["position"] = positions.get(FULL) or next((part for part in positions.values() if part), None)
        kinds = {name: cls.over_layer(config, name) for name in positions}
        for name, position in positions.items():
            if position != model["position"]:
                kinds[name]["position"] = position
        set_kinds(model, types, kinds, cls.once)
        if model["head"] is not None:
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", cls.ties))})
            override(model, {row.keys[0]: row.read(config) for row in cls.head_settings})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        heads = config["num_attention_heads"]
        for key, value in (("num_key_value_heads", heads), ("head_dim", config["hidden_size"] // heads)):
            if key in config and config[key] is None:
                config[key] = value
        layers = layers_of(model)
        cls.write_types(config, layers)
        cls.write_positions(config, layers)
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", cls.ties))
        for row in cls.head_settings if model["head"] else ():
            config[row.config_key] = row.write(look(model, row.keys[0]))

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        """Return the layer types as the config names them. Raise DataError for unknown types."""
        if cls.listed and config.get("layer_types"):
            types = list(config["layer_types"])
        elif cls.period != (FULL,) and config.get("sliding_window", cls.window) is None:
            types = [FULL] * count
        else:
            period = cls.period_of(config)
            types = [period[index % len(period)] for index in range(count)]
        unknown = sorted(set(types) - {FULL, SLIDING})
        if unknown:
            raise DataError(f"config.json: layer_types: {unknown[0]!r} is not supported; expected {FULL}, {SLIDING}")
        return types

    @classmethod
    def period_of(cls, config: ConfigJson) -> tuple[str, ...]:
        """Return the repeating layer types, for a config that does not list them."""
        return cls.period

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        """Return the overrides of `layer` for a layer type, except its position."""
        size = config.get("sliding_window", cls.window)
        return {"mask": {"type": "window", "size": size}} if name == SLIDING else {}

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        """Return the position part or parts of a layer type, or None."""
        return cls.rope.read(config, look(config, "rope_parameters") or look(config, "rope_scaling") or cls.stretched)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        """Write the layer types and the window size. Raise DataError if the config cannot express them."""
        types = types_of(layers)
        sizes = {layer["mask"]["size"] for layer in layers if layer["mask"]}
        if len(sizes) > 1 or (sizes and cls.period == (FULL,) and not cls.listed):
            raise DataError(f"config.json cannot express windows of size {some(map(str, sorted(sizes)))}")
        if cls.listed:
            config["layer_types"] = types
        elif len(set(types)) > 1:
            raise DataError("config.json can express a window only for all layers or for none")
        if cls.listed or cls.period != (FULL,):
            # the implementation builds a window mask if layer types are listed, even if no layer is windowed
            config["sliding_window"] = next(iter(sizes), cls.window if cls.listed else None)

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        """Write the rotary settings of the first layer with positions, which all others must have for a match."""
        placed = [layer["position"] for layer in layers if layer["position"]]
        config["rope_parameters"] = cls.rope.write(placed[0], config)


class LocalTurns(Llama):
    """Base with rotary positions only in windowed layers; in all layers if none is windowed."""

    listed, window = True, 4096
    period: ClassVar[tuple[str, ...]] = (SLIDING, SLIDING, SLIDING, FULL)

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        still = name == FULL and config.get("sliding_window", cls.window) is not None
        return None if still else super().position(config, name)


def head_width(model: ModelSection) -> int:
    """Return the head width of a fully spelled-out model."""
    heads: int = value_of(model, "layer.attention.num_heads")
    return int(value_of(model, "layer.attention.head_dim") or value_of(model, "d_model") // heads)


def types_of(layers: Sequence[Tree]) -> list[str]:
    """Return the config.json layer types of spelled-out layers."""
    return [SLIDING if layer["mask"] else FULL for layer in layers]


def _leave_out_defaults(model: Tree) -> None:
    """Drop head counts and widths that equal the defaults; config files state them anyway."""
    attention = model["layer"]["attention"]
    if attention.get("num_kv_heads") == attention["num_heads"]:
        del attention["num_kv_heads"]
    optional = not REGISTRY.get("attention", attention["type"]).Config.model_fields["head_dim"].is_required()
    if optional and attention.get("head_dim") == model["d_model"] / attention["num_heads"]:
        del attention["head_dim"]


class ByType(Llama):
    """Base with rotary settings per layer type: rope_parameters has an entry for each type."""

    listed = True
    local: ClassVar[Rope] = Rope()  # rotary settings of windowed layers

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        rope = cls.rope if name == FULL else cls.local
        parameters = look(config, f"rope_parameters.{name}")
        if parameters is None:
            theta = first(config.get(cls.thetas.get(name, "rope_theta")), rope.theta)
            parameters = {"rope_theta": theta, **((look(config, "rope_scaling") or {}) if name in cls.scaled else {})}
        return rope.read(config, {"rope_theta": rope.theta, **parameters})

    @classmethod
    def write_positions(cls, config: Tree, layers: Sequence[Tree]) -> None:
        positions = {name: layer["position"] for name, layer in zip(types_of(layers), layers, strict=True)}
        any_one = next(iter(positions.values()))
        config["rope_parameters"] = {
            name: rope.write(positions.get(name, any_one), config)
            for name, rope in ((FULL, cls.rope), (SLIDING, cls.local))
        }


@register("family", "qwen2")
class Qwen2(Llama):
    """Qwen 2: Llama with query, key and value biases; the upper layers may have a window."""

    base = merged(Llama.base, {"layer.attention.bias": ["query", "key", "value"]})
    heads = heads_of("Qwen2")
    settings = amended(
        Llama.settings,
        without=("attention_bias", "mlp_bias", "head_dim"),
        max_position_embeddings=32768,
        num_key_value_heads=32,
    )
    listed, window = True, 4096

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        below, listed = config.get("max_window_layers", 28), config.get("layer_types")
        if not config.get("use_sliding_window", False) or config.get("sliding_window", cls.window) is None:
            return [FULL] * count
        if listed:
            return super().types(config, count)
        return [SLIDING if index >= below else FULL for index in range(count)]

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["use_sliding_window"] = SLIDING in config["layer_types"]


@register("family", "qwen3")
class Qwen3(Qwen2):
    """Qwen 3: query and key norms instead of biases."""

    base = merged(Llama.base, {"layer.attention.qk_norm": True})
    heads = heads_of("Qwen3")
    settings = amended(
        Qwen2.settings,
        Setting("head_dim", "layer.attention.head_dim", 128),
        Setting("attention_bias", "layer.attention.bias", False),
    )


UNPLACED = "_without_position"  # suffix of layer types without positions


@register("family", "smollm3")
class SmolLM3(Llama):
    """SmolLM 3: Llama without positions in every fourth layer; the others may have a window."""

    heads = heads_of("SmolLM3")
    settings = amended(Llama.settings, without=("head_dim",), max_position_embeddings=32768, num_key_value_heads=4)
    rope, ties, listed = Rope(theta=2000000.0), True, True

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        interval = config.get("no_rope_layer_interval", 4)
        turned = config.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(count)]
        wide = not config.get("use_sliding_window", False) or config.get("sliding_window") is None
        if wide:
            types = [FULL] * count
        elif config.get("layer_types"):
            types = super().types(config, count)
        else:
            types = [FULL if turns else SLIDING for turns in turned]
        return [name if turns else name + UNPLACED for name, turns in zip(types, turned, strict=False)]

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        return super().over_layer(config, name.removesuffix(UNPLACED))

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return None if name.endswith(UNPLACED) else super().position(config, name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["use_sliding_window"] = SLIDING in types_of(layers)
        config["no_rope_layers"] = [int(layer["position"] is not None) for layer in layers]


@register("family", "eurobert")
class EuroBert(Llama):
    """EuroBERT: a bidirectional Llama with a masked language model head."""

    base = merged(Llama.base, {"type": "encoder"})
    heads: ClassVar = {"EuroBertForMaskedLM": {"head": {"type": "language_model"}}, "EuroBertModel": {"head": "none"}}
    settings = amended(Llama.settings, max_position_embeddings=8192, rms_norm_eps=1e-5)
    rules = tuple(rule.of_side("encoder") for rule in Llama.rules)
    head_settings = (Setting("mlp_bias", "head.bias", False),)


VECTORS = {"q1": "query_1", "k1": "key_1", "q2": "query_2", "k2": "key_2"}


@register("family", "diffllama")
class DiffLlama(Llama):
    """DiffLlama: Llama with the difference of two attention maps."""

    base = merged(Llama.base, {"layer.attention": {"type": "differential", "bias": False}})
    heads = heads_of("DiffLlama")
    settings = amended(
        Llama.settings,
        Setting("rms_norm_eps", ("layer.norm.eps", "layer.attention.eps"), 1e-5),
        Setting("lambda_std_dev", "layer.attention.lambda_std", 0.1),
        without=("mlp_bias",),
    )
    rules = (
        *Llama.rules,
        *(
            Rule(f"{CHECKPOINT}.self_attn.lambda_{checkpoint}", f"{LAYER}.attention.{own}")
            for checkpoint, own in VECTORS.items()
        ),
    )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["attention_dropout"] = 0.0  # the implementation rejects other values
