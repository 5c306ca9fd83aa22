"""FASTA: sequences under headers of names and values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from pydantic import Field

from tfkit.core.errors import DataError
from tfkit.core.options import PositiveInt, RecipePath
from tfkit.core.registry import register
from tfkit.data.corpus.base import Example, Fields, Record, TextRecordCorpus
from tfkit.data.corpus.lines import Lines, check_memory
from tfkit.data.corpus.records import pick
from tfkit.recipe.settings.sections import Section

# [key=value], key="value", key='value', key=value, word
WORDS = re.compile(r"""\[([^\s=\]]+)=([^\]]*)\]|([^\s=]+)=(?:"([^"]*)"|'([^']*)'|(\S*))|(\S+)""")
SEQUENCE = re.compile(r"[A-Z*-]+|[acgtunACGTUN-]+|(?i:[acgturykmbdhvswn-]{20,})")  # of amino acids or nucleotides
SUFFIXES = (".fasta", ".fa", ".faa", ".fna", ".ffn", ".fas")
CODES = "ACGTURYKMBDHVSWN-.acgturykmbdhvswn"  # of nucleotides (IUPAC), and gaps
COMPLEMENT = str.maketrans(CODES, "TGCAAYRMKVHDBSWN-.tgcaayrmkvhdbswn")
CHECKED = 2**12  # lines between checks of the memory


class Windows(Section):
    """Windows of a sequence."""

    length: PositiveInt = Field(description="number of letters; the last window may be shorter")
    stride: PositiveInt | None = Field(None, description="letters between the starts of windows; none: `length`")


@register("corpus", "fasta")
class Fasta(TextRecordCorpus):
    """FASTA: one example per sequence, whose wrapped lines are joined; `fields: {label: family}` reads a header's key.

    In `>ID words key=value key="two words" [key=value]`, words after a bare value continue it, and other words are the
    `description`. Further names: `id`, `sequence`, and `start` of a window, from 0. Comments (;), blanks and a final *
    are not part of a sequence.
    """

    class Config(TextRecordCorpus.Config):
        file: RecipePath = Field(description="a FASTA file")
        fields: Fields = Field({"text": "sequence"}, description="name of each field; without `sequence`, text has it")
        case: Literal["keep", "upper"] = Field("keep", description="keep lower case, or convert to upper case")
        windows: Windows | None = Field(None, description="one example per window; none: one per sequence")
        reverse_complement: bool = Field(False, description="add the reverse complement of each (nucleotides only)")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if "sequence" not in self.names.values():
            self.names = {"text": "sequence", **self.names}
            self.fields = tuple(self.names)

    def records(self) -> Iterator[Record]:
        """Yield the fields of each sequence or window, then those of its reverse complement."""
        for place, record in records(self.file, self.encoding):
            letters = record["sequence"].upper() if self.config.case == "upper" else record["sequence"]
            reverse = reverse_complement(letters, place) if self.config.reverse_complement else None
            windows, size, starts = self.config.windows, len(letters), range(1)
            if windows is not None:
                stride = windows.stride or windows.length
                starts = range(0, max(1, min(size, size - windows.length + stride)), stride)
            for start in starts:
                stop = size if windows is None else min(size, start + windows.length)
                found = record if windows is None else {**record, "start": str(start)}
                cuts = [letters[start:stop]] + ([] if reverse is None else [reverse[size - stop : size - start]])
                yield from ((place, pick({**found, "sequence": cut}, self.names, place, self.also)) for cut in cuts)


def records(file: str, encoding: str = "utf-8") -> Iterator[Record]:
    """Yield the line of each header with `id`, `sequence`, `description` and its keys, as the file is read.

    Raise DataError for text before the first header, and for a header without an id.
    """
    lines, place, header, letters, several = Lines(file, encoding, keep_cut=True), "", "", StringIO(), False
    for number, line in enumerate(chain(lines, (None,)), start=1):
        if line is None or line.startswith(">"):
            if header and not (line is None and lines.is_cut and several):  # a cut file ends within a record
                yield place, _parsed(header, place) | {"sequence": letters.getvalue().removesuffix("*")}
            several, place, header, letters = bool(header), f"{file}:{number}", line or "", StringIO()
        elif line.strip() and not line.startswith(";"):
            if not header:
                raise DataError(f"{file}:{number}: expected a header (>ID ...) before {line.strip()[:30]!r}")
            letters.write("".join(line.split()))
            if number % CHECKED == 0:
                check_memory(file, letters.tell())


def _parsed(header: str, place: str) -> Example:
    name, rest = (*header[1:].split(maxsplit=1), "", "")[:2]
    if not name:
        raise DataError(f"{place}: the header has no id; write >ID")
    found, last = {"description": ""}, "description"
    for bracketed, inner, key, double, single, bare, word in WORDS.findall(rest):
        if word:
            found[last] = f"{found[last]} {word}".strip()
        else:
            found[bracketed or key] = inner or double or single or bare
            last = key if bare else "description"
    return found | {"id": name}


def reverse_complement(sequence: str, place: str) -> str:
    """Return the reverse complement, of RNA if the sequence has U. Raise DataError for other letters."""
    is_rna = not set("Uu").isdisjoint(sequence)
    if wrong := set(sequence).difference(CODES).union(set("Tt").intersection(sequence) if is_rna else ()):
        at = min(map(sequence.index, wrong))
        text = f"letter {at + 1} of the sequence, {sequence[at]!r}, is no nucleotide of DNA or RNA (IUPAC codes)"
        raise DataError(f"{place}: {text}; remove reverse_complement")
    paired = sequence[::-1].translate(COMPLEMENT)
    return paired.replace("T", "U").replace("t", "u") if is_rna else paired


def refuse_fasta(file: str, lines: Iterable[str], how: str = "") -> None:
    """Raise DataError if lines are FASTA, judged by the first two of them and the file's name."""
    header, sequence = [*islice((line for line in lines if line.strip() and line[0] != ";"), 2), "", ""][:2]
    named = Path(file.removesuffix(".gz")).suffix.lower() in SUFFIXES
    if re.match(r">\S", header) and (named or SEQUENCE.fullmatch("".join(sequence.split()))):
        how = how or f"read it with {{type: fasta, file: {file}}}"
        raise DataError(f"{file}: is FASTA, whose headers are not text; {how}")
