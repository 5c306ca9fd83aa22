"""Jina embeddings v3 (Sturua et al. 2024), GTE (Zhang et al. 2024), Nomic BERT (Nussbaum et al. 2024)."""

from __future__ import annotations

from typing import ClassVar

from tfkit.core.registry import register
from tfkit.core.trees import ModelSection, Tree
from tfkit.interop.huggingface.families.bert import Bert, BertLike, heads_of, renamed, table_rules
from tfkit.interop.huggingface.families.roberta import Roberta
from tfkit.interop.huggingface.family import merged
from tfkit.interop.huggingface.rotary import Rope
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Setting, amended
from tfkit.interop.huggingface.tensors import Rule

LAYER = "encoder.layers.{layer}"
QUERY_KEY_VALUE = tuple(f"{LAYER}.attention.{name}.{{kind}}" for name in ("query", "key", "value"))
UP_GATE = tuple(f"{LAYER}.feedforward.{name}.{{kind}}" for name in ("up", "gate"))
FIRST_FILES = {  # layer names in the first published files
    "encoder.layers.{layer}.norm1": f"{LAYER}.attention_norm",
    "encoder.layers.{layer}.norm2": f"{LAYER}.feedforward_norm",
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

    model_types = ("jina_embeddings_v3",)
    heads: ClassVar = heads_of("JinaEmbeddingsV3")
    settings = amended(
        BertLike.settings,
        max_position_embeddings=8194,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    rules = (
        *table_rules()[:3],
        Rule("encoder.layers.{layer}.mixer.Wqkv.{kind}", QUERY_KEY_VALUE),
        *renamed(
            {
                **FIRST_FILES,
                "encoder.layers.{layer}.mixer.out_proj": f"{LAYER}.attention.output",
                "encoder.layers.{layer}.mlp.fc1": f"{LAYER}.feedforward.up",
                "encoder.layers.{layer}.mlp.fc2": f"{LAYER}.feedforward.down",
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

    model_types = ("gte",)
    base: ClassVar = merged(Turning.base, {"layer.feedforward": {"type": "glu", "bias": ["down"]}})
    heads: ClassVar = {**heads_of("Gte", answers=False), "GteModel": {"head": "none"}}
    settings = amended(
        BertLike.settings,
        max_position_embeddings=8192,
        type_vocab_size=1,
        attention_probs_dropout_prob=0.0,
    )
    rules = (
        *table_rules(),
        Rule("encoder.layer.{layer}.attention.qkv_proj.{kind}", QUERY_KEY_VALUE),
        Rule("encoder.layer.{layer}.mlp.up_gate_proj.{kind}", UP_GATE),
        *renamed(
            {
                "encoder.layer.{layer}.attention.o_proj": f"{LAYER}.attention.output",
                "encoder.layer.{layer}.mlp.down_proj": f"{LAYER}.feedforward.down",
                "encoder.layer.{layer}.attn_ln": f"{LAYER}.attention_norm",
                "encoder.layer.{layer}.mlp_ln": f"{LAYER}.feedforward_norm",
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

    model_types = ("nomic_bert",)
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
                "encoder.layers.{layer}.attn.out_proj": f"{LAYER}.attention.output",
                "encoder.layers.{layer}.mlp.fc11": f"{LAYER}.feedforward.up",
                "encoder.layers.{layer}.mlp.fc12": f"{LAYER}.feedforward.gate",
                "encoder.layers.{layer}.mlp.fc2": f"{LAYER}.feedforward.down",
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
