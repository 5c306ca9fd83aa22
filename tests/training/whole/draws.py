"""Whole recipes by chance: a right one for an objective, and a few of its settings drawn anew, right or wrong."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec
from random import Random
from typing import Any

from tfkit.core.errors import RecipeError
from tfkit.recipe.load import load_recipe

from .material import decoder

Recipe = dict[str, Any]
ABSENT = object()

# objective -> its model's type, its head, and corpora that have its fields
WORDS = {"type": "language_model", "tied": True}
LABELS = {"type": "classifier", "num_classes": "labels", "pool": "mean"}
PAIRS: tuple[Any, ...] = (
    {"type": "parallel_text", "source": "text.txt", "target": "target.txt"},
    {"type": "parallel_tsv", "file": "pairs.tsv"},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"source": "source", "target": "target"}},
    {"type": "phrases", "train": 20, "valid": 5, "test": 5},
)
CONVERSATIONS: tuple[Any, ...] = (
    {"type": "chat", "file": "chat.jsonl"},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"source": "question", "target": "answer"}},
)
TEXTS: tuple[Any, ...] = (
    {"type": "text", "files": "text.txt"},
    {"type": "text", "files": ["text.txt", "paragraphs.txt"], "unit": "paragraph"},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"text": "text"}},
    {"type": "csv", "file": "rows.csv", "fields": {"text": "text"}},
    {"type": "parquet", "file": "rows.parquet", "fields": {"text": "text"}},
    {"type": "docstrings", "characters": 20_000, "limit": 8},
)
LABELLED: tuple[Any, ...] = (
    {"type": "labelled_text", "file": "labelled.txt"},
    {"type": "labelled_text", "file": "text.txt", "labels": "labels.txt"},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"text": "text", "second": "second", "label": "label"}},
)
NUMBERED: tuple[Any, ...] = (
    {"type": "labelled_text", "file": "numbered.txt"},
    {"type": "csv", "file": "rows.csv", "fields": {"text": "text", "label": "number"}},
)
TAGGED: tuple[Any, ...] = (
    {"type": "tagged_text", "file": "text.txt", "tags": "tags.txt"},
    {"type": "conllu", "file": "tree.conllu"},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"text": "text", "tags": "tags"}},
)
ANSWERS: tuple[Any, ...] = (
    {
        "type": "json_lines",
        "file": "rows.jsonl",
        "fields": {"question": "question", "context": "context", "answer": "answer"},
    },
)
GENERATOR = {
    **{key: value for key, value in decoder().items() if key not in ("vocab_size", "type", "head")},
    "type": "encoder",
    "head": {"type": "masked_lm", "tied": True},
}
BASES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "causal_lm": ("decoder", WORDS, TEXTS),
    "masked_lm": ("encoder", {"type": "masked_lm", "tied": True}, TEXTS),
    "next_sentence": ("encoder", "masked_lm", TEXTS),
    "replaced_token": ("encoder", "discriminator", TEXTS),
    "seq2seq": ("encoder_decoder", WORDS, PAIRS),
    "completion": ("decoder", WORDS, PAIRS),
    "chat": ("decoder", WORDS, CONVERSATIONS),
    "denoising": ("encoder_decoder", WORDS, TEXTS),
    "span_corruption": ("encoder_decoder", WORDS, TEXTS),
    "classification": ("encoder", LABELS, LABELLED),
    "token_classification": ("encoder", {"type": "token_classifier", "num_classes": "labels"}, TAGGED),
    "span": ("encoder", "span", ANSWERS),
    "regression": ("encoder", "regression", NUMBERED),
}
WRONG: tuple[Any, ...] = (
    *(PAIRS[0], TEXTS[0], LABELLED[0], NUMBERED[0], TAGGED[0], ANSWERS[0]),
    {"type": "text", "files": "empty.txt"},
    {"type": "text", "files": "latin.txt"},
    {"type": "text", "files": "long.txt"},
    {"type": "text", "files": "odd.txt"},
    {"type": "text", "files": "two.txt"},
    {"type": "text", "files": "missing.txt"},
    {"type": "text", "files": "folder"},
    {"type": "text", "files": "long.txt", "unit": "document"},
    {"type": "parallel_text", "source": "text.txt", "target": "short.txt"},
    {"type": "parallel_text", "source": "text.txt", "target": "missing.txt"},
    {"type": "parallel_text", "source": "long.txt", "target": "long.txt"},
    {"type": "parallel_text", "source": "odd.txt", "target": "odd.txt"},
    {"type": "parallel_tsv", "file": "ragged.tsv"},
    {"type": "labelled_text", "file": "mixed.txt"},
    {"type": "labelled_text", "file": "one_label.txt"},
    {"type": "labelled_text", "file": "holes.txt"},
    {"type": "tagged_text", "file": "text.txt", "tags": "few_tags.txt"},
    {"type": "tagged_text", "file": "text.txt", "tags": "plain_tags.txt"},
    {"type": "json_lines", "file": "broken.jsonl", "fields": {"text": "text"}},
    {"type": "chat", "file": "chat.jsonl"},
    {"type": "chat", "file": "rows.jsonl"},
    {"type": "json_lines", "file": "other.jsonl", "fields": {"text": "text", "label": "number"}},
    {"type": "json_lines", "file": "other.jsonl", "fields": {"text": "text", "tags": "tags"}},
    {"type": "json_lines", "file": "rows.jsonl", "fields": {"text": "words"}},
    {"type": "csv", "file": "rows.csv", "fields": {"text": "text", "label": "second"}},
)
SPECIAL: tuple[Any, ...] = (
    {},
    {"mask": "<mask>"},
    {"mask": "<mask>", "separator": "<sep>", "sentinels": 10},
    {"sentinels": 1},
    {"start": None},
    {"end": None},
    {"pad": None, "mask": "<mask>"},
    {"unknown": None, "mask": "<mask>", "sentinels": 5},
    {"start": None, "end": None, "mask": "<mask>"},
)
METRICS = (
    *("perplexity", "bits_per_character", "accuracy", "macro_f1", "entity_f1", "exact_match", "bleu", "chrf"),
    *({"type": "rouge", "of": "1"}, "pearson", "spearman"),
)
LOGITS: tuple[Any, ...] = (
    {"type": "temperature", "temperature": 0.7},
    {"type": "top_k", "k": 3},
    {"type": "top_k", "k": 4000},
    {"type": "top_p", "p": 0.9},
    {"type": "typical", "p": 0.9},
    {"type": "min_p", "p": 0.1},
    {"type": "min_length", "tokens": 2},
    {"type": "no_repeat_ngram", "size": 2},
    {"type": "repetition_penalty", "penalty": 1.2},
    {"type": "banned", "tokens": "e"},
    {"type": "banned", "tokens": "▁dog"},
    {"type": "banned", "tokens": 3000},
    {"type": "forced", "tokens": [5, 6]},
    {"type": "choices", "choices": ["a dog", "a cat"]},
    {"type": "choices", "choices": ["漢字"]},
    {"type": "regex", "pattern": "[a-z ]+"},
)
if find_spec("llguidance") is None:
    LOGITS = LOGITS[:-3]
STRATEGIES: tuple[Any, ...] = (
    *("greedy", "sample", "beam", "diverse_beam", "speculative", "contrastive"),
    {"type": "sample", "n_best": 2},
    {"type": "beam", "sampled": True, "num_beams": 3},
    {"type": "beam", "num_beams": 2000},
    {"type": "contrastive", "k": 2},
    {"type": "contrastive", "k": 5000},
    {"type": "speculative", "sampled": True, "tokens": 2},
    {"type": "speculative", "draft": "run"},
    {"type": "speculative", "draft": "missing"},
)
ATTENTION = {"type": "multi_head", "num_heads": 2}
LAYERS: tuple[Recipe, ...] = (
    {"attention": ATTENTION},
    {"attention": {"type": "linear", "num_heads": 2}},
    {"attention": "none", "mixer": "gru"},
    {"attention": "none", "mixer": "lstm"},
    {"attention": "none", "mixer": {"type": "short_convolution", "size": 2}},
    {"attention": "none", "mixer": "mamba"},
    {"attention": "none", "mixer": {"type": "mamba2", "head_dim": 4}},
    {"attention": "none", "mixer": "fourier"},
    {"attention": {"type": "longformer", "num_heads": 2}},
    {"attention": ATTENTION, "mask": {"type": "window", "size": 3}},
    {"attention": ATTENTION, "mask": "global_tokens"},
    {"attention": ATTENTION, "mask": "prefix"},
    {"attention": ATTENTION, "residual": "post_norm"},
    {"attention": ATTENTION, "feedforward": {"type": "experts", "num_experts": 2, "d_ff": 8}},
)
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5_bias", "none")
HEADS: tuple[Any, ...] = (
    *(WORDS, "masked_lm", "hidden", "pooled", LABELS, "span", "regression", "discriminator", "none"),
    {"type": "classifier", "num_classes": 2},
    {"type": "classifier", "num_classes": 3, "independent": True},
    {"type": "token_classifier", "num_classes": 3},
    {"type": "token_classifier", "num_classes": 1},
)
EMBEDDINGS: tuple[Any, ...] = (
    *("tokens", "features", "none"),
    {"type": "features", "d_input": 4},
    {"type": "tokens", "d_embedding": 4, "segments": 2},
    {"type": "token_dropout", "mask_id": 4},
    {"type": "token_dropout", "mask_id": 1},
    {"type": "tokens", "vectors": "vectors.txt"},
    {"type": "tokens", "vectors": "missing.txt"},
    {"type": "tokens", "shared": True},
)
TOKENIZERS: tuple[Any, ...] = (
    "character",
    "word",
    {"type": "word", "vocab_size": 12},
    {"type": "wordpiece", "vocab_size": 60},
    {"type": "wordpiece", "vocab_size": 12},
    {"type": "bpe", "vocab_size": 60},
    {"type": "unigram", "vocab_size": 60},
    {"type": "bpe", "vocab_size": 300, "byte_level": True},
    {"type": "bpe", "vocab_size": 14},
    {"type": "file", "path": "tokenizer.json"},
    {"type": "file", "path": "tokenizer.json", "special_tokens": {"start": "<s>", "end": "</s>", "mask": "<unk>"}},
    {"type": "file", "path": "tokenizer.json", "special_tokens": {"mask": "<nobody>"}},
    {"type": "file", "path": "text.txt"},
    {"type": "file", "path": "missing.json"},
)
# a dotted key -> what may stand there, right and wrong
CHOICES: dict[str, tuple[Any, ...]] = {
    "model.type": ("encoder", "decoder", "encoder_decoder"),
    "model.vocab_size": (5, 40, 400, ABSENT),
    "model.max_length": (2, 3, 4, 6, 16, 100, ABSENT),
    "model.position": POSITIONS,
    "model.embedding": EMBEDDINGS,
    "model.head": HEADS,
    "model.heads": (ABSENT, {"next_sentence": {"type": "classifier", "num_classes": 1}}, {"kind": LABELS}),
    "model.layer": LAYERS,
    "model.encoder": ({"num_layers": 2}, {"max_length": 3}, {"embedding": "features"}, {"embedding": "none"}),
    "model.decoder": ({"num_layers": 2}, {"max_length": 1}, {"embedding": "tokens"}, {"vocab_size": 300}),
    "model.special_ids": ({"start": 1}, {"pad": 0, "end": 2}, {"start": 4000}),
    "data.tokenizer": TOKENIZERS,
    "data.tokenizer.special_tokens": SPECIAL,
    "data.train": WRONG,
    "data.valid": (ABSENT, ABSENT, *WRONG),
    "data.test": (ABSENT, *WRONG),
    "data.train.limit": (1, 2, 3),
    "data.batch": (
        *({"size": 1}, {"size": 3}, {"size": 3, "by_length": False}, {"tokens": 6}, {"tokens": 40}, {"tokens": 4096}),
        *({"size": 2, "pack": True}, {"size": 2, "pack": True, "length": 40}, {"tokens": 3, "length": 3}),
        *({"tokens": 64, "pack": True, "length": 32}, {"size": 2, "length": 4}, {"size": 2, "length": 200}),
    ),
    "train.steps": (1, 2, 3),
    "train.accumulate": (1, 2),
    "train.precision": ("float32", "bfloat16"),
    "train.optimizer": ("adam", "adamw", {"type": "torch", "name": "SGD"}, {"type": "torch", "name": "LBFGS"}),
    "train.schedule": (
        *({"type": "cosine", "lr": 0.001, "warmup": 1}, {"type": "linear", "lr": 0.001, "warmup": 50}),
        *("inverse_square_root", {"type": "constant", "lr": 0.001, "warmup": 3}),
    ),
    "train.clip_norm": (ABSENT, 1.0),
    "train.evaluate_every": (1, 2, 50),
    "train.checkpoint_every": (1, 2, 50),
    "train.keep": ("best", "last", {"mean": 1}, {"mean": 2}, {"mean": 9}),
    "train.patience": (ABSENT, 1, 4),
    "train.samples": (0, 2),
    "train.init_from": ("run", "missing", "text.txt", "folder"),
    "train.freeze": (
        *(["encoder"], ["decoder"], ["head"], ["encoder.layers.0", "decoder.layers.0"], ["decoder.layer"]),
        *(["encoder", "decoder", "head"], ["nothing"]),
    ),
    "generate.strategy": STRATEGIES,
    "generate.max_new_tokens": (1, 5),
    "generate.length_ratio": (0.5, 2.0),
    "generate.stop": ("none", [], "end_token", {"type": "length", "tokens": 2}, {"type": "strings", "strings": "e"}),
    "generate.seed": (3,),
}
OPTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "causal_lm": (("join", False), ("join", True), ("block", 4), ("block", 64)),
    "masked_lm": (("whole_words", True), ("probability", 1.0), ("mask_share", 0.0), ("random_share", 0.2)),
    "next_sentence": (("whole_words", True),),
    "replaced_token": (
        *(("shared", False), ("weight", 1.0), ("generator", {**GENERATOR, "d_model": 16})),
        *(("generator", {**GENERATOR, "max_length": 4}), ("generator", {**GENERATOR, "embedding": "none"})),
        *(("generator", {**GENERATOR, "position": "learned"}), ("generator", {**GENERATOR, "mask": "global_tokens"})),
    ),
    "seq2seq": (("label_smoothing", 0.1), ("source_end", False), ("source_start", True)),
    "completion": (("type", "completion"),),  # it has no options
    "chat": (
        ("template", "{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}{{ bos_token }}"),
        ("template", "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"),
        ("template", "{% for m in messages %}{{ m.content }}{% endfor %}"),
        ("template", "{{ raise_exception('none') }}"),
        ("template", "{% for %}"),
    ),
    "denoising": (("shuffle", False), ("probability", 0.9)),
    "span_corruption": (("probability", 0.9), ("mean_span", 1.0)),
    "classification": (("head", "kind"), ("label_smoothing", 0.1)),
    "token_classification": (("head", "kind"),),
    "span": (("longest_answer", 1),),
    "regression": (("head", "kind"),),
}


def base(objective: str, random: Random) -> Recipe:
    """A right recipe that trains for `objective`."""
    kind, head, corpora = BASES[objective]
    corpus = random.choice(corpora)
    model = {**decoder(), "type": kind, "head": head}
    if kind == "encoder_decoder":
        model["embedding"] = {"type": "tokens", "shared": True}
    if objective == "next_sentence":
        model["heads"] = {"next_sentence": {"type": "classifier", "num_classes": 2}}
    special = {"mask": "<mask>", "separator": "<sep>", "sentinels": 10}
    options = {"generator": GENERATOR} if objective == "replaced_token" else {}
    split = corpus["type"] in ("phrases", "docstrings")
    valid = {**corpus, "split": "valid"} if split else corpus
    tokenizer = {"type": random.choice(("character", "word")), "special_tokens": special}
    return {
        "tfkit": 1,
        "model": model,
        "data": {"tokenizer": tokenizer, "train": corpus, "valid": valid, "batch": {"size": 4}},
        "objective": {"type": objective, **options},
        "train": {"steps": 1, "device": "cpu", "schedule": {"type": "constant", "lr": 0.001}, "samples": 1},
    }


def whole(random: Random) -> Recipe:
    """A recipe with several of its settings drawn anew; most of those that are refused at once are taken back."""
    objective = random.choice(list(BASES))
    recipe = base(objective, random)
    for _ in range(random.choice((1, 2, 4, 6, 9))):
        changed = deepcopy(recipe)
        change(changed, objective, random)
        if random.random() < 0.1 or is_accepted(changed):
            recipe = changed
    return recipe


def is_accepted(recipe: Recipe) -> bool:
    """Whether check finds nothing wrong."""
    try:
        load_recipe(recipe)
    except RecipeError:
        return False
    return True


def change(recipe: Recipe, objective: str, random: Random) -> None:
    """One setting, drawn anew."""
    kind = random.random()
    if kind < 0.1:
        name, value = random.choice(OPTIONS[objective])
        put(recipe, f"objective.{name}", value)
    elif kind < 0.2:
        rules = random.sample(LOGITS, random.choice((1, 1, 2)))
        put(recipe, "generate.logits", rules)
    elif kind < 0.3:
        put(recipe, "train.metrics", random.sample(METRICS, random.choice((1, 1, 2))))
    elif kind < 0.4:
        put(recipe, random.choice(("data.train", "data.valid", "data.test")), random.choice(BASES[objective][2]))
    else:
        key = random.choice(list(CHOICES))
        value = random.choice(CHOICES[key])
        if key == "model.layer":
            value = {**recipe["model"]["layer"], **value}
        put(recipe, key, value)


def put(recipe: Recipe, key: str, value: Any) -> None:
    """`value` at a dotted key; a part that is a bare word becomes a mapping with its type."""
    *way, last = key.split(".")
    node = recipe
    for step in way:
        inner = node.get(step, {})
        node[step] = {"type": inner} if isinstance(inner, str) else dict(inner)
        node = node[step]
    if value is ABSENT:
        node.pop(last, None)
    else:
        node[last] = value
