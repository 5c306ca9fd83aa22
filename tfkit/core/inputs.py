"""Declarations of parts as data: capabilities, exemptions from contracts, and call inputs besides ids.

A recipe that needs a capability which a part does not declare is refused with a message naming both. The contract
checks test every declared capability. Unknown words are refused at registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tfkit.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

# capabilities of a layer's parts, each with the promised behaviour
OF_LAYERS: dict[str, str] = {
    "causal": "works in causal layers",
    "bidirectional": "works in bidirectional layers",
    "cross_attention": "attends to a memory",
    "cache": "decodes incrementally from a state",
    "rewind": "can remove tokens from its decode state, or has no decode state",
    "padding": "ignores padding",
    "packing": "separates the segments of a packed batch",
    "masks": "applies mask rules besides causality, such as a window or a prefix",
    "rotation": "rotates queries and keys by position",
    "bias": "adds a position bias to the scores",
    "temperature": "scales the scores of each query by position",
    "weights": "exposes its attention weights",
    "compile": "compiles without graph breaks",
    "export": "exports with dynamic batch size and length",
}
# capabilities of all other parts
OF_SECTIONS: dict[str, str] = {
    "likelihood": "its loss is -log p of the targets",
    "characters": "its loss is -log p of all characters of a text",
    "words": "answers with text, which is compared with a reference",
    "continuations": "continues a source with generated text",
    "two_vocabularies": "uses separate tokenizers for sources and targets",
    "tags": "answers with a tag per word",
    "means": "its loss is a sum of means over tokens or texts",
    "numbers": "answers with numbers, or with labels that may be numbers",
    "probabilities": "answers with a probability for each class",
    "soft_targets": "predicts distributions over tokens or classes, which a teacher can provide",
    "own_model": "trains an additional model besides the recipe's",
    "draws": "samples tokens at random",
    "steady": "writes each text from beginning to end, as a static cache requires",
    "shards": "reads token shards, so that texts need not fit in memory",
    "averages": "has weights that are evaluated and published in place of the model's",
}
CAPABILITIES = OF_LAYERS | OF_SECTIONS

# default for sublayers that declare nothing; correct if the sublayer reads only `context.mask`
ASSUMED = frozenset({"causal", "bidirectional", "padding", "packing", "masks"})
# capabilities of every part that processes tokens independently
TOKENWISE = frozenset({"causal", "bidirectional", "cache", "padding", "packing", "masks", "compile", "export"})

# contract checks from which a part can be exempt, with a reason; `built` is always required
CONTRACTS = (
    "config", "shapes", "determinism", "precision", "gradients", "coordinates", "future", "openings", "visibility",
    "masks", "padding", "source_padding", "packing", "few", "cache", "reorder", "encoder_runs_once", "rotation",
    "bias", "temperature", "cross_attention", "weights", "seed", "initial", "copies", "saving", "meta", "dropout",
    "refusals", "compile", "export", "plain", "ids", "round_trip", "batch", "special_tokens", "refit", "no_text",
    "saved_tokenizer", "fields", "repeatable", "limit", "missing_file", "says_what_it_reads", "items", "batches",
    "loss", "loss_gradients", "loss_rows", "packed_loss", "vocabularies", "unusable", "step", "learning_rate",
    "frozen", "decay", "optimizer_state", "rates", "pure", "reads", "perfect", "order", "pairs", "loss_order", "logits",
    "in_place", "rows", "done", "cut", "candidates", "ruled", "seeded", "beside", "stateless", "untouched", "told",
    "unadapted", "adapted", "merged", "observes", "averages", "callback_state",
)  # fmt: skip

# call inputs that a part can require, besides ids and padding
INPUTS = ("token_type_ids", "global_attention_mask", "prefix_length")
# fields of examples that contain text; no extra input has such a name
TEXT_FIELDS = (
    "text", "second", "source", "target", "label", "tags", "question", "context", "answer", "answer_start", "vectors",
    "tag",
)  # fmt: skip
RESERVED = {
    *(*INPUTS, *TEXT_FIELDS, "input_ids", "inputs_embeds", "inputs", "attention_mask", "position_ids", "segment_ids"),
    *("labels", "state", "observe", "with_heads", "use_cache", "past_key_values", "config", "max_new_tokens"),
    *("return_dict", "output_attentions", "output_hidden_states", "generation_config", "cache_position"),
}


def extra_widths(declared: object, part: str) -> tuple[tuple[str, int], ...]:
    """Return the extra inputs that a part declares, with their widths. Raise UsageError naming the part."""
    if not isinstance(declared, Mapping):
        raise UsageError(f"{part}: inputs must be {{'condition': {{'width': 16}}}} or similar, got {declared!r}")
    for name, facts in declared.items():
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise UsageError(f"{part}: inputs: {name!r} cannot name an input; use a word that is not a field or input")
        width = facts.get("width") if isinstance(facts, Mapping) else None
        if type(width) is not int or width < 1 or len(facts) > 1:
            raise UsageError(f"{part}: inputs: '{name}' must have a width from 1 and nothing else, got {facts!r}")
    return tuple((name, facts["width"]) for name, facts in declared.items())


@dataclass(frozen=True)
class Inputs:
    """Inputs of a call besides ids, read by mask rules and parts."""

    input_ids: Tensor | None = None  # [batch time]
    token_type_ids: Tensor | None = None  # [batch time]
    global_attention_mask: Tensor | None = None  # [batch time], 1 = attends to all and is attended to by all
    prefix_length: Tensor | None = None  # [batch], length of the prefix visible to all
    real: Tensor | None = None  # [batch time], True = not padding; None: no padding
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # inputs that parts declare, [batch width] each

    def __getitem__(self, name: str) -> Tensor:
        """Return an extra input, [batch width]. Raise UsageError if the call has none of this name."""
        if name not in self.extra:
            raise UsageError(f"the call has no input '{name}'; declare it in the part's inputs, and pass it")
        return self.extra[name]
