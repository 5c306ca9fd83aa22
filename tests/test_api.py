"""The names of `tfkit` itself."""

import ast
from pathlib import Path

import pytest
import torch

import tfkit
from tfkit.data.corpus.phrases import Phrases


def test_every_public_name_is_there_and_typed() -> None:
    assert all(hasattr(tfkit, name) for name in tfkit.__all__)
    stub = ast.parse(Path(tfkit.__file__).with_suffix(".pyi").read_text())
    typed = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed | {"__version__"} == set(tfkit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tfkit.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_build_takes_a_name_a_mapping_or_a_recipe() -> None:
    recipe = tfkit.load_recipe("gpt2", overrides={"model.num_layers": 1, "model.d_model": 24, "model.vocab_size": 50})
    model = tfkit.build(recipe, seed=1)
    again = tfkit.build(recipe, seed=1)
    assert torch.equal(model.decoder.embedding.tokens.weight, again.decoder.embedding.tokens.weight)  # type: ignore[union-attr]
    assert tfkit.build("gpt2", device="meta", dtype=torch.bfloat16).head.output.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


def test_build_refuses_a_vocabulary_that_is_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Phrases, "read", lambda *_: pytest.fail("the corpus is read"))
    with pytest.raises(tfkit.UsageError, match="tokenizer that is not trained yet"):
        tfkit.build("translate-numbers")


def test_parts_names_what_stands_in_a_slot() -> None:
    assert "multi_head" in tfkit.parts("attention")
    with pytest.raises(tfkit.UsageError, match="Did you mean 'attention'"):
        tfkit.parts("atention")
