"""Tiny folders of theirs, and runs of ours, for the tests of import, export and verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from click.testing import CliRunner, Result
from tokenizers import models, pre_tokenizers, processors
from torch import nn

from tfkit.cli.main import main

from .parity import randomise
from .rows import TINY

SIZE = 61
WORDS = ["<unk>", "<pad>", "<s>", "</s>", "<mask>", *(f"w{number}" for number in range(SIZE - 5))]
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 3}
T5 = {"d_model": 32, "d_ff": 40, "d_kv": 8, "num_layers": 2, "num_heads": 4, "pad_token_id": 1, "eos_token_id": 3}
T5 |= {"decoder_start_token_id": 1}
BART = {"d_model": 32, "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 40}
BART |= {"decoder_start_token_id": 3, "forced_bos_token_id": 2, "forced_eos_token_id": None}
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}


def command(*arguments: str | Path) -> Result:
    """`tfkit ...`; what is no exit is raised."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def hidden(*packages: str) -> str:
    """Return Python source that makes packages look as if they were not installed."""
    return f"""
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages}:
            raise ModuleNotFoundError(name + " is not installed here", name=name)

sys.meta_path.insert(0, Hidden())
"""


def model_folder(folder: Path, family: str, **settings: Any) -> Path:
    """A model of theirs with random weights, saved."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config, model, standard = {
        "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
        "llama": ("LlamaConfig", "LlamaForCausalLM", {**TINY, "num_key_value_heads": 2}),
        "bert": ("BertConfig", "BertForMaskedLM", TINY),
        "t5": ("T5Config", "T5ForConditionalGeneration", T5),
        "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    }[family]
    made = getattr(transformers, model)(getattr(transformers, config)(**{"vocab_size": SIZE, **standard, **settings}))
    randomise(made, 0.3)
    made.save_pretrained(folder)
    return folder


def theirs_of(folder: Path, loader: str = "AutoModelForCausalLM", **options: Any) -> nn.Module:
    """What transformers loads from a folder."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return getattr(transformers, loader).from_pretrained(folder, **options).eval()


def with_tokenizer(folder: Path, template: str = "<s> $A", pair: str | None = None, **settings: Any) -> Path:
    """A tokenizer of whole words; what its template adds stands around every text, and `pair` around two."""
    backend = tokenizers.Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(WORDS[:5])
    if template:
        marks = [(word, id_) for id_, word in enumerate(WORDS[:5])]
        backend.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=marks)
    backend.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


def said(folder: Path, **values: Any) -> None:
    """Change what a config.json says; None takes a key out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def tokens(rows: int = 2, time: int = 12, seed: int = 0) -> torch.Tensor:
    """Random real tokens [rows time]."""
    return torch.randint(5, SIZE, (rows, time), generator=torch.Generator().manual_seed(seed))
