"""Export of a run's tokenizer: tokenizer.json and the files that name special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfkit.data.tokenizer import Tokenizer
from tfkit.interop.huggingface.special import TOKEN_KEYS, read_optional
from tfkit.interop.huggingface.tokenizer import FILE, without_roles
from tfkit.run import Run
from tfkit.storage.files import write_json, write_text
from tfkit.training.folder import TARGET_TOKENIZER
from tfkit.training.kept import CHAT_TEMPLATE, TOKENIZER_CONFIG, TOKENS_MAP

TEXT = -1  # placeholder for the text in an objective's prompt
CLASS = "PreTrainedTokenizerFast"  # generic transformers class for a tokenizer.json


def write_tokenizer(run: Run, kept: Path, folder: Path) -> None:
    """Write the tokenizer files to `folder`; files that an import left in `kept` are copied.

    If there are two tokenizers, tokenizer.json is the source tokenizer, which pipelines use; the target tokenizer is
    saved next to it.
    """
    tokenizer = run.source_tokenizer
    if tokenizer is not run.tokenizer:
        run.tokenizer.save(folder / TARGET_TOKENIZER)
    data = without_roles(tokenizer.to_json())
    if data["post_processor"] is None and run.recipe.objective is not None:
        data["post_processor"] = _template(run.objective.rows.prompt([TEXT]), tokenizer)
    write_json(folder / FILE, data)
    names = _names(tokenizer, run.blueprint.decoder is not None)
    stored = read_optional(kept / TOKENIZER_CONFIG)
    settings = stored or {**names, "model_max_length": _length(run), "clean_up_tokenization_spaces": False}
    if not stored and run.blueprint.encoder is None:
        settings["padding_side"] = "left"  # generation appends to the prompt, so it must not end with an end token
    if run.recipe.objective is not None and run.chat_template is not None:
        write_text(folder / CHAT_TEMPLATE, run.chat_template)
        settings = {**settings, "chat_template": run.chat_template}
    write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": CLASS, **settings})
    write_json(folder / TOKENS_MAP, read_optional(kept / TOKENS_MAP) or names)


def _names(tokenizer: Tokenizer, writes: bool) -> dict[str, str]:
    """Return the special tokens under transformers' names: one name each if the model generates, else up to two."""
    names: dict[str, str] = {}
    for role, keys in TOKEN_KEYS.items():
        if role in tokenizer.special_ids:
            names |= dict.fromkeys(keys[:1] if writes else keys, tokenizer.token(tokenizer.special_ids[role]))
    return names


def _length(run: Run) -> int:
    """Return the maximum text length in tokens."""
    bounds = [plan.max_length for plan in run.blueprint.stacks() if plan.max_length is not None]
    return min(bounds, default=10**30)  # transformers' value for unbounded


def _template(prompt: Sequence[int], tokenizer: Tokenizer) -> Mapping[str, object] | None:
    """Return a post-processing step that adds the prompt's special tokens, as in training; None if there are none."""
    around = [id_ for id_ in prompt if id_ != TEXT]
    if not around:
        return None
    pieces = [_piece(id_, tokenizer) for id_ in prompt]
    other = {"Sequence": {"id": "B", "type_id": 0}}
    place = prompt.index(TEXT) + 1
    texts = {tokenizer.token(id_): id_ for id_ in around}
    marks = {text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in texts.items()}
    pair = [*pieces[:place], other, *pieces[place:]]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": marks}


def _piece(id_: int, tokenizer: Tokenizer) -> dict[str, object]:
    if id_ == TEXT:
        return {"Sequence": {"id": "A", "type_id": 0}}
    return {"SpecialToken": {"id": tokenizer.token(id_), "type_id": 0}}
