"""A run's tokenizer as the files that they read: tokenizer.json, and which of its tokens are special."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfkit.core.files import write_json
from tfkit.data.tokenizer import Tokenizer
from tfkit.interop.huggingface.special import THEIR_TOKENS, read_optional
from tfkit.interop.huggingface.tokenizer import FILE, without_roles
from tfkit.run import Run
from tfkit.training.folder import TARGET_TOKENIZER
from tfkit.training.kept import TOKENIZER_CONFIG, TOKENS_MAP

TEXT = -1  # stands for a text where it is asked what an objective puts around one
CLASS = "PreTrainedTokenizerFast"  # their class of a tokenizer.json that is no special case


def write_tokenizer(run: Run, kept: Path, folder: Path) -> None:
    """Write the tokenizer's files to `folder`; `kept` holds those that an import found, which stay as they were.

    Of two tokenizers tokenizer.json is that of the sources, which their pipelines encode; the targets' lies beside it.
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
        settings["padding_side"] = "left"  # so that what is written stands after its prompt
    write_json(folder / TOKENIZER_CONFIG, {"tokenizer_class": CLASS, **settings})
    write_json(folder / TOKENS_MAP, read_optional(kept / TOKENS_MAP) or names)


def _names(tokenizer: Tokenizer, writes: bool) -> dict[str, str]:
    """Their names of the special tokens; what starts and ends a text has a second one in models that only read."""
    names: dict[str, str] = {}
    for role, keys in THEIR_TOKENS.items():
        if role in tokenizer.special_ids:
            names |= dict.fromkeys(keys[:1] if writes else keys, tokenizer.token(tokenizer.special_ids[role]))
    return names


def _length(run: Run) -> int:
    """How many tokens a text may have."""
    bounds = [plan.max_length for plan in run.blueprint.stacks() if plan.max_length is not None]
    return min(bounds, default=10**30)  # what they write where there is no bound


def _template(prompt: Sequence[int], tokenizer: Tokenizer) -> Mapping[str, Any] | None:
    """What the model was trained to find around a text, as a step that adds it; None where that is nothing."""
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


def _piece(id_: int, tokenizer: Tokenizer) -> dict[str, Any]:
    if id_ == TEXT:
        return {"Sequence": {"id": "A", "type_id": 0}}
    return {"SpecialToken": {"id": tokenizer.token(id_), "type_id": 0}}
