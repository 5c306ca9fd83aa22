"""Corpora: the sources of examples.

| type | example | purpose |
|---|---|---|
| `parallel_text` | a line of each of two files | translation; the usual form of training pairs |
| `parallel_tsv` | a line with tabs | pairs in one file (Tatoeba) |
| `text` | a line, a paragraph or a file | language modelling |
| `labelled_text` | a line and its label | classification; the label is the first word or in a separate file |
| `tagged_text` | a line and a line of tags | tagging, in two files (slots, entities) |
| `conllu` | a sentence of a treebank | tagging, in the format of Universal Dependencies |
| `json_lines` | one JSON object per line | data written by a program |
| `chat` | a conversation: messages with roles, in JSON lines | the objective `chat` |
| `csv` | a row | data from a spreadsheet |
| `fasta` | a sequence, or a window of one | proteins, nucleotides |
| `parquet` | a row | data from a data set hub |
| `datasets` | a row | a folder saved by the `datasets` library, or a folder of Parquet files |
| `phrases` | a generated pair | a first translation model without files |
| `docstrings` | a text from Python's own documentation | a first language model without files |
| `copying`, `reversal`, `sorting` | random symbols and their permutation | probe of position handling |
| `associative_recall`, `induction` | symbols, and those associated with a query | probe of lookup in the context |
| `parity`, `brackets` | a sequence and its final state | probe of state tracking |
| `depo`, `brevo`, `mano` | arrows, a graph, an expression, and the result | probe of reasoning depth |
| `lano` | the prefix of a sentence, and the rest | probe of grammar learning |
| `capo` | a person and one of their attributes | probe of knowledge capacity |
| `arrays` | a sequence of numbers, in a .npz file | ids or vectors of several lengths |
| `npy` | a row of an array | vectors: measurements, images, outputs of another model |
| `images` | an image of a folder | classification or captioning of images |
| `audio` | a sound of a folder (.wav) | classification of sounds by spectrum frames |
| `digits` | an image of a handwritten digit | a first image model without files |
| `shapes`, `tones` | a drawn image, a melody | a first captioning or sound model without files |
| `modular_addition` | a sum and its remainder | probe of generalization versus memorization (grokking) |
| `mixture` | an example from one of several corpora | training on several corpora in a given ratio |

Arrays, images and sounds are `vectors` with a `label` or a `target`; they bypass the tokenizer. A text example has the
fields `source` and `target` (pairs), only `text`, `text` and `label`, or `text` and `tags`. In `json_lines`, `csv` and
`parquet`, the option `fields` maps these fields, and the `tag` of an example, to names in the file.
"""

from tfkit.data.corpus.base import Corpus as Corpus
from tfkit.data.corpus.base import Example as Example
from tfkit.data.corpus.base import RecordCorpus as RecordCorpus
from tfkit.data.corpus.base import TextRecordCorpus as TextRecordCorpus
from tfkit.data.corpus.drawn import Docstrings as Docstrings
from tfkit.data.corpus.drawn import Phrases as Phrases
from tfkit.data.corpus.drawn import Shapes as Shapes
from tfkit.data.corpus.drawn import Tones as Tones
from tfkit.data.corpus.fasta import Fasta as Fasta
from tfkit.data.corpus.mixture import Mixture as Mixture
from tfkit.data.corpus.probes import AssociativeRecall as AssociativeRecall
from tfkit.data.corpus.probes import Brackets as Brackets
from tfkit.data.corpus.probes import Copying as Copying
from tfkit.data.corpus.probes import Induction as Induction
from tfkit.data.corpus.probes import ModularAddition as ModularAddition
from tfkit.data.corpus.probes import Parity as Parity
from tfkit.data.corpus.probes import Probe as Probe
from tfkit.data.corpus.probes import Reversal as Reversal
from tfkit.data.corpus.probes import Sorting as Sorting
from tfkit.data.corpus.reasoning import Brevo as Brevo
from tfkit.data.corpus.reasoning import Capo as Capo
from tfkit.data.corpus.reasoning import Depo as Depo
from tfkit.data.corpus.reasoning import Lano as Lano
from tfkit.data.corpus.reasoning import Mano as Mano
from tfkit.data.corpus.records import Conversations as Conversations
from tfkit.data.corpus.records import Csv as Csv
from tfkit.data.corpus.records import Datasets as Datasets
from tfkit.data.corpus.records import JsonLines as JsonLines
from tfkit.data.corpus.records import Parquet as Parquet
from tfkit.data.corpus.text_files import Conllu as Conllu
from tfkit.data.corpus.text_files import LabelledText as LabelledText
from tfkit.data.corpus.text_files import ParallelText as ParallelText
from tfkit.data.corpus.text_files import ParallelTsv as ParallelTsv
from tfkit.data.corpus.text_files import TaggedText as TaggedText
from tfkit.data.corpus.text_files import TextCorpus as TextCorpus
from tfkit.data.corpus.vectors import Arrays as Arrays
from tfkit.data.corpus.vectors import Audio as Audio
from tfkit.data.corpus.vectors import Digits as Digits
from tfkit.data.corpus.vectors import Images as Images
from tfkit.data.corpus.vectors import Npy as Npy
from tfkit.data.corpus.vectors import VectorCorpus as VectorCorpus
