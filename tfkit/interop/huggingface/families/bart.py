"""BART (Lewis et al. 2019), Marian, LED, and encoder-decoders that differ in positions and norms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from tfkit.core.bounds import ModelSection, Tree
from tfkit.core.registry import register
from tfkit.interop.huggingface.classes import read_classes, write_classes
from tfkit.interop.huggingface.families.bert import BertLike, renamed
from tfkit.interop.huggingface.families.roberta import window_sizes, windows_of
from tfkit.interop.huggingface.family import Family, merged, override, value_of
from tfkit.interop.huggingface.settings import ACTIVATIONS, ConfigJson, Fixed, Setting, Switch, amended, layers_of, look
from tfkit.interop.huggingface.tensors import Rule

PROJECTIONS = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
# base of all families in this file: an encoder-decoder with learned positions
PLAIN: Tree = {**BertLike.base, "type": "encoder_decoder", "embedding": {"type": "tokens", "shared": True}}
PRE_NORM = {"layer": {"residual": "pre_norm"}}
SINES = {"position": {"type": "sinusoidal", "layout": "halves"}}


def attention_rules(checkpoint: str, own: str) -> tuple[Rule, ...]:
    """Return the rules for an attention's projections and norm."""
    layer = "{side}.layers.{layer}"
    projections = (
        Rule(f"{layer}.{checkpoint}.{name}.{{kind}}", f"{layer}.{own}.{part}.{{kind}}")
        for name, part in PROJECTIONS.items()
    )
    return (*projections, Rule(f"{layer}.{checkpoint}_layer_norm.{{kind}}", f"{layer}.{own}_norm.{{kind}}"))


LAYERS = (
    *attention_rules("self_attn", "attention"),
    *attention_rules("encoder_attn", "cross_attention"),
    Rule("{side}.layers.{layer}.fc1.{kind}", "{side}.layers.{layer}.feedforward.up.{kind}"),
    Rule("{side}.layers.{layer}.fc2.{kind}", "{side}.layers.{layer}.feedforward.down.{kind}"),
    Rule("{side}.layers.{layer}.final_layer_norm.{kind}", "{side}.layers.{layer}.feedforward_norm.{kind}"),
)
ENDS = (
    Rule("{side}.embed_positions.weight", "{side}.position.0.table.weight"),
    Rule("{side}.layernorm_embedding.{kind}", "{side}.embedding.norm.{kind}"),
    Rule("{side}.layer_norm.{kind}", "{side}.final_norm.{kind}"),
    Rule("lm_head.weight", "head.output.weight"),
    Rule("final_logits_bias", "head.output.bias", "1 token -> token"),
)
ONE_TABLE = (Rule("shared.weight", "encoder.embedding.tokens.weight"),)
TWO_TABLES = (
    Rule(
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        ("encoder.embedding.tokens.weight", "decoder.embedding.tokens.weight"),
    ),
)

# in text classification, the decoder's input is the start token and the same text
OF_TEXTS: Mapping[str, ModelSection] = {
    "ForSequenceClassification": {"head": {"type": "classifier", "pool": "last", "activation": "tanh"}},
    "ForQuestionAnswering": {"head": {"type": "span"}},
}
HEAD_RULES: Mapping[str, tuple[Rule, ...]] = {
    "classifier": renamed({"classification_head.dense": "head.dense", "classification_head.out_proj": "head.output"}),
    "token_classifier": renamed({"classifier": "head.output"}),
    "span": renamed({"qa_outputs": "head.output"}),
}


def heads_of(name: str, text_classes: Iterable[str] = (), **head: object) -> dict[str, ModelSection]:
    """Return the model classes of an encoder-decoder: generation, headless, and `text_classes`."""
    return {
        f"{name}ForConditionalGeneration": {"head": {"type": "language_model", **head}},
        f"{name}Model": {"head": "none"},
        **{f"{name}{end}": OF_TEXTS[end] for end in text_classes},
    }


