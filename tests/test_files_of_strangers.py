"""Files of strangers: each sentence of the section of tfkit/README.md that begins in bold is held by a test here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tfkit
from tfkit.core.errors import RecipeError, RunError, TfkitError
from tfkit.data.chat import ChatTemplate
from tfkit.generation.attention import AttentionMaps
from tfkit.reports.attention import page
from tfkit.run import Run

from .interop.made import command
from .training.small import small, trained

README = Path(tfkit.__file__).with_name("README.md")
HELD: dict[str, Callable[..., Any]] = {}


def holds(sentence: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note the sentence that a test holds."""
    return lambda test: HELD.setdefault(sentence, test)


def test_each_sentence_has_a_test() -> None:
    section = README.read_text().split("## Files of strangers\n")[1].split("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\.?\*\*", section, re.MULTILINE) == list(HELD)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return trained(small(tmp_path), tmp_path / "run")


def written(folder: Path, recipe: dict[str, Any]) -> Path:
    (folder / "theirs.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "theirs.yaml"


class Code:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def resigned(folder: Path, name: str) -> None:
    """Write the checksum of a changed file, as a stranger would."""
    lines = [line for line in (folder / "SHA256SUMS").read_text().splitlines() if not line.endswith(f"  {name}")]
    lines.append(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n")
    (folder / "SHA256SUMS").write_text("\n".join(lines))


@holds("Nothing in them runs")
def test_nothing_runs(run: Run, tmp_path: Path) -> None:
    mark, base = tmp_path / "mark", small(tmp_path).root.plain()
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    np.save(tmp_path / "x.npy", np.array([Code(mark)]), allow_pickle=True)
    imports = {"imports": ["evil.py"]}
    npy = {"type": "npy", "file": str(tmp_path / "x.npy")}
    for change in (
        imports,
        imports | {"study": {"seeds": [0]}, "variants": {"a": {"train.seed": 3}}},
        {"data": {"train": npy}},
    ):
        for name in ("check", "train", *["study"] * ("study" in change)):
            assert command(name, written(tmp_path, {**base, **change})).exit_code == 2
    resolved, weights = run.folder / "resolved.yaml", run.folder / "model.safetensors"
    whole = resolved.read_text()
    resolved.write_text(yaml.safe_dump(yaml.safe_load(whole) | {"imports": [str(tmp_path / "evil.py")]}))
    resigned(run.folder, resolved.name)
    assert command("generate", run.folder, "one").exit_code == 2
    resolved.write_text(whole), weights.write_bytes(pickle.dumps(Code(mark)))
    resigned(run.folder, resolved.name), resigned(run.folder, weights.name)
    assert command("generate", run.folder, "one").exit_code == 2 and not mark.exists()
    assert command("check", tmp_path / "theirs.yaml", "--import", tmp_path / "evil.py").exit_code == 2 and mark.exists()


@holds("A recipe names files, and they are read as data")
def test_named_files_are_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a secret\n")
    shown = command("check", written(tmp_path, small(tmp_path).root.plain()))
    assert shown.exit_code == 0 and "a secret" in shown.stdout
    (tmp_path / "valid.txt").write_text("two two two two\n")
    assert run.evaluate("valid") != tfkit.load_run(run.folder).evaluate("train")


@holds("No key names a place to write")
def test_no_key_names_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = small(tmp_path)
    before = set(tmp_path.iterdir())
    trained(made, None)
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"runs", "cache"}
    for key in ("train.out", "train.folder", "out"):
        with pytest.raises(RecipeError, match="unknown"):
            tfkit.load_recipe(made.root.plain(), overrides={key: "elsewhere"})


@holds("No key names a server")
def test_no_key_names_a_server(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr(socket.socket, "connect", connect)
    for options in ({"settings": {"base_url": "http://x"}}, {"base_url": "http://x"}):
        with pytest.raises(RecipeError, match=f"options.{next(iter(options))}: unknown option"):
            small(tmp_path, callbacks=[{"type": "wandb", "options": options}])
    with pytest.raises(RunError, match="hf:/a/b: no such folder"):
        run.generate("one", strategy={"type": "speculative", "draft": "hf://a/b"})
    for change in ({"init_from": "hf://a/b"}, {"teacher": {"run": "hf://a/b"}}):
        with pytest.raises(TfkitError, match="hf:/a/b"):
            trained(small(tmp_path, **change), tmp_path / "other")


@holds("A chat template sees the conversation")
def test_a_template_sees_the_conversation() -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert ChatTemplate("{{ messages[0].content }}").render(messages, {}) == "hello"
    inside = ("''.__class__.__mro__", "messages.__class__", "messages|attr('__class__')", "cycler.__init__")
    files = [
        f"{{% {word} %}}" for word in ("include '/etc/passwd'", "extends '/etc/passwd'", "import '/etc/passwd' as x")
    ]
    for text in (*(f"{{{{ {name} }}}}" for name in inside), *files):
        with contextlib.suppress(TfkitError, ValueError):
            assert ChatTemplate(text).render(messages, {}) == ""
    loop = "{% for i in range(99999999) %}"
    for text in ("{{ 'x' * 99999999999 }}", f"{loop}{loop}{{% endfor %}}{{% endfor %}}"):
        with pytest.raises(TfkitError):
            ChatTemplate(text).render(messages, {})


@holds("Sizes have largest values")
def test_sizes_are_bounded(tmp_path: Path) -> None:
    for key in ("model.num_layers", "model.d_model", "model.vocab_size", "train.steps", "data.batch.size"):
        with pytest.raises(RecipeError, match=key):
            small(tmp_path, {key: 10**15})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 10**15}))
    refused = command("import", tmp_path)
    assert refused.exit_code == 2 and "exceeds the limit" in refused.stderr


@holds("Links out of a model folder are not followed")
def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir(), (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    assert "is a link to another folder and is not followed" in command("import", folder).stderr
    (folder / "config.json").unlink(), os.mkfifo(folder / "config.json")
    assert command("import", folder).exit_code == 2


@holds("No text of theirs acts")
def test_no_text_acts(tmp_path: Path) -> None:
    hostile = "\x1b[2J</script><script>alert(1)</script>"
    refused = command("check", written(tmp_path, {"tfkit": 1, hostile: hostile}))
    assert refused.exit_code == 2 and "\x1b" not in refused.output and "\\x1b[2J" in refused.output
    text = page(AttentionMaps((), (), None, frozenset(), ()), hostile)
    assert "<script>alert" not in text and "\x1b" not in text


@holds("SHA256SUMS finds damage, not intent")
def test_a_list_may_be_written_again(run: Run) -> None:
    file = run.folder / "resolved.yaml"
    file.write_text(file.read_text() + "# theirs\n")
    with pytest.raises(RunError, match="has changed since it was written"):
        tfkit.load_run(run.folder)
    resigned(run.folder, file.name)
    assert tfkit.load_run(run.folder).generate("one")
