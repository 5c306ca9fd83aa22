"""RoBERTa (Liu et al. 2019) and its relatives: position ids skip padding and start after the padding row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tfkit.core.bounds import ModelSection, Options, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.families.bert import (
    CLASSIFIER_RULES,
    POOLER_RULES,
    PRE_NORM,
    BertLike,
    causal_heads_of,
    heads_of,
    layer_rules,
    renamed,
    table_rules,
    tied_output,
)
from tfkit.interop.huggingface.families.llama import Llama
from tfkit.interop.huggingface.family import merged, override
from tfkit.interop.huggingface.settings import ConfigJson, Fixed, Rope, Setting, amended, layers_of, look
from tfkit.interop.huggingface.tensors import Rule

GELU = {"gelu": "gelu"}
FINAL_NORM = "encoder.final_norm"


class Offset(BertLike):
    """Base whose learned positions start after the padding row; max_position_embeddings includes the skipped rows."""

    base: ClassVar[ModelSection] = merged(BertLike.base, {"position.skip_padding": True})

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        offset = int(config.get("pad_token_id", 1)) + 1
        if model["max_length"] <= offset:
            raise DataError(
                f"config.json: max_position_embeddings {model['max_length']} leaves no room after row {offset}, "
                f"the first position with pad_token_id {offset - 1}"
            )
        cls.positions(model)["offset"] = offset
        model["max_length"] -= offset

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        offset = int(cls.positions(model)["offset"])
        config["max_position_embeddings"] += offset
        config["pad_token_id"] = offset - 1

    @classmethod
    def positions(cls, model: ModelSection) -> Tree:
        """Return the learned part among the model's position parts."""
        parts = model["position"] if isinstance(model["position"], list) else [model["position"]]
        learned: Tree = next(part for part in parts if part["type"] == "learned")
        return learned


@register("family", "roberta")
class Roberta(Offset):
    """RoBERTa: byte-level BERT without next-sentence prediction; position ids skip padding."""

    heads: ClassVar[Mapping[str, ModelSection]] = causal_heads_of("Roberta")
    settings = BertLike.settings
    rules = (*table_rules(), *layer_rules())
    head_rules: ClassVar = {
        "masked_lm": (
            *renamed({"lm_head.dense": "head.dense", "lm_head.layer_norm": "head.norm"}),
            Rule("lm_head.bias", "head.output.bias"),
        ),
        "none": POOLER_RULES,
        "classifier": renamed({"classifier.dense": "head.dense", "classifier.out_proj": "head.output"}),
    }
    prefix, unprefixed = "roberta.", ("lm_head.", "classifier.")
    tied: ClassVar = tied_output("lm_head")
    dropped: ClassVar[tuple[str, ...]] = ("pooler.dense.{kind}",)
    head_activation = "gelu"  # activation of the masked_lm head, independent of the layers' activation


@register("family", "xlm_roberta")
class XLMRoberta(Roberta):
    """XLM-RoBERTa: multilingual RoBERTa (Conneau et al. 2019)."""

    model_types = ("xlm-roberta",)
    heads: ClassVar = causal_heads_of("XLMRoberta")
    settings = Roberta.settings


@register("family", "camembert")
class Camembert(XLMRoberta):
    """CamemBERT: French RoBERTa (Martin et al. 2019)."""

    heads: ClassVar = causal_heads_of("Camembert")


@register("family", "data2vec_text")
class Data2VecText(XLMRoberta):
    """data2vec for text: RoBERTa trained to predict its own hidden states (Baevski et al. 2022)."""

    model_types = ("data2vec-text",)
    heads: ClassVar = causal_heads_of("Data2VecText")
    prefix = "data2vec_text."


@register("family", "roberta_prelayernorm")
class RobertaPreLayerNorm(Roberta):
    """Pre-norm RoBERTa with an embedding norm (Ott et al. 2019, fairseq)."""

    model_types = ("roberta-prelayernorm",)
    base: ClassVar = merged(Roberta.base, {"layer": PRE_NORM["layer"]})
    heads: ClassVar = causal_heads_of("RobertaPreLayerNorm")
    rules = (
        *table_rules(),
        *layer_rules("attention.LayerNorm", "intermediate.LayerNorm"),
        *renamed({"LayerNorm": FINAL_NORM}),
    )
    prefix = "roberta_prelayernorm."


@register("family", "xlm_roberta_xl")
class XLMRobertaXL(Roberta):
    """XLM-RoBERTa-XL: larger, pre-norm (Goyal et al. 2021)."""

    model_types = ("xlm-roberta-xl",)
    base: ClassVar = merged(Roberta.base, PRE_NORM)
    heads: ClassVar = causal_heads_of("XLMRobertaXL")
    settings = amended(Roberta.settings, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)
    rules = (
        *table_rules()[:3],
        *layer_rules("attention.self_attn_layer_norm", "LayerNorm"),
        *renamed({"encoder.LayerNorm": FINAL_NORM}),
    )