@register("family", "bart")
class Bart(Family):
    """BART: a post-norm encoder-decoder with an embedding norm and learned positions."""

    base: ClassVar = merged(PLAIN, {"embedding": {"norm": True}, "position": {"offset": 2}})
    heads: ClassVar = heads_of("Bart", OF_TEXTS, bias="frozen")
    settings: ClassVar[tuple[Setting, ...]] = (
        Setting("vocab_size", "vocab_size"),
        Setting("max_position_embeddings", "max_length", 1024),
        Setting("d_model", "d_model"),
        Setting("encoder_layers", "encoder.num_layers"),
        Setting("decoder_layers", "decoder.num_layers"),
        Setting("encoder_attention_heads", "encoder.layer.attention.num_heads"),
        Setting("decoder_attention_heads", "decoder.layer.attention.num_heads"),
        Setting("encoder_ffn_dim", "encoder.layer.feedforward.d_ff"),
        Setting("decoder_ffn_dim", "decoder.layer.feedforward.d_ff"),
        Setting("activation_function", "layer.feedforward.activation", "gelu", ACTIVATIONS),
        Setting("dropout", ("layer.dropout", "embedding.dropout"), 0.1),
        Setting("attention_dropout", "layer.attention.dropout", 0.0),
        Setting("activation_dropout", "layer.feedforward.dropout", 0.0),
        Setting("init_std", "init.std", 0.02),
        Switch("scale_embedding", "embedding.scale", False, on="sqrt_d_model"),
    )
    rules = (*ONE_TABLE, *ENDS, *LAYERS)
    head_rules: ClassVar = HEAD_RULES
    prefix = "model."
    unprefixed: ClassVar[tuple[str, ...]] = ("lm_head.", "final_logits_bias", "classification_head.", "qa_outputs.")
    tied: ClassVar = dict.fromkeys(
        ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
    )
    ignored: ClassVar[tuple[str, ...]] = ("{side}.version",)
    ties: ClassVar[bool] = True  # default of tie_word_embeddings

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        _join(model)
        read_classes(model, config)
        if look(model, "head.type") == "language_model":
            override(model, {"head.tied": bool(config.get("tie_word_embeddings", cls.ties))})
        elif model["head"] is not None:
            override(model, {"head.dropout": config.get("classifier_dropout", 0.0)})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        config["tie_word_embeddings"] = bool((model["head"] or {}).get("tied", cls.ties))
        config["is_encoder_decoder"] = True
        write_classes(config, model)


@register("family", "plbart")
class PLBart(Bart):
    """PLBART: BART for source code (Ahmad et al. 2021)."""

    heads: ClassVar = heads_of("PLBart", ["ForSequenceClassification"], bias="frozen")
    settings = amended(Bart.settings, attention_dropout=0.1, scale_embedding=True)


@register("family", "mvp")
class MVP(Bart):
    """MVP: multi-task BART (Tang et al. 2022); its learned prompts are not supported."""

    heads: ClassVar = heads_of("Mvp", OF_TEXTS, bias="frozen")
    settings = Bart.settings
    fixed = (Fixed("use_prompt", (False,)),)


@register("family", "mbart")
class MBart(Bart):
    """mBART: multilingual pre-norm BART (Liu et al. 2020)."""

    base: ClassVar = merged(Bart.base, PRE_NORM)
    heads: ClassVar = heads_of("MBart", OF_TEXTS, bias="frozen")


@register("family", "blenderbot")
class Blenderbot(Bart):
    """Blenderbot: pre-norm, a shallow encoder and a deep decoder (Roller et al. 2020)."""

    base: ClassVar = merged(PLAIN, PRE_NORM)
    heads: ClassVar = heads_of("Blenderbot", bias="frozen")
    settings = amended(Bart.settings, max_position_embeddings=128)


@register("family", "blenderbot_small")
class BlenderbotSmall(Bart):
    """Blenderbot Small: BART with the decoder's embedding norm applied before the positions (Roller et al. 2020)."""

    model_types = ("blenderbot-small",)
    base: ClassVar = merged(
        PLAIN, {"embedding": {"norm": True}, "decoder": {"embedding": {"norm_before_positions": True}}}
    )
    heads: ClassVar = heads_of("BlenderbotSmall", bias="frozen")
    settings = amended(
        Bart.settings,
        Switch("scale_embedding", "encoder.embedding.scale", False, on="sqrt_d_model"),
        max_position_embeddings=512,
    )


@register("family", "pegasus")
class Pegasus(Bart):
    """Pegasus: pre-norm BART with sinusoidal positions (Zhang et al. 2019)."""

    base: ClassVar = merged(PLAIN, {**PRE_NORM, **SINES})
    heads: ClassVar = heads_of("Pegasus", bias="frozen")
    ignored = (*Bart.ignored, "{side}.embed_positions.weight")


def _join(model: Tree) -> None:
    """Move layer settings that encoder and decoder share into `layer`."""
    encoder, decoder = model["encoder"], model["decoder"]
    if encoder["layer"] == decoder["layer"]:
        model["layer"] = merged(model["layer"], encoder.pop("layer"))
        del decoder["layer"]


FAIRSEQ = {"type": "sinusoidal", "layout": "halves", "spacing": "endpoints", "skip_padding": True}


