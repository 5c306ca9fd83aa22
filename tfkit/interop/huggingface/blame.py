"""Settings read while a config becomes a recipe, and attribution of recipe faults to keys of config.json."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfkit.core.bounds import JsonObject, Tree
from tfkit.core.errors import DataError, Fault, RecipeError, TfkitError
from tfkit.interop.huggingface.family import Family
from tfkit.interop.huggingface.settings import ConfigJson, Setting, look, put
from tfkit.recipe.model import blueprint_of

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


MOST = 4  # maximum number of keys in a message
PROBES = (2, 8)  # values tried as replacements for a key's value
NOWHERE = " (at <mapping>)"  # suffix of the location of values that are not from a file
# parts of a recipe path that are omitted in a family's settings: the prefix, the kind of layer and list indices
UNSAID = re.compile(r"^model\.|(?<=layer)s\.\w+|\[\d+\]")


def config_fault(file: Path, family: type[Family], config: Watched, error: TfkitError) -> DataError:
    """Return the error with the file name and the config.json keys responsible for each fault."""
    curing = _curing(family, config)
    faults = error.faults if isinstance(error, RecipeError) else []
    lines = [_line(family, config, fault, curing) for fault in faults] or [_with_keys(str(error), config, curing)]
    return DataError("\n".join(f"{file}: {line}" for line in dict.fromkeys(lines)))


def unreadable(file: Path, family: type[Family], config: Watched, error: Exception) -> DataError:
    """Return a DataError for an exception in a family's conversion, naming the file and the keys."""
    what = f"not a config of the family '{family.part_name}' ({type(error).__name__}: {error})"
    keys = _curing(family, config) or [*config.accessed][-1:]
    return DataError(f"{file}: {_with_keys(what, config, keys)}")


def _line(family: type[Family], config: Watched, fault: Fault, curing: Sequence[str]) -> str:
    """Format a fault with the keys that it mentions and the keys that fix it if changed."""
    message = f"{UNSAID.sub('', fault.path)}: {fault.message.replace(NOWHERE, '')}"
    return _with_keys(message, config, [*(row.config_key for row in _about(family, fault)), *curing])


def _about(family: type[Family], fault: Fault) -> Iterator[Setting]:
    """Yield the settings whose keys correspond to the path of a fault."""
    path = UNSAID.sub("", fault.path)
    rows: Sequence[Setting] = (*family.settings, *family.head_settings)
    for row in rows:
        for key in row.keys:
            owner, _, option = key.rpartition(".")
            if path == key or path.startswith(f"{key}.") or (path == owner and f"'{option}'" in fault.message):
                yield row


def _curing(family: type[Family], config: Watched) -> list[str]:
    """Return the keys whose removal or replacement fixes all faults, else the missing keys."""
    accessed = dict(reversed([*config.accessed.items()]))
    variants = {key: without(config, key.split(".")) for key, value in accessed.items() if value is not None}
    missing = {key: dict(config) for key, value in accessed.items() if value is None and "." not in key}
    cures = [
        key for key, bare in (variants | missing).items() if any(_builds(family, one) for one in _others(bare, key))
    ]
    return cures or [key for key, bare in variants.items() if _is_missed(family, bare, key)]


def _others(bare: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    """Yield copies of the config: one without a key, then some with other numbers as its value."""
    yield bare
    for number in PROBES:
        config = copy.deepcopy(dict(bare))
        put(config, key, number)
        yield config


def _builds(family: type[Family], config: ConfigJson) -> bool:
    try:
        blueprint_of(family.recipe(config))
    except Exception:  # values of unexpected types may raise any exception
        return False
    return True


def _is_missed(family: type[Family], bare: Mapping[str, object], key: str) -> bool:
    """True if the conversion fails only because the key is missing."""
    last = key.rpartition(".")[2]
    try:
        family.recipe(bare)
    except Exception as error:  # a DataError or a KeyError about the key
        return error.args == (last,) or f"{last} is required" in str(error)
    return False


def without(config: ConfigJson, path: Sequence[str]) -> Tree:
    """Return a copy of the config without the key at `path`."""
    first, *rest = path
    below = {first: without(config[first], rest)} if rest and isinstance(config.get(first), Mapping) else {}
    return {key: value for key, value in config.items() if key != first or rest} | below


def _with_keys(message: str, config: ConfigJson, keys: Sequence[str]) -> str:
    named = [_named(config, key) for key in [*dict.fromkeys(keys)][:MOST]]
    return f"{', '.join(named)}: {message}" if named else message


def _named(config: ConfigJson, key: str) -> str:
    value = look(config, key, None)
    text = "missing" if value is None else json.dumps(value, default=str)
    return f"{key} {text if len(text) <= 60 else f'{text[:57]}...'}"
