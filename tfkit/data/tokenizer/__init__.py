"""Tokenizers: text to ids and back, over the `tokenizers` library.

| type | a token is | choose it when |
|---|---|---|
| `character` | a character | the data is small, or spelling itself is learnt (names, nanoGPT's Shakespeare) |
| `word` | a word or a sign | the text is cut into words already, or whole words are to be looked at |
| `bpe` | a frequent piece of a word | you translate or write: what it encodes it decodes exactly |
| `bpe` with `byte_level: true` | a frequent run of bytes | no character may ever be unknown (GPT-2 and after) |
| `wordpiece` | a piece, `##` inside a word | you build a BERT |
| `file` | what its maker chose | a tokenizer.json is there already, such as a pretrained model's |

Fitting is deterministic: the same texts give the same file, byte for byte.
"""

from tfkit.data.tokenizer.base import Tokenizer, TokenizerPart
from tfkit.data.tokenizer.bpe import Bpe
from tfkit.data.tokenizer.character import Character
from tfkit.data.tokenizer.file import File
from tfkit.data.tokenizer.special import SpecialTokens
from tfkit.data.tokenizer.word import Word
from tfkit.data.tokenizer.wordpiece import WordPiece

__all__ = ["Bpe", "Character", "File", "SpecialTokens", "Tokenizer", "TokenizerPart", "Word", "WordPiece"]
