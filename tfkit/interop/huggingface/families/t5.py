"""T5 (Raffel et al. 2019) and T5 1.1, mT5 (Xue et al. 2020), umT5 (Chung et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import read_classes, write_classes
from tfkit.interop.huggingface.families.bart import HEAD_RULES, OF_TEXTS
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Setting, amended, look
from tfkit.interop.huggingface.tensors import Names, Rule

PROJECTIONS: Mapping[Names, Names] = {"q": "query", "k": "key", "v": "value", "o": "output"}
INNER: Mapping[Names, Names] = {("wi_0", "wi_1"): ("gate", "up"), "wi": "up", "wo": "down"}
DROPPED = (
    "layer.dropout",
    "layer.attention.dropout",
    "layer.feedforward.dropout",
    "embedding.dropout",
    "final_dropout",
)
ACTIVATION = Setting("dense_act_fn", "layer.feedforward.activation", None, ACTIVATIONS)
SCALED: Tree = {"scale": "1/sqrt_d_model"}
GATED_GELU = "gated-gelu"  # here gelu is the tanh approximation


def sublayer_rules(side: str, place: int, checkpoint: str, own: str, names: Mapping[Names, Names]) -> tuple[Rule, ...]:
    """Return the rules for a sublayer's projections and norm; `place` is its index in a checkpoint layer."""
    block, layer = f"{side}.block.{{layer}}.layer.{place}", f"{side}.layers.{{layer}}.{own}"
    projections = (Rule(_below(f"{block}.{checkpoint}", name), _below(layer, part)) for name, part in names.items())
    return (*projections, Rule(f"{block}.layer_norm.weight", f"{layer}_norm.weight"))


def _below(place: str, names: Names) -> Names:
    """Return the weight names of linear layers under the prefix `place`."""
    return f"{place}.{names}.weight" if isinstance(names, str) else tuple(f"{place}.{name}.weight" for name in names)


BIAS = "{side}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
LAYERS = (
    *sublayer_rules("{side}", 0, "SelfAttention", "attention", PROJECTIONS),
    *sublayer_rules("decoder", 1, "EncDecAttention", "cross_attention", PROJECTIONS),
    *sublayer_rules("encoder", 1, "DenseReluDense", "feedforward", INNER),
    *sublayer_rules("decoder", 2, "DenseReluDense", "feedforward", INNER),
)
ENDS = (
    Rule("shared.weight", "encoder.embedding.tokens.weight"),
    Rule("{side}.final_layer_norm.weight", "{side}.final_norm.weight"),
    Rule("lm_head.weight", "head.output.weight"),
)


