"""Tokenizers: conversion of text to ids and back, based on the `tokenizers` library.

| type | token | purpose |
|---|---|---|
| `character` | a character | small data, or spelling tasks (names, nanoGPT's Shakespeare) |
| `word` | a word or a punctuation mark | text already split into words, or word-level analyses |
| `bpe` | a frequent piece of a word | translation and generation: decoding restores the text exactly |
| `bpe` with `byte_level: true` | a frequent run of bytes | no unknown characters (GPT-2 and later) |
| `unigram` | a probable piece of a word | as bpe, with the most probable segmentation (T5, ALBERT, XLM-R) |
| `wordpiece` | a piece, `##` inside a word | BERT |
| `ids` | a number, which is its id | data that are ids already: events, codes, states |
| `symbols` | a symbol between white space, or a match of a pattern | music, SMILES and other notations |
| `kmer` | k letters, which may overlap | DNA, RNA |
| `file` | as in the file | an existing tokenizer.json, such as a pretrained model's |

Fitting is deterministic: the same texts produce identical files.
"""

from tfkit.data.tokenizer.backend import SpecialTokens
from tfkit.data.tokenizer.base import Tokenizer, TokenizerPart
from tfkit.data.tokenizer.symbols import Ids, Kmer, Symbols
from tfkit.data.tokenizer.word import Character, File, Word
from tfkit.data.tokenizer.wordpiece import Bpe, Unigram, WordPiece

__all__ = ["Bpe", "Character", "File", "SpecialTokens", "Tokenizer", "TokenizerPart", "Unigram", "Word", "WordPiece"]
__all__ += ["Ids", "Kmer", "Symbols"]
