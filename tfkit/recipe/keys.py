"""What each key of the grammar means, one sentence each; a part's options say it themselves, in their Config."""

from __future__ import annotations

import re

# top: the sections; model: beside the stack's keys; stack: in model, encoder or decoder; layer: in layer or a kind
KEYS: dict[str, dict[str, str]] = {
    "top": {
        "tfkit": "version of the recipe language",
        "extends": "the recipe that this one is laid over: a shipped name, or a path relative to this file",
        "model": "the architecture",
        "data": "the data, and how it is tokenized and batched",
        "objective": "what the model is trained for",
        "train": "how the model is trained",
        "generate": "defaults of generation",
        "imports": "Python files or modules with parts that the recipe needs, imported only with --trust or --import",
        "variants": "named overlays, and axes of several values for one option, for --variant",
    },
    "model": {
        "type": "encoder, decoder, encoder_decoder, or a registered topology",
        "encoder": "stack keys of the encoder, laid over those in model",
        "decoder": "stack keys of the decoder, laid over those in model",
        "head": "the part that computes the model's logits; none: hidden states only",
        "heads": "further heads by name, each with an output of its own",
        "init": "how the weights are initialised; by default xavier, as in the original",
        "special_ids": "ids of the tokens pad, start and end, where no tokenizer says them",
    },
    "stack": {
        "d_model": "width of the residual stream",
        "num_layers": "number of layers",
        "vocab_size": "tokens in the vocabulary: a number, or `tokenizer` for as many as it has",
        "max_length": "longest sequence in tokens; none: no bound",
        "embedding": "turns token ids into vectors; none: each call passes vectors",
        "position": "how the model knows positions, one part or a list; none: it does not",
        "mask": "mask rules of every layer, added to that of the model's type; none: no others",
        "memory": "width (d_model) of what cross-attention attends to, in a model of one stack; none: no memory",
        "layer": "what every layer is made of",
        "layers": "kinds: variations of layer by name, each laid over it where the pattern says so",
        "pattern": "the order of kinds: `*n` repeats, `a+b` lays b over a, an inner list fills up to num_layers",
        "final_norm": "norm after the last layer; by default as the residual layout of the last layer has it",
        "final_dropout": "dropout after the final norm",
    },
    "layer": {
        "residual": "how sublayers and norms are wired around the residual stream; none: plain, no residual connection",
        "norm": "the norm of the layer, and of every `norm: true`",
        "dropout": "dropout of each sublayer's output",
        "position": "the layer's own position, laid over the stack's; none: no position",
        "mask": "mask rules of the layer, added to the stack's; none: without the stack's",
        "shared": "one set of weights for all layers of a pattern entry",
        "sublayers": "the order of the sublayers; by default attention, mixer, cross_attention, feedforward",
        "attention": "self-attention; none: no such sublayer",
        "mixer": "what mixes tokens without attention; none: no such sublayer",
        "cross_attention": "attention to the memory, laid over attention; none: no such sublayer",
        "feedforward": "the sublayer that works on each position by itself; none: no such sublayer",
        "attention_norm": "the norm of attention alone, laid over norm; none: no norm",
        "mixer_norm": "the norm of the mixer alone, laid over norm; none: no norm",
        "cross_attention_norm": "the norm of cross-attention alone, laid over norm; none: no norm",
        "feedforward_norm": "the norm of the feed-forward sublayer alone, laid over norm; none: no norm",
    },
}


def sentence(path: str) -> str:
    """The sentence of a key of the grammar at its dotted path (`model.encoder.d_model`); empty for any other path."""
    parent, _, key = path.rpartition(".")
    base = re.sub(r"_\d+(?=_norm$|$)", "", key)  # feedforward_2, feedforward_2_norm
    return next((KEYS[group][base] for group in _groups(parent) if base in KEYS[group]), "")


def _groups(path: str) -> tuple[str, ...]:
    """The groups of keys that may stand in the mapping at `path`."""
    if path == "":
        return ("top",)
    if path == "model":
        return ("model", "stack")
    if path in ("model.encoder", "model.decoder"):
        return ("stack",)
    layer = re.fullmatch(r"model(\.(encoder|decoder))?\.(layer|layers\.\w+)", path)
    return ("layer",) if layer else ()
