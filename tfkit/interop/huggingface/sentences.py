"""Files for sentence-transformers in an exported encoder: pooling and normalization as in `tfkit embed`."""

from __future__ import annotations

from pathlib import Path

from tfkit.core.errors import UsageError
from tfkit.run import Run
from tfkit.storage.files import write_json
from tfkit.training.folder import RunFolder
from tfkit.training.sentences import POOLINGS
from tfkit.training.vocabularies import tokenizer_files

MODULES, SETTINGS = "modules.json", "sentence_bert_config.json"
POOLING_FOLDER, POOLING_CONFIG = "1_Pooling", "config.json"


def check_reads_sentences(run: Run) -> None:
    """Raise UsageError unless the run is an encoder of texts."""
    if run.blueprint.decoder is not None:
        raise UsageError(f"{run.folder}: sentence-transformers needs an encoder, and this run has a decoder")
    if not tokenizer_files(RunFolder(run.folder)):
        raise UsageError(f"{run.folder}: sentence-transformers needs a tokenizer, and this run has none")


def write_sentences(run: Run, pooling: str, folder: Path) -> None:
    """Write the sentence-transformers modules: the model, pooling of its last hidden states, and normalization."""
    (plan,) = run.blueprint.stacks()
    names = {"Transformer": "", "Pooling": POOLING_FOLDER, "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (name, path) in enumerate(names.items())
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / SETTINGS, {"max_seq_length": plan.max_length, "do_lower_case": False})
    (folder / POOLING_FOLDER).mkdir()
    modes = {key: name == pooling for name, (_, key) in POOLINGS.items()}
    write_json(folder / POOLING_FOLDER / POOLING_CONFIG, {"word_embedding_dimension": plan.d_model, **modes})
