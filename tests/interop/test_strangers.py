"""What a stranger's folder may hold: links, pipes, deep JSON, odd texts, huge counts and the names of code."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tfkit
from tfkit.core.errors import DataError, RunError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.files import open_checkpoint, read_config
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.special import read_optional
from tfkit.interop.huggingface.strangers import file_in
from tfkit.interop.huggingface.tokenizer import tokenizer_of

from .made import command, model_folder, said, with_tokenizer

transformers = pytest.importorskip("transformers", reason="the proofs need transformers, which the extra test brings")
CODE = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tokenizer(model_folder(tmp_path_factory.mktemp("gpt2") / "theirs", "gpt2", n_layer=2))


@pytest.fixture
def theirs(gpt2: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(gpt2, tmp_path / "theirs"))


def refused(folder: Path, tmp_path: Path) -> str:
    """What `tfkit import` says; nothing is left of it."""
    done = command("import", folder, "--out", tmp_path / "run")
    assert done.exit_code == 2, done.output
    assert not (tmp_path / "run").exists()
    return done.stderr


# links, and what is no file


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_of_the_folder_is_not_followed(name: str, theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(theirs / name, tmp_path / "elsewhere" / name)
    (theirs / name).symlink_to(tmp_path / "elsewhere" / name)
    assert f"{theirs / name}: is a link to another folder and is not followed" in refused(theirs, tmp_path)


def test_a_shard_and_a_chat_template_are_no_links_either(theirs: Path, tmp_path: Path) -> None:
    shutil.move(theirs / "model.safetensors", tmp_path / "weights")
    (theirs / "shard").symlink_to(tmp_path / "weights")
    (theirs / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "shard"}}))
    with pytest.raises(DataError, match=r"shard: is a link to another folder"), open_checkpoint(theirs):
        pass
    (theirs / "shard").unlink()
    shutil.move(tmp_path / "weights", theirs / "model.safetensors")
    (tmp_path / "secret").write_text("secret")
    (theirs / "chat_template.jinja").symlink_to(tmp_path / "secret")
    assert "chat_template.jinja: is a link to another folder" in refused(theirs, tmp_path)


def test_links_within_the_folder_and_to_it_are_followed(theirs: Path, tmp_path: Path) -> None:
    (theirs / "files").mkdir()
    for name in FILES:
        shutil.move(theirs / name, theirs / "files" / name)
        (theirs / name).symlink_to(Path("files") / name)
    (tmp_path / "linked").symlink_to(theirs)
    assert import_model(str(tmp_path / "linked"), tmp_path / "run").tokenizer is not None


def test_a_snapshot_of_the_hubs_cache_links_to_its_blobs(theirs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--somebody--tiny"
    snapshot, blobs = repository / "snapshots" / ("0" * 40), repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(theirs.iterdir())):
        shutil.move(path, blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert import_model(str(snapshot), tmp_path / "run").tokenizer is not None
    for outside in (tmp_path / "secret", blobs.parent / "refs", tmp_path / "other" / "blobs" / "0"):
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text("{}")
        (snapshot / "extra.json").unlink(missing_ok=True)
        (snapshot / "extra.json").symlink_to(outside)
        with pytest.raises(DataError, match="is a link to another folder"):
            file_in(snapshot, "extra.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "key").write_text("{}")
    shutil.rmtree(blobs)
    blobs.symlink_to(tmp_path / "elsewhere")
    (snapshot / "extra.json").unlink()
    (snapshot / "extra.json").symlink_to(Path("../../blobs/key"))
    with pytest.raises(DataError, match="is a link to another folder"):
        file_in(snapshot, "extra.json")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("kind", [pipe, folder, link_to_nothing, link_to_itself])
def test_what_is_no_file_is_told_at_once(kind: Callable[[Path], None], theirs: Path, tmp_path: Path) -> None:
    for name in FILES[:4]:
        shutil.move(theirs / name, tmp_path / "kept")
        kind(theirs / name)
        what = "is not a regular file" if kind in (pipe, folder) else "is a broken link"
        assert f"{theirs / name}: {what}" in refused(theirs, tmp_path)
        (theirs / name).rmdir() if kind is folder else (theirs / name).unlink()
        shutil.move(tmp_path / "kept", theirs / name)


# texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "cannot be read: nested too deeply"),
        ('{"a":' * 40 + "1" + "}" * 40, "is nested more than 32 levels deep"),
        ('{"a": [' * 20 + "1" + "]}" * 20, "nested more than 32 levels deep"),
        ('{"model_type": "gpt2", "x": "\\ud800"}', r"'\ud800' contains a lone surrogate"),
        ('{"model_type": "gpt2", "id2label": {"0": {"\\udfff": 1}}}', "half of a character"),
        ('{"model_type": "gpt2", "n_layer": 999999}', "'n_layer': 999,999 exceeds the limit of 10,000"),
        ('{"model_type": "gpt2", "a": {"NUM_EXPERTS": 1000000}}', "'NUM_EXPERTS': 1,000,000 exceeds the limit"),
        ('{"model_type": "gemma3_text", "sliding_window_pattern": 1000000000}', "1,000,000,000 exceeds the limit"),
        ('{"x": ' + "1" * 5000 + "}", "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_a_config_that_would_be_the_end_of_the_program(text: str, message: str, tmp_path: Path) -> None:
    for name, read in (
        ("config.json", lambda: read_config(tmp_path)),
        ("x.json", lambda: read_optional(tmp_path / "x.json")),
    ):
        (tmp_path / name).write_text(text)
        if name == "x.json" and "the limit" in message:
            continue
        with pytest.raises(DataError) as caught:
            read()
        assert str(caught.value).startswith(f"{tmp_path / name}: ") and message in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_import_says_so(name: str, theirs: Path, tmp_path: Path) -> None:
    (theirs / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert refused(theirs, tmp_path) == f"tfkit: {theirs / name}: cannot be read: nested too deeply\n"


def test_layers_that_no_tensor_is_of_are_not_built(theirs: Path, tmp_path: Path) -> None:
    said(theirs, n_layer=9999)
    message = refused(theirs, tmp_path)
    assert (
        f"{theirs / 'config.json'}: describes 9,999 layers; the limit is 10,000, and the files contain 28 tensors"
        in message
    )


@pytest.mark.parametrize("value", [10**9, 10**12, 2**62, 10**30])
@pytest.mark.parametrize("key", ["vocab_size", "n_embd", "n_positions", "n_inner", "n_head"])
def test_a_size_that_no_machine_holds_is_told(key: str, value: int, theirs: Path, tmp_path: Path) -> None:
    said(theirs, **{key: value})
    assert refused(theirs, tmp_path).startswith("tfkit: ")


@pytest.mark.parametrize("files", [("vocab.txt",), ("vocab.json", "merges.txt")])
def test_vocabularies_of_old_files(files: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n") if len(files) == 1 else None
    if len(files) == 2:
        (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 10**9}))
        (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=r"not UTF-8 at byte 6|the token 'b' has id 1,000,000,000"):
        tokenizer_of(tmp_path, {})


# code


def keys(data: Any) -> Iterator[str]:
    """Every key of a tree."""
    if isinstance(data, dict):
        yield from data
        for value in data.values():
            yield from keys(value)


def test_the_name_of_code_does_not_travel(theirs: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        path = theirs / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **CODE, "sub": {"custom_pipelines": {"a": 1}}}))
    (theirs / "evil.py").write_text("raise SystemExit('it ran')\n")
    made = import_model(str(theirs), tmp_path / "run")
    notes = [note for note in made.notes if "references code" in note]
    assert [note.split()[0] for note in notes] == ["config.json", "generation_config.json", "tokenizer_config.json"]
    run = tfkit.load_run(tmp_path / "run")
    export_model(run, tmp_path / "out")
    # what was imported before may hold it still
    kept = tmp_path / "run" / "huggingface" / "tokenizer_config.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **CODE}))
    (tmp_path / "run" / "SHA256SUMS").unlink()
    export_model(tfkit.load_run(tmp_path / "run"), tmp_path / "again")
    kept.unlink()
    for path in (*tmp_path.glob("run/**/*.json"), *tmp_path.glob("out/*.json"), *tmp_path.glob("again/*.json")):
        assert not {"auto_map", "custom_pipelines"} & set(keys(json.loads(path.read_text()))), path
    assert not list(tmp_path.glob("[roa]*/**/*.py"))
    for folder in ("out", "again"):
        loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / folder, trust_remote_code=True)
        assert loaded("w1 w2")["input_ids"] == run.read(["w1 w2"])[0]


def test_files_without_code_stay_as_they_were(theirs: Path, tmp_path: Path) -> None:
    (theirs / "chat_template.jinja").write_bytes(b"{{ x }}\r\nwithout an end")
    import_model(str(theirs), tmp_path / "run")
    for path in (tmp_path / "run" / "huggingface").iterdir():
        assert path.read_bytes() == (theirs / path.name).read_bytes()


def test_a_run_whose_kept_files_are_links_gives_nothing_away(theirs: Path, tmp_path: Path) -> None:
    import_model(str(theirs), tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    kept = tmp_path / "run" / "huggingface"
    (kept / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="is a link to another folder"):
        export_model(tfkit.load_run(tmp_path / "run"), tmp_path / "out")
    shutil.move(kept, tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="huggingface: is a link"):
        export_model(tfkit.load_run(tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
