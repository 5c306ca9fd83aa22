"""Their small files, which an import keeps in a run as they were, for the way back."""

from __future__ import annotations

from pathlib import Path

from tfkit.core.files import write_json, write_text
from tfkit.interop.huggingface.files import CONFIG
from tfkit.interop.huggingface.special import GENERATION, TOKENIZER_CONFIG, TOKENS_MAP
from tfkit.interop.huggingface.strangers import file_in, mapping_in, text_in, without_code

THEIRS = "huggingface"  # the folder of a run that they lie in
SMALL = (CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENS_MAP, "chat_template.jinja")


def keep(source: Path, folder: Path) -> list[str]:
    """Their small files as they were, but for what names code; returns the names of those that named some."""
    (folder / THEIRS).mkdir()
    named = []
    for name in SMALL:
        path = file_in(source, name)
        if path is None:
            continue
        text = text_in(path)
        data = mapping_in(path) if path.suffix == ".json" else {}
        if without_code(data) != data:
            named.append(name)
            write_json(folder / THEIRS / name, without_code(data))
        else:
            write_text(folder / THEIRS / name, text)
    return named
