"""Corpora: the sources of examples.

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
| `copying`, `reversal`, `sorting` | random symbols, and the same in an order | you probe how well positions are known |
| `associative_recall`, `induction` | symbols, and what belonged to one | you probe whether things read are looked up |
| `parity`, `brackets` | a sequence, and what is left open in it | you probe whether a model keeps a state |
| `depo`, `brevo`, `mano` | arrows, a graph, an expression, and what follows | you probe how deep a model reasons |
| `lano` | the beginning of a sentence, and its end | you probe whether the structure of a language is learned |
| `capo` | a person and a fact about them | you probe how much a model stores in its weights |
| `npy` | a row of an array | you have vectors: measurements, pictures, outputs of another model |
| `images` | a picture of a folder | you classify or describe pictures |
| `audio` | a sound of a folder (.wav) | you classify sounds: frames of their spectrum |
| `digits` | a picture of a written digit | you want to try pictures now, with no file |
| `shapes`, `tones` | a drawn picture, a melody | you want to try captions or sounds now, with no file |
| `modular_addition` | a sum, and its remainder | you probe whether a model learns a rule or memorizes cases |

Arrays, pictures and sounds are `vectors`, with a `label` or a `target`: no tokenizer reads them.
Fields of texts: `source` and `target` of pairs, `text` alone, `text` with `label`, `text` with `tags`. In
`json_lines`, `csv` and `parquet` the option `fields` says which value is which.
"""

from tfkit.data.corpus.base import Corpus, Example, RecordCorpus, TextRecordCorpus
from tfkit.data.corpus.docstrings import Docstrings
from tfkit.data.corpus.drawn import Shapes, Tones
from tfkit.data.corpus.phrases import Phrases
from tfkit.data.corpus.probes import (
    AssociativeRecall,
    Brackets,
    Copying,
    Induction,
    ModularAddition,
    Parity,
    Probe,
    Reversal,
    Sorting,
)
from tfkit.data.corpus.reasoning import Brevo, Capo, Depo, Lano, Mano
from tfkit.data.corpus.records import Csv, JsonLines, Parquet
from tfkit.data.corpus.text_files import Conllu, LabelledText, ParallelText, ParallelTsv, TaggedText, TextCorpus
from tfkit.data.corpus.vectors import Audio, Digits, Images, Npy, VectorCorpus

__all__ = [
    "AssociativeRecall",
    "Audio",
    "Brackets",
    "Brevo",
    "Capo",
    "Conllu",
    "Copying",
    "Corpus",
    "Csv",
    "Depo",
    "Digits",
    "Docstrings",
    "Example",
    "Images",
    "Induction",
    "JsonLines",
    "LabelledText",
    "Lano",
    "Mano",
    "ModularAddition",
    "Npy",
    "ParallelText",
    "ParallelTsv",
    "Parity",
    "Parquet",
    "Phrases",
    "Probe",
    "RecordCorpus",
    "Reversal",
    "Shapes",
    "Sorting",
    "TaggedText",
    "TextCorpus",
    "TextRecordCorpus",
    "Tones",
    "VectorCorpus",
]
