"""The Hugging Face model of a folder, loaded and run by transformers for a comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.core.errors import DataError, DifferenceError
from tfkit.core.extras import optional
from tfkit.interop.huggingface.files import CONFIG, read_config


def load_reference(folder: Path, trust: bool) -> nn.Module:
    """Load the folder's transformers model in float32."""
    transformers = optional("transformers", "hf", "verify needs")
    config = read_config(folder)
    own = "auto_map" in config
    if own and not trust:
        raise DataError(f"{folder}: this model contains its own code; review it, then allow it with --trust")
    name = (config.get("architectures") or ["AutoModel"])[0]
    heads = [key for key, value in config.get("auto_map", {}).items() if str(value).endswith(f".{name}")]
    loader = getattr(transformers, heads[0] if own and heads else name, None)
    if loader is None:
        raise DataError(f"{folder / CONFIG}: architectures: the installed transformers has no class {name}")
    with quiet(transformers):
        try:
            model = loader.from_pretrained(folder, dtype=torch.float32, **({"trust_remote_code": True} if own else {}))
        except Exception as error:  # the model's code may raise any exception
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{folder}: transformers cannot load it: {first}") from None
    model.config.use_cache = False  # whole texts are compared, without a cache
    loaded: nn.Module = model.eval()
    return loaded


def reply_of(reference: nn.Module, call: dict[str, Tensor], folder: Path) -> object:
    """Run the Hugging Face model. Raise DifferenceError if the model rejects the input."""
    own = reference.config.model_type == "tfkit"  # type: ignore[union-attr]  # exported classes return no layer states
    try:
        return reference(**call) if own else reference(**call, output_hidden_states=True)
    except Exception as error:  # the model's code may raise any exception
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DifferenceError(
            f"{folder}: its model does not accept this run's inputs; is it the same model? {first}"
        ) from None


def logits_of(out: Any) -> Tensor | None:
    """Return the logits; start and end logits are stacked on the last axis, as in tfkit."""
    if getattr(out, "start_logits", None) is not None:
        return torch.stack((out.start_logits, out.end_logits), dim=-1)
    logits: Tensor | None = getattr(out, "logits", None)
    return logits


def tokenizer_difference(folder: Path, text: str, ids: Sequence[int]) -> list[str]:
    """Return a note if the folder's tokenizer encodes the text differently from the run's."""
    import transformers

    with quiet(transformers):
        try:
            reference = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        except Exception:  # no tokenizer, or missing packages
            return ["the folder's tokenizer cannot be loaded; the run's tokens are used"]
    same = reference == list(ids)
    return [] if same else [f"the tokenizers differ: {list(ids)} in the run, {reference} in the folder"]


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Suppress transformers' progress bars and messages within the block."""
    logging = transformers.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