@register("family", "ibert")
class IBert(Roberta):
    """I-BERT (Kim et al. 2021) without quantization: RoBERTa that can be fine-tuned for integer arithmetic."""

    heads: ClassVar = heads_of("IBert")
    settings = amended(Roberta.settings, Setting("hidden_act", "layer.feedforward.activation", "gelu", GELU))
    fixed = (*Roberta.fixed, Fixed("quant_mode", (False,)))
    derived = ("force_dequant",)  # an option of the quantization
    prefix = "ibert."
    ignored = (*Roberta.ignored, *(f"{{path}}{name}" for name in ("_factor", "_integer", ".shift", ".x_min", ".x_max")))


@register("family", "luke")
class Luke(Roberta):
    """LUKE (Yamada et al. 2020) without entities: RoBERTa with an untied output."""

    heads: ClassVar = {**heads_of("Luke"), "LukeForMaskedLM": {"head": {"type": "masked_lm"}}}
    fixed = tuple(row for row in Roberta.fixed if row.config_key != "tie_word_embeddings")
    derived = ("entity_vocab_size", "entity_emb_size", "use_entity_aware_attention", "tie_word_embeddings")
    head_rules: ClassVar = {
        **Roberta.head_rules,
        "masked_lm": (*Roberta.head_rules["masked_lm"][:-1], *renamed({"lm_head.decoder": "head.output"})),
        "classifier": CLASSIFIER_RULES,
    }
    prefix = "luke."
    tied: ClassVar = {"lm_head.bias": "lm_head.decoder.bias"}
    dropped = (
        *(*Roberta.dropped, "entity_embeddings.{path}", "entity_predictions.{path}"),
        *(f"encoder.layer.{{layer}}.attention.self.{name}_query.{{kind}}" for name in ("w2e", "e2w", "e2e")),
    )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config |= {"entity_vocab_size": 1, "entity_emb_size": 1, "use_entity_aware_attention": False}


ROPE = Rope()
INV_FREQ = "encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"


@register("family", "esm")
class Esm(Offset):
    """ESM: a pre-norm protein encoder; mask tokens have a zero embedding."""

    varying = ("position",)
    base: ClassVar = merged(Offset.base, PRE_NORM)
    heads: ClassVar = heads_of("Esm", answers=False)
    settings = amended(
        (row for row in Offset.settings if row.config_key != "hidden_act"),
        without=("type_vocab_size",),
        max_position_embeddings=1026,
    )
    fixed = (
        Fixed("add_cross_attention", (False,)),
        Fixed("tie_word_embeddings", (True,)),
        Fixed("is_folding_model", (False, None)),
    )
    rules = (
        *table_rules("layer_norm"),
        *layer_rules("attention.LayerNorm", "LayerNorm"),
        *renamed({"encoder.emb_layer_norm_after": "encoder.final_norm"}),
    )
    head_rules: ClassVar = {**Roberta.head_rules, "none": POOLER_RULES}
    prefix, unprefixed, tied = "esm.", Roberta.unprefixed, Roberta.tied
    ignored = ("embeddings.position_ids", INV_FREQ, INV_FREQ.replace("{layer}", "*"))  # some files have a literal *
    dropped = (
        "embeddings.position_embeddings.weight",  # unused with rotary positions, but present
        "pooler.dense.{kind}",
        "contact_head.regression.{kind}",
    )
    head_activation = "gelu"

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.activation": "gelu"})
        if config.get("position_embedding_type", "absolute") == "rotary":
            super(Offset, cls).to_recipe(model, config)
            model["position"] = ROPE.read(config)
        else:
            super().to_recipe(model, config)
        model["embedding"]["norm"] = True if config.get("emb_layer_norm_before") else None
        if config.get("token_dropout"):
            model["embedding"] |= {"type": "token_dropout", "mask_id": config.get("mask_token_id")}

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        rotary = look(model, "position.type") == "rotary"
        config["position_embedding_type"] = "rotary" if rotary else "absolute"
        config["emb_layer_norm_before"] = look(model, "embedding.norm") is not None
        config["token_dropout"] = look(model, "embedding.type") == "token_dropout"
        config["mask_token_id"] = look(model, "embedding.mask_id")
        if rotary:
            super(Offset, cls).to_config(config, model)
            config |= ROPE.write(model["position"], config)
        else:
            super().to_config(config, model)


LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
NAMES = {
    "attention.attn.q": "attention.query",
    "attention.attn.k": "attention.key",
    "attention.attn.v": "attention.value",
    "attention.attn.o": "attention.output",
    "attention.LayerNorm": "attention_norm",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "output.LayerNorm": "feedforward_norm",
}


@register("family", "mpnet")
class MPNet(Offset):
    """MPNet: RoBERTa without token types, with relative position buckets in addition to learned positions."""

    base: ClassVar[ModelSection] = {
        **BertLike.base,
        "position": [
            {"type": "learned", "skip_padding": True},
            {"type": "t5_bias", "num_buckets": 32, "max_distance": 128},
        ],
    }
    heads: ClassVar = heads_of("MPNet")
    settings = amended(BertLike.settings, without=("type_vocab_size",))
    # the implementation always uses 32 buckets; the key only sets the size of the table
    fixed = (
        Fixed("tie_word_embeddings", (True,)),
        Fixed("relative_attention_num_buckets", (32,)),
        Fixed("pad_token_id", (1,)),
    )
    rules = (
        *table_rules(),
        Rule("encoder.relative_attention_bias.weight", "encoder.position.1.table.weight"),
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in NAMES.items()}),
    )
    head_rules: ClassVar = Roberta.head_rules
    prefix, unprefixed, tied, dropped = "mpnet.", Roberta.unprefixed, Roberta.tied, Roberta.dropped
    head_activation = "gelu"


GLOBAL = {f"attention.self.{name}_global": f"attention.{name}_global" for name in ("query", "key", "value")}


@register("family", "longformer")
class Longformer(Roberta):
    """Longformer: RoBERTa for long texts, with windowed attention and global tokens."""

    base: ClassVar = merged(Roberta.base, {"layer.attention.type": "longformer"})
    heads: ClassVar = heads_of("Longformer")
    settings = Roberta.settings
    rules = (
        *Roberta.rules,
        *renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in GLOBAL.items()}),
    )
    prefix = "longformer."

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["layer"]["mask"] = windows_of(config, model["num_layers"])

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        masks = [layer["mask"] or model["mask"] for layer in layers_of(model)]
        config["attention_window"] = window_sizes(masks)


def window_sizes(masks: Sequence[Sequence[Options]]) -> list[int]:
    """Return the window size of each layer. Raise DataError unless each divides the largest, for padding."""
    sizes: list[int] = [mask[0]["size"] for mask in masks]
    odd = [size for size in sizes if max(sizes) % size]
    if odd:
        raise DataError(
            f"attention_window cannot express size {odd[0]}, which does not divide the largest size, {max(sizes)}"
        )
    return sizes


def windows_of(config: ConfigJson, count: int) -> list[Tree]:
    """Return the masks of `count` layers: windows, of one size or one per layer, and global tokens."""
    sizes = config.get("attention_window", 512)
    if isinstance(sizes, list):
        if len(sizes) != count:
            raise DataError(
                f"config.json: attention_window: {len(sizes)} windows for {count} layers; set one per layer"
            )
        sizes = sizes[0] if len(set(sizes)) == 1 else {"per_layer": list(sizes)}
    return [{"type": "window", "size": sizes}, {"type": "global_tokens"}]


@register("family", "esmc")
class EsmC(Llama):
    """ESM C (EvolutionaryScale 2024): a bidirectional Llama with layer norms and a scale for each depth."""

    base: ClassVar = {
        **merged(
            Llama.base,
            {
                "layer.norm": {"type": "layer_norm", "eps": 1e-5},
                "layer.attention": {"qk_norm": {"type": "layer_norm", "bias": False}, "qk_norm_at": "width"},
            },
        ),
        "type": "encoder",
        "final_norm": {"type": "layer_norm", "bias": False},
    }
    heads: ClassVar = {
        "EsmcForMaskedLM": {"head": {"type": "masked_lm", "norm": {"type": "layer_norm", "eps": 1e-5}}},
        "EsmcModel": {"head": "none"},
    }
    settings = amended(Llama.settings, without=("num_key_value_heads", "head_dim", "rms_norm_eps"))
    rules = (
        *(
            replace(rule, own=str(rule.own).replace("decoder.", "encoder."))
            for rule in Llama.rules
            if not str(rule.own).startswith("head.")
        ),
        *renamed({"lm_head.dense": "head.dense", "lm_head.layer_norm": "head.norm", "lm_head.decoder": "head.output"}),
    )
    fixed = (Fixed("tie_word_embeddings", (False,)),)
    derived = ("num_key_value_heads", "head_dim")
    prefix: ClassVar[str] = "esmc."
    tied: ClassVar[dict[str, str]] = {}

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.residual.branch_scale": (36 / model["num_layers"]) ** 0.5})
        super().to_recipe(model, config)
