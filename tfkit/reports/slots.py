"""The purpose of each slot, with an example line of a recipe."""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """The purpose of a slot (without a full stop), and a recipe line whose key is dotted, as in `--set`."""

    purpose: str
    written: str


SLOTS: dict[str, Note] = {
    "model": Note("topology: the stacks, and how they are connected", "model.type: decoder"),
    "attention": Note(
        "mixes tokens with attention to each other or to a memory",
        "model.layer.attention: {type: multi_head, num_heads: 8}",
    ),
    "mixer": Note("mixes tokens without attention", "model.layer.mixer: gru"),
    "feedforward": Note(
        "transforms each token independently", "model.layer.feedforward: {type: glu, d_ff: 1365, activation: silu}"
    ),
    "position": Note(
        "encodes positions; several may be listed, and a layer may have its own", "model.position: rotary"
    ),
    "mask": Note(
        "restricts what a token attends to; rules of the stack and of a layer are combined",
        "model.layer.mask: {type: window, size: 256}",
    ),
    "norm": Note(
        "normalizes activations; `norm: true` in other places uses the stack's norm",
        "model.layer.norm: {type: layer_norm, eps: 1e-6}",
    ),
    "residual": Note("connects sublayers and norms to the residual stream", "model.layer.residual: pre_norm"),
    "activation": Note(
        "elementwise function within another part",
        "model.layer.feedforward: {type: mlp, d_ff: 2048, activation: gelu}",
    ),
    "embedding": Note("maps token ids to vectors", "model.embedding: {type: tokens, scale: sqrt_d_model}"),
    "head": Note(
        "computes outputs from the last hidden states; `heads:` defines several by name",
        "model.head: {type: language_model, tied: true}",
    ),
    "init": Note("initializes the weights", "model.init: {type: normal, std: 0.02}"),
    "tokenizer": Note("converts between text and token ids", "data.tokenizer: {type: bpe, vocab_size: 8000}"),
    "corpus": Note(
        "provides examples: data.train, optionally data.valid and data.test",
        "data.train: {type: text, files: train.txt}",
    ),
    "objective": Note("defines the prediction task and its loss", "objective: causal_lm"),
    "optimizer": Note(
        "updates the weights from gradients; the schedule sets the learning rate",
        "train.optimizer: {type: adamw, weight_decay: 0.1}",
    ),
    "schedule": Note("sets the learning rate of each step", "train.schedule: {type: cosine, lr: 0.001, warmup: 100}"),
    "adapter": Note(
        "trains a few weights added to a frozen model and merges them into the published weights",
        "train.adapter: {type: lora, rank: 8, on: [query, value]}",
    ),
    "metric": Note(
        "scores a model in addition to the loss, in evaluate and at the end of training", "train.metrics: [perplexity]"
    ),
    "callback": Note("observes a run; may read, log or stop it", "train.callbacks: [{type: ema, decay: 0.999}]"),
    "logits": Note(
        "modifies the scores of the next token, in the order listed",
        "generate.logits: [{type: no_repeat_ngram, size: 3}]",
    ),
    "stop": Note("ends a text as soon as one of the listed rules applies", "generate.stop: [end_token]"),
    "strategy": Note("selects the next token", "generate.strategy: greedy"),
}
