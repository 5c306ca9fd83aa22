"""Generation settings of transformers as a recipe's `generate:` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tfkit.core.bounds import Options, Tree
from tfkit.core.errors import on_one_line
from tfkit.core.registry import REGISTRY
from tfkit.interop.huggingface.settings import ConfigJson
from tfkit.interop.huggingface.strangers import token_ids

# setting -> value without effect, tfkit's rule and its option, in the order in which transformers applies them
RULES: Mapping[str, tuple[float | None, str, str]] = {
    "repetition_penalty": (1.0, "repetition_penalty", "penalty"),
    "no_repeat_ngram_size": (0, "no_repeat_ngram", "size"),
    "bad_words_ids": (None, "banned", "tokens"),
    "min_length": (0, "min_length", "tokens"),
    "min_new_tokens": (0, "min_length", "tokens"),
    "forced_bos_token_id": (None, "forced", "tokens"),
    "forced_eos_token_id": (None, "forced", "tokens"),
    "suppress_tokens": (None, "banned", "tokens"),
    "begin_suppress_tokens": (None, "banned", "tokens"),
    "temperature": (1.0, "temperature", "temperature"),
    "top_k": (0, "top_k", "k"),
    "top_p": (1.0, "top_p", "p"),
    "min_p": (0, "min_p", "p"),
    "typical_p": (1.0, "typical", "p"),
    "epsilon_cutoff": (0, "epsilon", "epsilon"),
    "eta_cutoff": (0, "eta", "epsilon"),
    "stop_strings": (None, "strings", "strings"),
    "max_time": (None, "time", "seconds"),
}
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical", "epsilon", "eta")  # rules
# further options of a rule
FIXED: Mapping[str, Options] = {
    "min_length": {"prompt": True},
    "forced_eos_token_id": {"last": True},
    "begin_suppress_tokens": {"at": 0},
    "stop_strings": {"keep": True},
}
# setting -> option of a strategy
STRATEGY = {
    "num_beams": "num_beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping",
    "num_return_sequences": "n_best", "do_sample": "sampled", "num_beam_groups": "groups",
    "diversity_penalty": "diversity",
}  # fmt: skip
# other settings of an old config.json; task_specific_params are those of pipelines
OTHERS = (
    "max_length", "max_new_tokens", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "task_specific_params",
)  # fmt: skip
# beginnings of settings that do not change the text, or are read as special tokens
SILENT = (
    "_", "assistant", "bos_", "cache_", "compile", "decoder_start", "disable_compile", "eos_", "low_memory",
    "max_cache", "num_assistant", "output_", "pad_", "prefill", "return_", "target_look", "transformers_", "use_cache",
)  # fmt: skip


class Settings(NamedTuple):
    """The `generate:` section of generation settings, the settings that it expresses, and those that it does not."""

    section: Tree
    used: Tree
    left: list[str]

    def notes(self) -> list[str]:
        """Describe what was taken over and what was not."""
        used = [f"{key} {on_one_line(str(value), 40)}" for key, value in self.used.items()]
        both = (("generation defaults", used), ("generation settings not used", self.left))
        return [f"{text}: {', '.join(names)}" for text, names in both if names]


def settings_of(config: ConfigJson, generation: Mapping[str, object]) -> Tree:
    """Return the generation settings; those of an old config.json apply only without a generation_config.json."""
    old = {key: config[key] for key in (*RULES, *STRATEGY, *OTHERS) if key in config}
    return {key: value for key, value in (generation or old).items() if value is not None}


def generate_section(config: ConfigJson, generation: Mapping[str, object], size: int, paired: bool) -> Settings:
    """Convert the settings of a model. Ids must be below `size`; `paired` is true if the model has an encoder."""
    stored = settings_of(config, generation)
    ends = [id_ for id_ in token_ids(config, generation).get("end", []) if id_ < size]
    draws = stored.get("do_sample") is True
    stored |= {"top_k": 50} if draws and "top_k" not in stored else {}  # transformers' default
    section, strategy = _lengths(stored, paired), _strategy(stored, draws)
    used = ["max_length", "max_new_tokens", "do_sample"] if draws else ["max_length", "max_new_tokens"]
    used += [key for key, option in STRATEGY.items() if option in strategy]
    rules: dict[str, list[Tree]] = {"logits": [], "stop": []}
    for key, (nothing, rule, option) in RULES.items():
        value, slot = stored.get(key), "stop" if key in ("stop_strings", "max_time") else "logits"
        if rule in ("banned", "forced"):
            value = _ids(key, value, size, ends)
        if value in (None, [], nothing) or (rule in OF_SAMPLING and not draws):
            continue
        if (key == "forced_bos_token_id" and not paired) or (rule == "min_length" and not ends):
            continue
        used.append(key)
        if not (key == "top_k" and isinstance(value, int) and value >= size):
            more: Tree = {"ends": ends} if rule == "min_length" else {}
            more |= {"at": 1} if key == "begin_suppress_tokens" and "forced_bos_token_id" in used else {}
            rules[slot].append({"type": rule, option: value, **FIXED.get(key, {}), **more})
    if len(ends) > 1 or rules["stop"]:
        rules["stop"].insert(0, {"type": "end_token", **({"tokens": ends} if len(ends) > 1 else {})})
    section |= {"strategy": strategy} if strategy["type"] != "greedy" else {}
    section |= {slot: found for slot, found in rules.items() if found}
    left = _left(stored, used) + ["eos_token_id"] * (not ends and stored.get("eos_token_id") not in (None, []))
    return Settings(section, {key: value for key, value in stored.items() if key in used}, left)


def _lengths(stored: Tree, paired: bool) -> Tree:
    """Return the limits: `max_length` counts the prompt, which is the start token in an encoder-decoder."""
    whole = stored.get("max_length")
    if "max_new_tokens" in stored or whole is None:
        return {key: stored[key] for key in ("max_new_tokens",) if key in stored}
    new = max(1, whole - 1) if isinstance(whole, int) else whole
    return {"max_new_tokens": new, **({} if paired else {"max_length": whole})}


def _strategy(stored: Tree, draws: bool) -> Tree:
    beams = "beam" if stored.get("num_beam_groups", 1) == 1 else "diverse_beam"
    name = beams if stored.get("num_beams", 1) != 1 else "sample" if draws else "greedy"
    fields = REGISTRY.get("strategy", name).Config.model_fields
    return {"type": name} | {
        option: stored[key] for key, option in STRATEGY.items() if key in stored and option in fields
    }


def _ids(key: str, value: object, size: int, ends: list[int]) -> list[int]:
    """Return the ids in an id, or in a list of ids or of words of one token. End tokens are not bad words."""
    words = value if isinstance(value, list) else [value]
    flat = [word[0] if isinstance(word, list) and len(word) == 1 else word for word in words]
    ids = [id_ for id_ in flat if type(id_) is int and 0 <= id_ < size and not (key == "bad_words_ids" and id_ in ends)]
    return [min(ids)] if ids and key.startswith("forced") else ids


def _left(stored: Tree, used: list[str]) -> list[str]:
    """Return the settings that have an effect and are not used."""
    left = []
    for key, value in stored.items():
        without = (RULES[key][0],) if key in RULES else (0,) if "ngram" in key else (0, 1)
        if key not in used and (value is True or value not in (*without, [], {})) and not key.startswith(SILENT):
            left.append(key)
    words = stored.get("bad_words_ids") if "bad_words_ids" in used else None
    phrases = [word for word in words if isinstance(word, list) and len(word) > 1] if isinstance(words, list) else []
    return left + ["bad_words_ids of several tokens"] * bool(phrases)
