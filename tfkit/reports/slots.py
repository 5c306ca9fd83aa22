"""The purpose of each slot and an example line of a recipe."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """`purpose` is a sentence without its full stop; `written` is a recipe line with a dotted key, as in `--set`."""

    purpose: str
    written: str


SLOTS: dict[str, Note] = {
    "model": Note("the topology: which stacks there are, and how they are joined", "model.type: decoder"),
    "attention": Note(
        "each token reads the others, or those of a memory", "model.layer.attention: {type: multi_head, num_heads: 8}"
    ),
    "mixer": Note("tokens are mixed without attention", "model.layer.mixer: gru"),
    "feedforward": Note(
        "works on each token by itself", "model.layer.feedforward: {type: glu, d_ff: 1365, activation: silu}"
    ),
    "position": Note(
        "how positions are told apart; several may be listed, and a layer may have its own", "model.position: rotary"
    ),
    "mask": Note(
        "what a token may look at; rules add up, in the stack and in a layer",
        "model.layer.mask: {type: window, size: 256}",
    ),
    "norm": Note(
        "keeps activations at one scale; said once for the stack, `norm: true` elsewhere means that one",
        "model.layer.norm: {type: layer_norm, eps: 1e-6}",
    ),
    "residual": Note("how sublayers and norms are wired around the residual stream", "model.layer.residual: pre_norm"),
    "activation": Note(
        "an elementwise function within another part",
        "model.layer.feedforward: {type: mlp, d_ff: 2048, activation: gelu}",
    ),
    "embedding": Note("from token ids to vectors", "model.embedding: {type: tokens, scale: sqrt_d_model}"),
    "head": Note(
        "what is computed from the last hidden states; `heads:` names several",
        "model.head: {type: language_model, tied: true}",
    ),
    "init": Note("the values that weights begin with", "model.init: {type: normal, std: 0.02}"),
    "tokenizer": Note("from text to token ids and back", "data.tokenizer: {type: bpe, vocab_size: 8000}"),
    "corpus": Note(
        "where examples come from: data.train, and where there are such data.valid and data.test",
        "data.train: {type: text, files: train.txt}",
    ),
    "objective": Note("what is predicted, and the loss of it", "objective: causal_lm"),
    "optimizer": Note(
        "how a gradient becomes a step; the learning rate belongs to the schedule",
        "train.optimizer: {type: adamw, weight_decay: 0.1}",
    ),
    "schedule": Note("the learning rate of each step", "train.schedule: {type: cosine, lr: 0.001, warmup: 100}"),
    "adapter": Note(
        "few weights that are trained beside a frozen model, and merged into it when it is published",
        "train.adapter: {type: lora, rank: 8, on: [query, value]}",
    ),
    "metric": Note(
        "what is measured besides the loss, when training ends and by evaluate", "train.metrics: [perplexity]"
    ),
    "callback": Note("observes the training; may read, log or stop it", "train.callbacks: [{type: ema, decay: 0.999}]"),
    "logits": Note(
        "changes the scores of the next token before one is chosen, in the order listed",
        "generate.logits: [{type: no_repeat_ngram, size: 3}]",
    ),
    "stop": Note("says when a text is done; any one of those listed ends it", "generate.stop: [end_token]"),
    "strategy": Note("how the next token is chosen", "generate.strategy: greedy"),
}
