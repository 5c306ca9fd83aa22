"""ModernBERT (Warner et al. 2024), Ettin's decoder (Weller et al. 2025), Jina v3, GTE and Nomic BERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfkit.core.bounds import ModelSection, PositionEntry, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.bert import Bert, BertLike, heads_of, renamed, table_rules
from tfkit.interop.huggingface.families.llama import CHECKPOINT, LAYER, ByType, Llama
from tfkit.interop.huggingface.families.phi import GATE_UP, QKV
from tfkit.interop.huggingface.families.roberta import Roberta
from tfkit.interop.huggingface.family import merged, override, value_of
from tfkit.interop.huggingface.settings import ACTIVATIONS, FULL, SLIDING, ConfigJson, Fixed, Rope, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

FIRST = "first"  # kind of the first layer, which has no attention norm because the embeddings are normalized
NAMES = {
    "embeddings.norm": "decoder.embedding.norm",
    f"{CHECKPOINT}.attn_norm": f"{LAYER}.attention_norm",
    f"{CHECKPOINT}.attn.Wo": f"{LAYER}.attention.output",
    f"{CHECKPOINT}.mlp_norm": f"{LAYER}.feedforward_norm",
    f"{CHECKPOINT}.mlp.Wo": f"{LAYER}.feedforward.down",
    "final_norm": "decoder.final_norm",
}
BODY = (
    Rule("embeddings.tok_embeddings.weight", "decoder.embedding.tokens.weight"),
    Rule(f"{CHECKPOINT}.mlp.Wi.{{kind}}", GATE_UP),
    *renamed(NAMES),
)


@register("family", "modernbert_decoder")
class ModernBertDecoder(ByType):
    """ModernBERT decoder: an embedding norm, GEGLU, windows in two of three layers, BERT's head."""

    model_types = ("modernbert-decoder",)
    base = merged(
        Llama.base,
        {
            "embedding": {"norm": True},
            "layer": {"norm": {"type": "layer_norm", "bias": False}, "feedforward": {"activation": "gelu"}},
        },
    )
    heads = {
        "ModernBertDecoderForCausalLM": {"head": {"type": "masked_lm"}},
        "ModernBertDecoderModel": {"head": "none"},
    }
    settings = amended(
        Llama.settings,
        Setting("hidden_activation", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("norm_eps", "layer.norm.eps", 1e-5),
        Setting("norm_bias", "layer.norm.bias", False),
        Setting("embedding_dropout", "embedding.dropout", 0.0),
        Setting("mlp_dropout", "layer.feedforward.dropout", 0.0),
        without=("num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps"),
        max_position_embeddings=8192,
    )
    head_settings = (Setting("classifier_activation", "head.activation", "gelu", ACTIVATIONS),)
    rules = (
        *BODY,
        *renamed(
            {f"{CHECKPOINT}.attn.{name[0]}_proj": f"{LAYER}.attention.{name}" for name in ("query", "key", "value")}
        ),
        *(Rule(f"lm_head.{name}.{{kind}}", f"head.{name}.{{kind}}") for name in ("dense", "norm")),
        Rule("decoder.{kind}", "head.output.{kind}"),
    )
    prefix, unprefixed = "model.", ("lm_head.", "decoder.")
    tied = {"decoder.weight": "embeddings.tok_embeddings.weight"}
    ties, once = True, 1
    rope, local = Rope(theta=160000.0), Rope()
    thetas = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
    scaled = (FULL, SLIDING)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if model["head"] is not None:
            biases = (("dense", config.get("classifier_bias", False)), ("output", config.get("decoder_bias", True)))
            override(model, {"head.bias": [name for name, has in biases if has]})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        biases = value_of(model, "head.bias", [])
        config["classifier_bias"], config["decoder_bias"] = "dense" in biases, "output" in biases

    @classmethod
    def types(cls, config: ConfigJson, count: int) -> list[str]:
        return [FIRST, *cls._listed(config, count)[1:]]

    @classmethod
    def _listed(cls, config: ConfigJson, count: int) -> list[str]:
        every = config.get("global_attn_every_n_layers", 3)
        return list(config.get("layer_types") or [SLIDING if index % every else FULL for index in range(count)])

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        if name == FIRST:
            return {**cls.over_layer(config, cls._listed(config, 1)[0]), "attention_norm": None}
        size = config.get("local_attention", 128) // 2  # a causal window covers only the past half
        return {"mask": {"type": "window", "size": size}} if name == SLIDING else {}

    @classmethod
    def position(cls, config: ConfigJson, name: str) -> PositionEntry:
        return super().position(config, cls._listed(config, 1)[0] if name == FIRST else name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super().write_types(config, layers)
        config["local_attention"] = 2 * (config.pop("sliding_window") or 64)


@register("family", "modernbert")
class ModernBert(ModernBertDecoder):
    """ModernBERT: rotary positions, a gated feed-forward, no biases, two-sided windows in two of three layers."""

    base = merged(ModernBertDecoder.base, {"type": "encoder"})
    heads = {"ModernBertForMaskedLM": {"head": {"type": "masked_lm"}}, "ModernBertModel": {"head": "none"}}
    rules = (
        *(rule.of_side("encoder") for rule in (*BODY, Rule(f"{CHECKPOINT}.attn.Wqkv.{{kind}}", QKV))),
        *renamed({"head.dense": "head.dense", "head.norm": "head.norm", "decoder": "head.output"}),
    )
    prefix, unprefixed = "model.", ("head.", "decoder.")

    @classmethod
    def over_layer(cls, config: ConfigJson, name: str) -> Tree:
        size = config.get("local_attention", 128)  # total of both sides
        return {"mask": {"type": "window", "size": size}} if name == SLIDING else super().over_layer(config, name)

    @classmethod
    def write_types(cls, config: Tree, layers: Sequence[Tree]) -> None:
        super(ModernBertDecoder, cls).write_types(config, layers)
        config["local_attention"] = config.pop("sliding_window") or 128


JINA_LAYER = "encoder.layers.{layer}"
QUERY_KEY_VALUE = tuple(f"{JINA_LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
UP_GATE = tuple(f"{JINA_LAYER}.feedforward.{name}.{{kind}}" for name in ("up", "gate"))
FIRST_FILES = {  # layer names in the first published files
    "encoder.layers.{layer}.norm1": f"{JINA_LAYER}.attention_norm",
    "encoder.layers.{layer}.norm2": f"{JINA_LAYER}.feedforward_norm",
    "emb_ln": "encoder.embedding.norm",
}


class Turning(BertLike):
    """Base of post-norm encoders with rotary positions."""

    base: ClassVar[ModelSection] = merged(BertLike.base, {"position.type": "rotary"})
    fixed = (Fixed("tie_word_embeddings", (True,)),)
    rope: ClassVar[Rope] = Rope()

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["position"] = cls.rope.read(config)

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["rope_parameters"] = cls.rope.write(model["position"], config)


@register("family", "jina_embeddings_v3")
class JinaEmbeddingsV3(Turning):
    """Jina embeddings v3: XLM-RoBERTa with rotary positions, for long texts; its adapters are not supported."""

    heads: ClassVar = heads_of("JinaEmbeddingsV3")
    settings = amended(BertLike.settings, max_position_embeddings=8194, type_vocab_size=1, layer_norm_eps=1e-5)
    rules = (
        *table_rules()[:3],
        Rule("encoder.layers.{layer}.mixer.Wqkv.{kind}", QUERY_KEY_VALUE),
        *renamed(
            {
                **FIRST_FILES,
                "encoder.layers.{layer}.mixer.out_proj": f"{JINA_LAYER}.attention.output",
                "encoder.layers.{layer}.mlp.fc1": f"{JINA_LAYER}.feedforward.up",
                "encoder.layers.{layer}.mlp.fc2": f"{JINA_LAYER}.feedforward.down",
            }
        ),
    )
    head_rules: ClassVar = Roberta.head_rules
    prefix, unprefixed, tied, dropped = "roberta.", Roberta.unprefixed, Roberta.tied, Roberta.dropped
    rope = Rope(theta=20000.0)
    head_activation = "gelu"


@register("family", "gte")
class Gte(Turning):
    """GTE: rotary positions and a gated feed-forward, for long texts; the text embedding is the first token's state."""

    base: ClassVar = merged(Turning.base, {"layer.feedforward": {"type": "glu", "bias": ["down"]}})
    heads: ClassVar = {**heads_of("Gte", answers=False), "GteModel": {"head": "none"}}
    settings = amended(
        BertLike.settings, max_position_embeddings=8192, type_vocab_size=1, attention_probs_dropout_prob=0.0
    )
    rules = (
        *table_rules(),
        Rule("encoder.layer.{layer}.attention.qkv_proj.{kind}", QUERY_KEY_VALUE),
        Rule("encoder.layer.{layer}.mlp.up_gate_proj.{kind}", UP_GATE),
        *renamed(
            {
                "encoder.layer.{layer}.attention.o_proj": f"{JINA_LAYER}.attention.output",
                "encoder.layer.{layer}.mlp.down_proj": f"{JINA_LAYER}.feedforward.down",
                "encoder.layer.{layer}.attn_ln": f"{JINA_LAYER}.attention_norm",
                "encoder.layer.{layer}.mlp_ln": f"{JINA_LAYER}.feedforward_norm",
            }
        ),
    )
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed({"lm_head.dense": "head.dense", "lm_head.norm": "head.norm"}),
            Rule("lm_head.decoder.bias", "head.output.bias"),
        ),
        "classifier": Bert.head_rules["classifier"],
    }
    prefix, unprefixed = "gte.", ("lm_head.", "classifier.")
    tied: ClassVar = {"lm_head.decoder.weight": "embeddings.word_embeddings.weight"}
    dropped = ("pooler.dense.{kind}",)
    rope, untyped = Rope(theta=160000.0), True
    head_activation = "gelu"


@register("family", "nomic_bert")
class NomicBert(Turning):
    """Nomic BERT: a gated feed-forward, no biases."""

    base: ClassVar = merged(
        Turning.base, {"layer": {"attention": {"bias": False}, "feedforward": {"type": "glu", "bias": False}}}
    )
    heads: ClassVar = {**heads_of("NomicBert", answers=False), "NomicBertModel": {"head": "none"}}
    settings = amended(
        BertLike.settings,
        Setting("head_dim", "layer.attention.head_dim", None),
        max_position_embeddings=2048,
        hidden_act="silu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    rules = (
        *table_rules()[:3],
        Rule("encoder.layers.{layer}.attn.Wqkv.{kind}", QUERY_KEY_VALUE),
        *renamed(
            {
                **FIRST_FILES,
                "encoder.layers.{layer}.attn.out_proj": f"{JINA_LAYER}.attention.output",
                "encoder.layers.{layer}.mlp.fc11": f"{JINA_LAYER}.feedforward.up",
                "encoder.layers.{layer}.mlp.fc12": f"{JINA_LAYER}.feedforward.gate",
                "encoder.layers.{layer}.mlp.fc2": f"{JINA_LAYER}.feedforward.down",
            }
        ),
    )
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed(
                {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.layer_norm": "head.norm"}
            ),
            Rule("cls.predictions.bias", "head.output.bias"),
        ),
        "classifier": Bert.head_rules["classifier"],
    }
    prefix, unprefixed, tied = "nomic_bert.", Bert.unprefixed, Bert.tied
    dropped = ("pooler.dense.{kind}",)
    rope = Rope(theta=1000.0)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        attention = model["layer"]["attention"]
        if attention.get("head_dim") == model["d_model"] / attention["num_heads"]:
            del attention["head_dim"]

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["head_dim"] = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
