"""Names on the hub: what is asked of it, and what is said when it does not answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tfkit.core.errors import DataError, UsageError
from tfkit.interop.huggingface.files import folder_of

from ..sampling import looped
from .made import command, model_folder

hub = pytest.importorskip("huggingface_hub", reason="names on the hub need huggingface_hub, which the extra hf brings")


def test_a_name_that_the_hub_does_not_give() -> None:
    result = command("import", "nobody/nothing-at-all")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "tfkit: nobody/nothing-at-all is not a local folder, and its download from the hub failed: "
    )
    assert len(result.stderr.splitlines()) == 1


@looped("name", ["a/b/c", "./nowhere", "/nowhere", "~/nowhere", "two words", "-/x", "a//b"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(DataError, match=r"no such folder|download from the hub failed"):
        folder_of(name)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r'needs the package huggingface_hub: pip install "huggingface-hub>=1"'):
        folder_of("some/model")


def test_nothing_but_data_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a model is made with transformers, which the extra test brings")
    folder, asked = model_folder(tmp_path / "snapshot", "gpt2"), []

    def download(name: str, allow_patterns: list[str], **options: Any) -> str:
        asked.append((name, allow_patterns, options))
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    result = command("import", "some/tiny-gpt2")
    assert result.exit_code == 0, result.output
    assert [name for name, _, _ in asked] == ["some/tiny-gpt2"]
    assert not any(pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in asked[0][1])
    assert "# Imported from some/tiny-gpt2" in (tmp_path / "runs" / "tiny-gpt2" / "recipe.yaml").read_text()
