"""Other libraries in the decoding benchmark, if installed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.benchmarks.ctranslate import ctranslate2
from tests.benchmarks.decoding import PROMPT, START, Decoder, Size, Work
from tests.benchmarks.rounds import Call, library
from tfkit.models import Model


def transformers_model(size: Size, dropout: float = 0.0) -> Any:
    """Return GPT-2, BERT, ViT, or BART for an encoder-decoder, with random weights."""
    package = library("transformers")
    package.logging.set_verbosity_error()
    if size.type == "decoder":
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        shape = {"n_layer": size.num_layers, "n_embd": size.d_model, "n_head": size.num_heads, "n_inner": size.d_ff}
        config = package.GPT2Config(
            vocab_size=size.vocab_size, bos_token_id=None, eos_token_id=None, use_cache=False, **shape, **rates
        )
        return package.GPT2LMHeadModel(config)
    if size.type in ("encoder", "pictures"):
        sizes = {
            "num_hidden_layers": size.num_layers,
            "hidden_size": size.d_model,
            "num_attention_heads": size.num_heads,
            "intermediate_size": size.d_ff,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        if size.type == "pictures":
            return package.ViTForImageClassification(package.ViTConfig(num_labels=size.vocab_size, **sizes))
        return package.BertForMaskedLM(package.BertConfig(vocab_size=size.vocab_size, **sizes))
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", size.num_layers), ("attention_heads", size.num_heads), ("ffn_dim", size.d_ff))
    }
    config = package.BartConfig(
        vocab_size=size.vocab_size,
        d_model=size.d_model,
        activation_function="relu",
        decoder_start_token_id=START,
        bos_token_id=START,
        pad_token_id=0,
        eos_token_id=2,
        forced_eos_token_id=None,
        dropout=dropout,
        attention_dropout=dropout,
        **sides,
    )
    return package.BartForConditionalGeneration(config)


def _transformers(work: Work, _: Model, **how: object) -> Call | None:
    """Decode with GPT-2, or BART for an encoder-decoder."""
    model, ids = transformers_model(work.size).to(work.device).eval(), work.prompts()
    model.generation_config.use_cache = True  # which GPT-2's constructor took from its config
    lengths = {"max_new_tokens": work.new, "min_new_tokens": work.new}

    def call() -> object:
        return model.generate(ids, do_sample=False, num_beams=work.beams, pad_token_id=0, **lengths, **how)

    return call


def _static(work: Work, model: Model) -> Call | None:
    """Decode with transformers' GPT-2 and a static cache, without beams."""
    return None if work.beams > 1 or work.size.pair else _transformers(work, model, cache_implementation="static")


def _x_transformers(work: Work, _: Model) -> Call | None:
    package, size = library("x_transformers"), work.size
    if size.pair or work.beams > 1:
        return None
    layers = package.Decoder(
        dim=size.d_model,
        depth=size.num_layers,
        heads=size.num_heads,
        attn_dim_head=size.d_model // size.num_heads,
        ff_mult=size.d_ff // size.d_model,
        attn_flash=True,
    )
    length = PROMPT + work.new
    inner = package.TransformerWrapper(num_tokens=size.vocab_size, max_seq_len=length, attn_layers=layers).to(
        work.device
    )
    model, ids = package.AutoregressiveWrapper(inner).to(work.device).eval(), work.prompts()
    return lambda: model.generate(ids, work.new, temperature=0.0, cache_kv=True)


def _litgpt(work: Work, _: Model) -> Call | None:
    """Decode with LitGPT, which supports only batch size 1 here."""
    package, size = library("litgpt"), work.size
    if size.pair or work.beams > 1 or work.batch > 1:
        return None
    writing = library("litgpt.generate.base")
    length = PROMPT + work.new
    config = package.Config(
        name="gpt",
        block_size=length,
        n_layer=size.num_layers,
        n_embd=size.d_model,
        n_head=size.num_heads,
        intermediate_size=size.d_ff,
        vocab_size=size.vocab_size,
        padded_vocab_size=size.vocab_size,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=True,
        mlp_class_name="GptNeoxMLP",
    )
    model, ids = package.GPT(config).to(work.device).eval(), work.prompts()[0]
    with torch.inference_mode(), torch.device(work.device):
        model.set_kv_cache(1)
    return lambda: writing.generate(model, ids, length, temperature=0.0)


DECODERS: dict[str, Decoder] = {
    "transformers": _transformers,
    "transformers-static": _static,
    "x-transformers": _x_transformers,
    "litgpt": _litgpt,
    "ctranslate2": ctranslate2,
    "ctranslate2-int8": partial(ctranslate2, dtype="int8"),
}
