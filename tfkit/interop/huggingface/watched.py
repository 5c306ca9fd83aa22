"""Tracking of the config.json keys that a family reads, to report unread keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfkit.core.trees import JsonObject
from tfkit.interop.huggingface.settings import ConfigJson

# harmless keys: they do not affect outputs or are read elsewhere
HARMLESS = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "_sliding_window_pattern", "architectures", "attn_implementation", "auto_map", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout",
    "cross_attention_hidden_size", "decoder_layerdrop", "decoder_start_token_id", "diversity_penalty", "do_sample",
    "dtype", "early_stopping", "embd_pdrop", "embedding_initializer_range", "encoder_layerdrop",
    "encoder_no_repeat_ngram_size", "eod_token_id", "eos_token_id", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label", "init_std",
    "initializer_factor", "initializer_range", "is_encoder_decoder", "label2id", "langs", "language", "layerdrop",
    "length_penalty", "max_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_labels", "num_return_sequences", "output_attentions", "output_hidden_states", "output_past",
    "output_router_logits", "output_scores", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "pruned_heads", "remove_invalid_values", "reorder_and_upcast_attn", "repetition_penalty", "resid_pdrop",
    "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "sep_token_id", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k",
    "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
}  # fmt: skip


class Watched(JsonObject):
    """A config that records accesses to its keys; nested keys are dotted.

    `accessed` maps the keys to their values, in order of their last access.
    """

    def __init__(self, config: ConfigJson, prefix: str = "", accessed: dict[str, object] | None = None) -> None:
        self.accessed: dict[str, object] = {} if accessed is None else accessed
        self._prefix = prefix
        below = {
            key: Watched(value, f"{prefix}{key}.", self.accessed) for key, value in config.items() if _is_tree(value)
        }
        super().__init__({**config, **below})

    def __getitem__(self, key: str) -> object:
        self._ask(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._ask(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: object = None) -> Any:
        self._ask(key)
        return super().get(key, default)

    def _ask(self, key: str) -> None:
        name = f"{self._prefix}{key}"
        self.accessed.pop(name, None)  # reinserted, so that the key moves to the end
        self.accessed[name] = super().get(key)

    def unread(self) -> list[str]:
        """Return the keys with values that were not read, except harmless keys."""
        return list(_unread(self, self._prefix, self.accessed))


def _unread(config: ConfigJson, prefix: str, accessed: Mapping[str, object]) -> list[str]:
    unread = []
    for key, value in config.items():
        if key in HARMLESS or value is None or (key == "is_decoder" and not value) or _is_older(key, value, config):
            continue
        if prefix + key not in accessed:
            unread.append(prefix + key)
        elif _is_tree(value) and any(name.startswith(f"{prefix}{key}.") for name in accessed):
            unread += _unread(value, f"{prefix}{key}.", accessed)
    return unread


def _is_older(key: str, value: object, config: ConfigJson) -> bool:
    """True for a rotary setting in the keys of transformers 4 that rope_parameters repeats."""
    parameters = dict(config.items()).get("rope_parameters")
    if not isinstance(parameters, dict) or not ("rope" in key or "rotary" in key) or parameters is value:
        return False
    parts = [parameters, *(one for one in parameters.values() if isinstance(one, dict))]
    older = value.values() if isinstance(value, dict) else [value]
    return all(any(one in part.values() for part in parts) for one in older)


def _is_tree(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