@register("family", "t5")
class T5(Family):
    """T5: RMS norms, no biases, relative position buckets; version 1.1: a gated feed-forward, an untied output."""

    varying: ClassVar = ("layer.feedforward",)
    base: ClassVar = {
        "type": "encoder_decoder",
        "embedding": {"type": "tokens", "shared": True},
        "position": {"type": "t5_bias"},
        "layer": {
            "residual": "pre_norm",
            "norm": {"type": "rms_norm"},
            "attention": {"type": "multi_head", "bias": False, "scale": 1.0},
            "feedforward": {"type": "mlp", "bias": False},
        },
    }
    heads: ClassVar = {
        "T5ForConditionalGeneration": {"head": {"type": "language_model"}},
        "T5Model": {"head": "none"},
        "T5EncoderModel": {"type": "encoder", "head": "none"},
        "T5ForTokenClassification": {"type": "encoder", "head": {"type": "token_classifier"}},
        **{f"T5{end}": over for end, over in OF_TEXTS.items()},
    }
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("vocab_size", "vocab_size"),
        Setting("d_model", "d_model"),
        Setting("num_layers", "encoder.num_layers"),
        Setting("num_decoder_layers", "decoder.num_layers", None),
        Setting("num_heads", "layer.attention.num_heads"),
        Setting("d_kv", "layer.attention.head_dim", 64),
        Setting("d_ff", "layer.feedforward.d_ff"),
        Setting("relative_attention_num_buckets", "position.num_buckets", 32),
        Setting("relative_attention_max_distance", "position.max_distance", 128),
        Setting("layer_norm_epsilon", "layer.norm.eps", 1e-6),
        Setting("dropout_rate", DROPPED, 0.1),
    )
    rules = (*ENDS, *LAYERS, Rule(BIAS.replace("{layer}", "0"), "{side}.position.0.table.weight"))
    head_rules: ClassVar = HEAD_RULES
    prefix = "transformer."  # present only in some model classes
    tied: ClassVar = dict.fromkeys(
        ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
    )
    ignored = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)  # old files; unused
    projection: ClassVar[str] = "relu"  # default of feed_forward_proj

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        head = None if blueprint.head is None else blueprint.head.part.part_name
        wrapped = head in ("classifier", "regression", "token_classifier")
        return cls.prefix if wrapped and not name.startswith(("classification_head.", "classifier.")) else ""

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        _set_feedforward(model, config, config.get("feed_forward_proj") or cls.projection)
        attention = model["layer"]["attention"]
        if attention["head_dim"] * attention["num_heads"] == model["d_model"]:
            del attention["head_dim"]
        read_classes(model, config)
        if look(model, "head.type") == "language_model":
            model["head"] |= cls.output(config)
        elif model["head"] is not None:
            override(model, {"head.dropout": config.get("classifier_dropout", 0.0)})
        if model["type"] == "encoder":
            model["num_layers"] = model.pop("encoder")["num_layers"]
            del model["embedding"]["shared"]
            model.pop("decoder", None)
        elif config.get("num_decoder_layers") is None:
            override(model, {"decoder.num_layers": model["encoder"]["num_layers"]})

    @classmethod
    def output(cls, config: ConfigJson) -> Tree:
        """Return the head options: tied and scaled in T5, untied and unscaled in T5 1.1.

        transformers 5 always writes tie_word_embeddings=true; `to_stored` corrects that from the tensors.
        """
        if config.get("tie_word_embeddings") is False:
            return {}
        return {"tied": True} if config.get("scale_decoder_outputs") is False else {"tied": True, **SCALED}

    @classmethod
    def to_stored(cls, model: Tree, checkpoint: Mapping[str, Tensor]) -> list[str]:
        """Untie the head if the files contain an output that differs from the token table."""
        own, table = (checkpoint.get(name) for name in ("lm_head.weight", "shared.weight"))
        tied = look(model, "head.tied")
        if not tied or own is None or table is None or torch.equal(own, table):
            return []
        del model["head"]["tied"]
        return ["lm_head.weight differs from the token table, although config.json ties them"]

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        layer = model.get("decoder", model)["layer"]
        activation = ACTIVATION.write(layer["feedforward"]["activation"])
        gated = layer["feedforward"]["type"] == "glu"
        name = "gelu" if gated and activation == "gelu_new" else activation
        config["feed_forward_proj"] = f"gated-{name}" if gated else name
        config |= {"is_gated_act": gated, "dense_act_fn": activation, "is_encoder_decoder": model["type"] != "encoder"}
        if config["d_kv"] is None:
            config["d_kv"] = config["d_model"] // config["num_heads"]
        cls.write_output(config, model["head"] or {})
        write_classes(config, model)

    @classmethod
    def write_output(cls, config: Tree, head: Mapping[str, object]) -> None:
        """Write the config keys that `output` reads."""
        config["tie_word_embeddings"] = bool(head.get("tied", True))
        config["scale_decoder_outputs"] = bool(head.get("scale") if head else True)


@register("family", "mt5")
class MT5(T5):
    """mT5: multilingual T5 1.1."""

    heads: ClassVar = {name.replace("T5", "MT5"): over for name, over in T5.heads.items()}
    settings = T5.settings
    projection = GATED_GELU

    @classmethod
    def output(cls, config: ConfigJson) -> Tree:
        return {} if config.get("tie_word_embeddings") is False else {"tied": True}

    @classmethod
    def write_output(cls, config: Tree, head: Mapping[str, object]) -> None:
        config["tie_word_embeddings"] = bool(head.get("tied"))


@register("family", "umt5")
class UMT5(MT5):
    """umT5: mT5 with separate position buckets in each layer."""

    base: ClassVar = merged({**T5.base, "position": "none"}, {"layer.position.type": "t5_bias"})
    heads: ClassVar = {name.replace("T5", "UMT5"): over for name, over in T5.heads.items()}
    settings = amended(
        MT5.settings,
        Setting("relative_attention_num_buckets", "layer.position.num_buckets", 32),
        Setting("relative_attention_max_distance", "layer.position.max_distance", 128),
    )
    rules = (*ENDS, *LAYERS, Rule(BIAS, "{side}.layers.{layer}.position.0.table.weight"))

    @classmethod
    def output(cls, config: ConfigJson) -> Tree:
        return super().output(config) | SCALED  # transformers' umT5 always scales the decoder output, tied or not


def _set_feedforward(model: Tree, config: ConfigJson, projection: str) -> None:
    """Set the feed-forward's type and activation; explicit config keys take precedence over `projection`."""
    activation = "gelu_new" if projection == GATED_GELU else projection.rpartition("-")[2]
    gated = projection.startswith("gated-")
    activation_name = look(config, "dense_act_fn") or activation
    model["layer"]["feedforward"]["type"] = "glu" if look(config, "is_gated_act", gated) else "mlp"
    override(model, {ACTIVATION.keys[0]: ACTIVATION.read({"dense_act_fn": activation_name})})
