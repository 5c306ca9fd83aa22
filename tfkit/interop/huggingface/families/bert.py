"""BERT (Devlin et al. 2018), Megatron-BERT, FNet, XLM, and encoders that differ from it in a few settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from tfkit.core.blueprint import Blueprint
from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.errors import DataError
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import OF_TEXTS, read_classes, write_classes
from tfkit.interop.huggingface.family import Family, merged, override
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, amended, look, sizes
from tfkit.interop.huggingface.tensors import Rule

LAYER, CHECKPOINT = "encoder.layers.{layer}", "encoder.layer.{layer}"
TYPES = "embeddings.token_type_embeddings.weight"
PRE_NORM: Tree = {"layer": {"residual": "pre_norm"}, "embedding": {"norm": None}}
MASKED_LM: Tree = {"type": "masked_lm", "tied": True}
CAUSAL: Tree = {"type": "decoder", "head": MASKED_LM}
CLASSIFIER: Tree = {"type": "classifier", "activation": "tanh"}
POOLER: Tree = {"head": "none", "heads": {"pooler": {"type": "pooled", "activation": "tanh"}}}
NEXT_SENTENCE: Tree = {"heads": {"next_sentence": {**CLASSIFIER, "num_classes": 2}}}


def heads_of(name: str, answers: bool = True) -> dict[str, ModelSection]:
    """Return the classes of an encoder: masked LM, classification, headless, and question answering if `answers`."""
    heads: dict[str, Mapping[str, object]] = {
        f"{name}ForMaskedLM": {"head": MASKED_LM},
        f"{name}ForSequenceClassification": {"head": CLASSIFIER},
        f"{name}ForTokenClassification": {"head": {"type": "token_classifier"}},
        f"{name}Model": POOLER,
    }
    return heads | ({f"{name}ForQuestionAnswering": {"head": {"type": "span"}}} if answers else {})


def causal_heads_of(name: str, causal: str = "ForCausalLM") -> dict[str, ModelSection]:
    """Return the classes of an encoder and its decoder, which generates text with the head of a masked LM."""
    return {**heads_of(name), f"{name}{causal}": CAUSAL}


def table_rules(norm: str = "LayerNorm") -> tuple[Rule, ...]:
    """Return the rules for the token, position and token type tables and their norm."""
    return (
        Rule("embeddings.word_embeddings.weight", "encoder.embedding.tokens.weight"),
        Rule("embeddings.position_embeddings.weight", "encoder.position.0.table.weight"),
        Rule(TYPES, "encoder.embedding.segments.weight"),
        Rule(f"embeddings.{norm}.{{kind}}", "encoder.embedding.norm.{kind}"),
    )


def layer_rules(
    attention: str = "attention.output.LayerNorm", feedforward: str = "output.LayerNorm"
) -> tuple[Rule, ...]:
    """Return the rules for a layer's projections and its two norms, named by the arguments."""
    names = {
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.output",
        "intermediate.dense": "feedforward.up",
        "output.dense": "feedforward.down",
        attention: "attention_norm",
        feedforward: "feedforward_norm",
    }
    return renamed({f"{CHECKPOINT}.{checkpoint}": f"{LAYER}.{own}" for checkpoint, own in names.items()})


def tied_output(head: str) -> dict[str, str]:
    """Return the copies in an output projection below `head`: of the token table, and of the bias."""
    return {f"{head}.decoder.weight": "embeddings.word_embeddings.weight", f"{head}.decoder.bias": f"{head}.bias"}


def renamed(names: Mapping[str, str]) -> tuple[Rule, ...]:
    """Return rules that rename weights and biases. `names`: checkpoint name -> tfkit name."""
    return tuple(Rule(f"{checkpoint}.{{kind}}", f"{own}.{{kind}}") for checkpoint, own in names.items())


