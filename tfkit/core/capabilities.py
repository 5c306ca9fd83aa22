"""Declarations of parts as data: capabilities and exemptions from contracts.

The recipe rules refuse undeclared uses by name; the contract checks test declared ones. Unknown words are refused at
registration.
"""

from __future__ import annotations

# capability -> promise of a part of a layer that declares it
OF_LAYERS: dict[str, str] = {
    "causal": "stands in a layer that must not see the future",
    "bidirectional": "stands in a layer that sees both ways",
    "cross_attention": "attends to a memory",
    "cache": "decodes a few tokens at a time from a state",
    "rewind": "takes tokens back from its decode state, or keeps none",
    "padding": "leaves padding out",
    "packing": "keeps the segments of a packed batch apart",
    "masks": "honours mask rules besides the direction, such as a window or a prefix",
    "rotation": "turns queries and keys as a position says",
    "bias": "adds what a position says to the scores",
    "temperature": "scales the scores of each query as a position says",
    "weights": "hands out its attention weights to an observer",
    "compile": "has no graph break",
    "export": "is exported with any batch and length",
}
# likewise for parts of the other sections
OF_SECTIONS: dict[str, str] = {
    "likelihood": "has a loss that is -log p of what it predicts",
    "characters": "has a loss that is -log p of every character of a text",
    "words": "answers in words, to be compared with a reference",
    "continuations": "writes a text after its source",
    "two_vocabularies": "reads sources and writes targets, by a tokenizer each",
    "tags": "answers with a tag for each word",
    "numbers": "answers with numbers, or with labels that may be numbers",
    "soft_targets": "predicts tokens or classes by probabilities, which a teacher can give",
    "own_model": "trains a model of its own beside the recipe's",
    "draws": "draws tokens at random",
    "averages": "has weights that are evaluated and published in place of the model's",
}
CAPABILITIES = OF_LAYERS | OF_SECTIONS

# assumed for a sublayer without declarations: it reads `context.mask` and nothing else
ASSUMED = frozenset({"causal", "bidirectional", "padding", "packing", "masks"})
# hold for every part that treats each token separately
TOKENWISE = frozenset({"causal", "bidirectional", "cache", "padding", "packing", "masks", "compile", "export"})

# contract checks from which a part can be exempt, with a reason; `built` is always required
CONTRACTS = (
    "config", "shapes", "determinism", "precision", "gradients", "coordinates", "future", "openings", "visibility",
    "masks", "padding", "source_padding", "packing", "few", "cache", "reorder", "encoder_runs_once", "rotation",
    "bias", "temperature", "cross_attention", "weights", "seed", "initial", "copies", "saving", "meta", "dropout",
    "refusals", "compile", "export", "ids", "round_trip", "batch", "special_tokens", "refit", "no_text",
    "saved_tokenizer", "fields", "repeatable", "limit", "missing_file", "says_what_it_reads", "items", "batches",
    "loss", "loss_gradients", "loss_rows", "packed_loss", "vocabularies", "unusable", "step", "learning_rate",
    "frozen", "decay", "optimizer_state", "rates", "pure", "reads", "perfect", "order", "pairs", "loss_order", "logits",
    "in_place", "rows", "done", "cut", "candidates", "ruled", "seeded", "beside", "stateless", "untouched", "told",
    "unadapted", "adapted", "merged", "observes", "averages", "callback_state",
)  # fmt: skip
