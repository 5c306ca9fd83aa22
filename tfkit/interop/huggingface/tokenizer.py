"""Tokenizers from Hugging Face files: tokenizer.json, or a BERT or GPT-2 vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tfkit.core.errors import DataError
from tfkit.core.trees import JsonObject
from tfkit.data.corpus.lines import split_lines
from tfkit.data.tokenizer import Tokenizer
from tfkit.data.tokenizer.backend import check_ids, panics_as_errors, read_backend
from tfkit.data.tokenizer.special import infer_roles
from tfkit.interop.huggingface.special import read_optional, role_texts
from tfkit.interop.huggingface.strangers import file_in, text_in
from tfkit.training.folder import TARGET_TOKENIZER
from tfkit.training.kept import TOKENIZER_CONFIG

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


def without_roles(text: str) -> JsonObject:
    """Return a tfkit tokenizer.json without the post-processing template that only stores roles."""
    data: JsonObject = json.loads(text)
    step = data["post_processor"]
    steps = [] if step is None else step["processors"] if step["type"] == "Sequence" else [step]
    rest = [step for step in steps if "tfkit" not in step.get("special_tokens", {})]
    if len(rest) > 1:
        data["post_processor"] = {"type": "Sequence", "processors": rest}
    else:
        data["post_processor"] = rest[0] if rest else None
    return data
