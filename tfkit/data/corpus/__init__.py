"""Corpora: where the examples come from.

| type | one example is | choose it when |
|---|---|---|
| `parallel_text` | a line of each of two files | you translate: the usual form of training pairs |
| `parallel_tsv` | a line with tabs | the pairs stand in one file (Tatoeba) |
| `text` | a line, a paragraph or a file | you model running text |
| `labelled_text` | a line and its label | you classify: the label is the first word, or in a file of its own |
| `tagged_text` | a line and a line of tags | every word has a tag, in two files (slots, entities) |
| `conllu` | a sentence of a treebank | every word has a tag, in the form of Universal Dependencies |
| `json_lines` | one JSON object per line | the data comes from a program |
| `csv` | a row | the data comes from a spreadsheet |
| `parquet` | a row | the data comes from a data set's hub |
| `phrases` | a generated pair | you want to try a translation now, with no file |
| `docstrings` | a text of Python's own documentation | you want to try a language model now, with no file |

Fields: `source` and `target` of pairs, `text` alone, `text` with `label`, `text` with `tags`. In `json_lines`, `csv`
and `parquet` the option `fields` says which value is which.
"""

from tfkit.data.corpus.base import Corpus, Example, RecordCorpus, TextRecordCorpus
from tfkit.data.corpus.conllu import Conllu
from tfkit.data.corpus.csv import Csv
from tfkit.data.corpus.docstrings import Docstrings
from tfkit.data.corpus.json_lines import JsonLines
from tfkit.data.corpus.labelled_text import LabelledText
from tfkit.data.corpus.parallel_text import ParallelText
from tfkit.data.corpus.parallel_tsv import ParallelTsv
from tfkit.data.corpus.parquet import Parquet
from tfkit.data.corpus.phrases import Phrases
from tfkit.data.corpus.tagged_text import TaggedText
from tfkit.data.corpus.text import TextCorpus

__all__ = [
    "Conllu",
    "Corpus",
    "Csv",
    "Docstrings",
    "Example",
    "JsonLines",
    "LabelledText",
    "ParallelText",
    "ParallelTsv",
    "Parquet",
    "Phrases",
    "RecordCorpus",
    "TaggedText",
    "TextCorpus",
    "TextRecordCorpus",
]
