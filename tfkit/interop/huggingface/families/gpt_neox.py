"""GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023), and GPT-NeoX Japanese (ABEJA 2022)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.decoders import GROUPED, INNER, LAYER, QKV, ClassicDecoder, heads_of, named
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.layer_types import layers_of, set_kinds
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Setting, amended, look
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

    model_types = ("gpt_neox",)
    varying = ("layer.residual",)
    base: ClassVar = merged(
        ClassicDecoder.base, {"position": {"type": "rotary"}, "layer": {"residual": {"type": "parallel_two_norms"}}}
    )
    heads: ClassVar = heads_of("GPTNeoX")
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 2048),
        Setting("hidden_size", "d_model"),
        Setting("num_hidden_layers", "num_layers"),
        Setting("num_attention_heads", "layer.attention.num_heads"),
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

    model_types = ("gpt_neox_japanese",)
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