@register("family", "marian")
class Marian(Bart):
    """Marian: the original Transformer with a constant output bias and, optionally, separate vocabularies."""

    base: ClassVar = merged(PLAIN, SINES)
    heads: ClassVar = {
        "MarianMTModel": {"head": {"type": "language_model", "bias": "frozen"}},
        "MarianModel": {"head": "none"},
    }
    settings = Bart.settings
    rules = (*TWO_TABLES, *ONE_TABLE, *ENDS, *LAYERS)
    tied: ClassVar = {**Bart.tied, "lm_head.weight": "decoder.embed_tokens.weight"}
    ignored = (*Bart.ignored, "{side}.embed_positions.weight")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        if not config.get("share_encoder_decoder_embeddings", True):
            del model["embedding"]["shared"]
            override(model, {"decoder.vocab_size": config.get("decoder_vocab_size") or model["vocab_size"]})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        shared = model["decoder"]["embedding"]["shared"]
        config |= {"share_encoder_decoder_embeddings": shared, "vocab_size": model["encoder"]["vocab_size"]}
        config["decoder_vocab_size"] = model["decoder"]["vocab_size"]


@register("family", "m2m_100")
class M2M100(Bart):
    """M2M-100 and NLLB: pre-norm, sinusoidal positions that skip padding."""

    base: ClassVar = merged(PLAIN, {**PRE_NORM, "position": FAIRSEQ})
    heads: ClassVar = heads_of("M2M100")
    settings = amended(Bart.settings, activation_function="relu", attention_dropout=0.1, scale_embedding=True)
    ignored = (*Bart.ignored, "{side}.embed_positions.weights", "{side}.embed_positions.weight")

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        pad = config.get("pad_token_id", 1)
        override(model, {"position.offset": pad + 1})

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        config["pad_token_id"] = model["decoder"]["position"]["offset"] - 1


@register("family", "fsmt")
class FSMT(M2M100):
    """FSMT: fairseq's original Transformer, with two vocabularies and an untied output."""

    base: ClassVar = merged(PLAIN, {"embedding": {"shared": False}, "position": FAIRSEQ})
    heads: ClassVar = {"FSMTForConditionalGeneration": {"head": {"type": "language_model"}}}
    settings = amended(
        M2M100.settings,
        Setting("src_vocab_size", "encoder.vocab_size"),
        Setting("tgt_vocab_size", "decoder.vocab_size"),
        without=("vocab_size",),
        attention_dropout=0.0,
    )
    rules = (
        *TWO_TABLES,
        Rule("decoder.output_projection.weight", "head.output.weight"),
        *(rule for rule in ENDS if rule.checkpoint != "lm_head.weight"),
        *LAYERS,
    )
    unprefixed = ()
    tied: ClassVar = dict.fromkeys(
        ("decoder.output_projection.weight", "encoder.embed_tokens.weight"), "decoder.embed_tokens.weight"
    )
    ties = False


OWN, CHECKPOINT = "encoder.layers.{layer}.attention", "encoder.layers.{layer}.self_attn"
LED_PROJECTIONS = [f"{name}{end}" for name in ("query", "key", "value") for end in ("", "_global")]
ENCODER = renamed(
    {f"{CHECKPOINT}.longformer_self_attn.{name}": f"{OWN}.{name}" for name in LED_PROJECTIONS}
    | {f"{CHECKPOINT}.output": f"{OWN}.output"}
)


@register("family", "led")
class LED(Bart):
    """LED: BART for long texts, with windowed attention and global tokens in the encoder."""

    base: ClassVar = merged(
        PLAIN, {"embedding": {"norm": True}, "encoder": {"layer": {"attention": {"type": "longformer"}}}}
    )
    heads: ClassVar = heads_of("LED", ["ForQuestionAnswering"], bias="frozen")
    settings = amended(
        Bart.settings,
        Setting("max_encoder_position_embeddings", "encoder.max_length", 16384),
        Setting("max_decoder_position_embeddings", "decoder.max_length", 1024),
        Setting("attention_dropout", ("layer.attention.dropout", "encoder.layer.attention.dropout"), 0.0),
        without=("max_position_embeddings", "scale_embedding"),
    )
    rules: ClassVar[tuple[Rule, ...]] = (*ENCODER, *ONE_TABLE, *ENDS, *LAYERS)
    prefix = "led."

    @classmethod
    def to_recipe(cls, model: Tree, config: ConfigJson) -> None:
        super().to_recipe(model, config)
        model["encoder"]["layer"]["mask"] = windows_of(config, model["encoder"]["num_layers"])

    @classmethod
    def to_config(cls, config: Tree, model: ModelSection) -> None:
        super().to_config(config, model)
        encoder = model["encoder"]
        masks = [layer["mask"] or value_of(encoder, "mask") for layer in layers_of(encoder)]
        config["attention_window"] = window_sizes(masks)
