"""Tokenizers from Hugging Face files: tokenizer.json, or a BERT or GPT-2 vocabulary."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tfkit.core.bounds import JsonObject
from tfkit.core.errors import DataError, TfkitWarning
from tfkit.data.corpus.lines import split_lines
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.backend import check_ids, infer_roles, own_steps, panics_as_errors, read_backend
from tfkit.interop.huggingface.strangers import TOKEN_KEYS, file_in, read_optional, role_texts, text_in
from tfkit.run import Run
from tfkit.runs.folder import TARGET_TOKENIZER
from tfkit.runs.kept import CHAT_TEMPLATE, TOKENIZER_CONFIG, TOKENS_MAP
from tfkit.storage.files import write_json, write_text

FILE = "tokenizer.json"
WORDPIECE, VOCABULARY, MERGES = "vocab.txt", "vocab.json", "merges.txt"


def tokenizer_of(folder: Path, ids: Mapping[str, list[int]]) -> Tokenizer | None:
    """Return the tokenizer of a folder, or None if it has no readable one.

    The special tokens are named in the files; `ids` (by role, from config.json) take precedence if in the vocabulary.
    Raises DataError for invalid files.
    """
    backend = _backend(folder)
    if backend is None:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=True)
    roles = {role: text for role, text in role_texts(folder).items() if text in vocabulary} or infer_roles(backend)
    target = file_in(folder, TARGET_TOKENIZER)
    if target is not None:
        return _target(target, ids).beside(Tokenizer(backend, roles))
    return Tokenizer(backend, _with_ids(roles, backend, ids))


def _target(file: Path, ids: Mapping[str, list[int]]) -> Tokenizer:
    """Return the target tokenizer of a model with two vocabularies; `ids` from config.json refer to it."""
    target = Tokenizer.from_json(text_in(file))
    roles = {role: target.token(id_) for role, id_ in target.special_ids.items()}
    return Tokenizer(target.backend, _with_ids(roles, target.backend, ids))


def _with_ids(roles: dict[str, str], backend: tokenizers.Tokenizer, ids: Mapping[str, list[int]]) -> dict[str, str]:
    """Return the special tokens by role, overridden by `ids` from config.json."""
    for role, each in ids.items():
        text = backend.id_to_token(each[0])
        if text is not None:
            roles[role] = text
    return roles


def unreadable(folder: Path) -> list[str]:
    """Return the names of tokenizer files in unsupported formats."""
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".model", ".tiktoken"))


def _backend(folder: Path) -> tokenizers.Tokenizer | None:
    whole, words, ids, merges = (file_in(folder, name) for name in (FILE, WORDPIECE, VOCABULARY, MERGES))
    if whole is not None:
        return _whole(whole)
    settings = read_optional(folder / TOKENIZER_CONFIG)
    if words is not None:
        return _wordpiece(words, settings)
    if ids is not None and merges is not None:
        return _bytes(ids, merges, settings)
    return None


def _whole(path: Path) -> tokenizers.Tokenizer:
    try:
        return read_backend(text_in(path))
    except DataError as error:
        raise DataError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _wordpiece(path: Path, settings: JsonObject) -> tokenizers.Tokenizer:
    """Build BERT's tokenizer from a vocabulary file with one token per line."""
    tokens = split_lines(text_in(path))
    ids = {token: number for number, token in enumerate(tokens)}
    unknown = _token(settings, "unk_token", "[UNK]")
    if unknown not in ids:
        raise DataError(f"{path}: lacks {unknown} and is not a BERT vocabulary")
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    first, last = _token(settings, "cls_token", "[CLS]"), _token(settings, "sep_token", "[SEP]")
    special = [
        token for token in (_token(settings, "pad_token", "[PAD]"), unknown, first, last, "[MASK]") if token in ids
    ]
    backend.add_special_tokens(special)
    if first in ids and last in ids:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(first, ids[first]), (last, ids[last])],
        )
    return backend


def _bytes(ids: Path, pairs: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer:
    """Build GPT-2's tokenizer from a vocabulary file and a merges file."""
    try:
        with panics_as_errors():
            vocabulary, merges = models.BPE.read_file(str(ids), str(pairs))
            check_ids(vocabulary.items(), len(vocabulary))
            backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # tokenizers raises plain Exception
        raise DataError(f"{ids}: the vocabulary cannot be read: {error}") from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space", False)))
    backend.decoder = decoders.ByteLevel()
    names = {text for text in role_texts(ids.parent).values() if text in vocabulary} | (
        {"<|endoftext|>"} & set(vocabulary)
    )
    backend.add_special_tokens(sorted(names, key=vocabulary.__getitem__))
    return backend


def _token(settings: Mapping[str, object], key: str, default: str) -> str:
    value = settings.get(key, default)
    return str(value.get("content", default)) if isinstance(value, dict) else str(value)


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
    if run.tokenizer.kmers or tokenizer.kmers:
        text = f"{run.folder}: the exported {FILE} reads k-mers separated by spaces: ATG TGC, where tfkit reads ATGC"
        warnings.warn(text, TfkitWarning, stacklevel=3)
    data: JsonObject = json.loads(tokenizer.to_json())
    steps = own_steps(data["post_processor"])
    data["post_processor"] = {"type": "Sequence", "processors": steps} if len(steps) > 1 else next(iter(steps), None)
    if not steps and run.recipe.objective is not None:
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
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pieces = [text if id_ == TEXT else {"SpecialToken": {"id": tokenizer.token(id_), "type_id": 0}} for id_ in prompt]
    other = {"Sequence": {"id": "B", "type_id": 0}}
    place = prompt.index(TEXT) + 1
    texts = {tokenizer.token(id_): id_ for id_ in around}
    marks = {token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in texts.items()}
    pair = [*pieces[:place], other, *pieces[place:]]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": marks}