MASKED_LM_RULES = (
    *renamed({"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}),
    Rule("cls.predictions.bias", "head.output.bias"),
    *renamed({"pooler.dense": "heads.next_sentence.dense", "cls.seq_relationship": "heads.next_sentence.output"}),
)
POOLER_RULES = renamed({"pooler.dense": "heads.pooler.dense"})
CLASSIFIER_RULES = renamed({"pooler.dense": "head.dense", "classifier": "head.output"})
# output layers per token, which have the same names in all families, without a prefix
OF_TOKENS = {"token_classifier": "classifier.", "span": "qa_outputs."}


class BertLike(Family):
    """Base of BERT and similar encoders, independent of tensor names."""

    base: ClassVar[ModelSection] = {
        "type": "encoder",
        "embedding": {"type": "tokens", "norm": True},
        "position": {"type": "learned"},
        "layer": {
            "residual": "post_norm",
            "norm": {"type": "layer_norm"},
            "attention": {"type": "multi_head"},
            "feedforward": {"type": "mlp"},
        },
        "init": {"type": "normal"},
    }
    settings: ClassVar[tuple[Setting, ...]] = (
        *sizes(longest=512),
        Setting("intermediate_size", "layer.feedforward.d_ff"),
        Setting("hidden_act", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("hidden_dropout_prob", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_probs_dropout_prob", "layer.attention.dropout", 0.1),
        Setting("type_vocab_size", "embedding.segments", 2),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-12),
        Setting("initializer_range", "init.std", 0.02),
    )
    fixed: ClassVar[tuple[Fixed, ...]] = (
        Fixed("add_cross_attention", (False,)),
        Fixed("position_embedding_type", ("absolute",)),
        Fixed("tie_word_embeddings", (True,)),
    )
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "embeddings.token_type_ids")
    untyped: ClassVar[bool] = False  # True if the implementation works without a token type table
    head_activation: ClassVar[str | None] = None  # activation of the masked_lm head; None: same as in the feed-forward

    @classmethod
    def rules_of(cls, blueprint: Blueprint) -> tuple[Rule, ...]:
        """Return the rules of an encoder or a decoder, starting with the output layers per token."""
        head = "none" if blueprint.head is None else blueprint.head.part.part_name
        output = OF_TOKENS.get(head)
        rules = super().rules_of(blueprint)
        if blueprint.encoder is None:
            rules = tuple(rule.of_side("decoder") for rule in rules)
        return rules if output is None else (*renamed({output.rstrip("."): "head.output"}), *rules)

    @classmethod
    def prefix_of(cls, name: str, blueprint: Blueprint) -> str:
        return "" if name.startswith(tuple(OF_TOKENS.values())) else super().prefix_of(name, blueprint)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        causal = bool(config.get("is_decoder", False))  # decides in all classes, whatever their names
        if causal and not any(over.get("type") == "decoder" for over in cls.heads.values()):
            raise DataError("config.json: is_decoder: only False is supported, got True")
        model["type"] = "decoder" if causal else "encoder"
        read_classes(model, config)
        if look(model, "head.type") == "masked_lm":
            override(model, {"head.activation": cls.head_activation or look(model, "layer.feedforward.activation")})
        if look(model, "head.type") in (*OF_TEXTS, "token_classifier"):
            rates = (config.get(key) for key in ("classifier_dropout", "classifier_dropout_prob"))
            override(
                model, {"head.dropout": next((rate for rate in rates if rate is not None), model["layer"]["dropout"])}
            )

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        write_classes(config, model)
        config["is_decoder"] = model["type"] == "decoder"
        if config.get("type_vocab_size") == 0 and not cls.untyped:
            config["type_vocab_size"] = 1  # all zeros

    @classmethod
    def as_read(cls, model: ModelSection) -> ModelSection:
        return merged(model, {"embedding.segments": 1}) if cls._adds_types(model["embedding"]["segments"]) else model

    @classmethod
    def constants(cls, blueprint: Blueprint) -> Mapping[str, Tensor]:
        """Return a zero token type table if the model has none, since the implementation requires one."""
        table: Any = blueprint.last.embedding
        if not cls._adds_types(table.segments):
            return {}
        return {TYPES: torch.zeros(1, table.d_embedding or blueprint.last.d_model)}

    @classmethod
    def _adds_types(cls, segments: int) -> bool:
        has_types = any(row.config_key == "type_vocab_size" for row in cls.settings)
        return has_types and not segments and not cls.untyped


@register("family", "bert")
class Bert(BertLike):
    """BERT: a post-norm encoder with an embedding norm and a dense layer before the head."""

    heads: ClassVar[Mapping[str, ModelSection]] = {
        **causal_heads_of("Bert", "LMHeadModel"),
        "BertForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE},
    }
    rules: ClassVar[tuple[Rule, ...]] = (*table_rules(), *layer_rules())
    head_rules: ClassVar[Mapping[str, tuple[Rule, ...]]] = {
        "masked_lm": MASKED_LM_RULES,
        "none": POOLER_RULES,
        "classifier": CLASSIFIER_RULES,
    }
    prefix, unprefixed = "bert.", ("cls.", "classifier.")
    tied: ClassVar = tied_output("cls.predictions")
    dropped: ClassVar[tuple[str, ...]] = ("pooler.dense.{kind}", "cls.seq_relationship.{kind}")


@register("family", "ernie")
class Ernie(Bert):
    """ERNIE: BERT trained to predict whole phrases (Sun et al. 2019); task types are not supported."""

    heads: ClassVar = {**causal_heads_of("Ernie"), "ErnieForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE}}
    fixed = (*Bert.fixed, Fixed("use_task_id", (False,)))
    prefix = "ernie."


@register("family", "megatron_bert")
class MegatronBert(Bert):
    """Megatron-BERT: pre-norm BERT without an embedding norm (Shoeybi et al. 2019)."""

    model_types = ("megatron-bert",)
    base: ClassVar = merged(Bert.base, PRE_NORM)
    heads: ClassVar = {
        **causal_heads_of("MegatronBert"),
        "MegatronBertForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE},
    }
    rules = (*table_rules()[:3], *layer_rules("attention.ln", "ln"), *renamed({"encoder.ln": "encoder.final_norm"}))


@register("family", "splinter")
class Splinter(Bert):
    """Splinter (Ram et al. 2021): the encoder alone; its heads, which read question tokens, are not supported."""

    heads: ClassVar = {"SplinterModel": {"head": "none"}}
    head_rules: ClassVar = {}
    prefix = "splinter."


@register("family", "bert_generation")
class BertGeneration(BertLike):
    """BERT-Generation: causal BERT without token types or a dense layer in the head (Rothe et al. 2019)."""

    model_types = ("bert-generation",)
    heads: ClassVar = {
        "BertGenerationDecoder": {"type": "decoder", "head": {"type": "language_model", "tied": True, "bias": True}},
        "BertGenerationEncoder": {"head": "none"},
    }
    settings = amended(MegatronBert.settings, without=("type_vocab_size",))
    rules = (*table_rules(), *layer_rules())
    head_rules: ClassVar = {"language_model": (Rule("lm_head.bias", "head.output.bias"),)}
    prefix, unprefixed = "bert.", ("lm_head.",)
    tied: ClassVar = tied_output("lm_head")


FNET_NAMES = {
    f"{CHECKPOINT}.fourier.output.LayerNorm": f"{LAYER}.mixer_norm",
    f"{CHECKPOINT}.intermediate.dense": f"{LAYER}.feedforward.up",
    f"{CHECKPOINT}.output.dense": f"{LAYER}.feedforward.down",
    f"{CHECKPOINT}.output.LayerNorm": f"{LAYER}.feedforward_norm",
    "embeddings.projection": "encoder.embedding.projection",
}


@register("family", "fnet")
class FNet(BertLike):
    """FNet: BERT with a Fourier transform in place of attention; padding is not supported."""

    base: ClassVar[ModelSection] = {
        **BertLike.base,
        "layer": {
            "residual": "post_norm",
            "norm": {"type": "layer_norm"},
            "mixer": "fourier",
            "feedforward": {"type": "mlp"},
        },
    }
    heads: ClassVar = {**heads_of("FNet"), "FNetForPreTraining": {"head": MASKED_LM, **NEXT_SENTENCE}}
    settings = amended(
        BertLike.settings,
        without=("num_attention_heads", "attention_probs_dropout_prob"),
        hidden_act="gelu_new",
        type_vocab_size=4,
    )
    fixed = (Fixed("tie_word_embeddings", (True,)), Fixed("use_tpu_fourier_optimizations", (False,)))
    rules = (*table_rules(), *renamed(FNET_NAMES))
    head_rules: ClassVar = Bert.head_rules
    prefix, unprefixed, tied, dropped = "fnet.", Bert.unprefixed, Bert.tied, Bert.dropped

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["embedding"]["d_embedding"] = model["d_model"]  # FNet projects even at equal width


XLM_LAYER = "encoder.layers.{layer}"
XLM_NAMES = {
    "attentions.{layer}.q_lin": f"{XLM_LAYER}.attention.query",
    "attentions.{layer}.k_lin": f"{XLM_LAYER}.attention.key",
    "attentions.{layer}.v_lin": f"{XLM_LAYER}.attention.value",
    "attentions.{layer}.out_lin": f"{XLM_LAYER}.attention.output",
    "layer_norm1.{layer}": f"{XLM_LAYER}.attention_norm",
    "ffns.{layer}.lin1": f"{XLM_LAYER}.feedforward.up",
    "ffns.{layer}.lin2": f"{XLM_LAYER}.feedforward.down",
    "layer_norm2.{layer}": f"{XLM_LAYER}.feedforward_norm",
    "layer_norm_emb": "encoder.embedding.norm",
}


@register("family", "xlm")
class XLM(BertLike):
    """XLM, monolingual: BERT without token types; a tied head with a bias."""

    reads_ids: ClassVar[tuple[str, ...]] = ("pad_token_id",)  # the implementation computes text lengths from it
    heads: ClassVar[Mapping[str, ModelSection]] = {
        "XLMWithLMHeadModel": {"head": {"type": "language_model", "tied": True, "bias": True}},
        "XLMModel": {"head": "none"},
    }
    settings = (
        Setting("vocab_size", "vocab_size", also=("n_words",)),
        Setting("max_position_embeddings", "max_length", 512),
        Setting("emb_dim", "d_model"),
        Setting("n_layers", "num_layers"),
        Setting("n_heads", "layer.attention.num_heads"),
        Setting("gelu_activation", "layer.feedforward.activation", True, {True: "gelu", False: "relu"}),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.1),
        Setting("layer_norm_eps", "layer.norm.eps", 1e-12),
        Setting("init_std", "init.std", 0.02),
    )
    # multilingual models require a language id per call; sinusoidal settings only initialize the table
    fixed: ClassVar[tuple[Fixed, ...]] = tuple(
        Fixed(key, (value,))
        for key, value in (
            ("n_langs", 1),
            ("causal", False),
            ("asm", False),
            ("is_encoder", True),
            ("tie_word_embeddings", True),
        )
    )
    rules = (
        Rule("embeddings.weight", "encoder.embedding.tokens.weight"),
        Rule("position_embeddings.weight", "encoder.position.0.table.weight"),
        *renamed(XLM_NAMES),
    )
    head_rules: ClassVar = {"language_model": (Rule("pred_layer.proj.bias", "head.output.bias"),)}
    prefix, unprefixed = "transformer.", ("pred_layer.",)
    tied: ClassVar = {"pred_layer.proj.weight": "embeddings.weight"}
    ignored = ("position_ids",)

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        override(model, {"layer.feedforward.d_ff": 4 * model["d_model"]})


@register("family", "flaubert")
class Flaubert(XLM):
    """FlauBERT: French XLM; the pre-norm layers of the large version are not supported."""

    heads: ClassVar = {name.replace("XLM", "Flaubert"): over for name, over in XLM.heads.items()}
    fixed = (*XLM.fixed, Fixed("pre_norm", (False,)))
