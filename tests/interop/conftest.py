"""All proofs are many minutes; without `-m slow` those of one family of each kind run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .parity import Row

FOLDER = Path(__file__).parent
# of every kind of map: fused and transposed weights, pairs, shared layers, experts, latents, windows, shared tables
QUICK = {
    "GPT2LMHeadModel", "BertForMaskedLM", "LlamaForCausalLM", "T5ForConditionalGeneration", "MarianMTModel",
    "BartForConditionalGeneration", "GPTNeoXForCausalLM", "BloomForCausalLM", "Gemma2ForCausalLM",
    "ModernBertForMaskedLM", "AlbertForMaskedLM", "ElectraForPreTraining", "MixtralForCausalLM",
    "DeepseekV3ForCausalLM", "FalconForCausalLM",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the proofs of the other families as slow; of a quick class the first row stands for the others."""
    first: dict[str, Row] = {}
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        row = next((value for value in params.values() if isinstance(value, Row)), None)
        if row is not None and (row.model not in QUICK or first.setdefault(row.model, row) != row):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def modules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Copy the code of exported folders to a temporary folder, and unload it afterwards."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
    unload()  # a test without this fixture may have loaded some, from another folder
    path, finders = list(sys.path), list(sys.meta_path)
    yield
    unload()
    sys.path[:], sys.meta_path[:] = path, finders


def unload() -> None:
    """Forget the code of exported folders, or the next is looked for in the package and the path of the one before."""
    sys.path[:] = [path for path in sys.path if not Path(path, "transformers_modules").is_dir()]
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]
