"""Folders of strangers: shards, broken and pickled files, links, pipes, deep JSON, huge counts, names of code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tfkit
from tfkit.core.errors import DataError, RunError
from tfkit.interop.huggingface.exporting import export_model
from tfkit.interop.huggingface.files import INDEX, SINGLE, folder_of, open_checkpoint, read_config
from tfkit.interop.huggingface.importing import import_model
from tfkit.interop.huggingface.strangers import file_in, read_optional
from tfkit.interop.huggingface.tokenizer import tokenizer_of

from ..sampling import each, some
from .made import command, model_folder, said, with_tokenizer


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {f"layer.{number}.weight": torch.full((2, 3), float(number)) for number in range(4)}


def shard(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = sorted(tensors)
    where = {name: f"model-{1 + place // 2:05}-of-00002.safetensors" for place, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def read(folder: Path) -> dict[str, torch.Tensor]:
    with open_checkpoint(folder) as checkpoint:
        return dict(checkpoint)


def test_one_file_or_several_are_the_same(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    save_file(tensors, one / SINGLE)
    shard(several, tensors)
    for folder in (one, several):
        found = read(folder)
        assert sorted(found) == sorted(tensors)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_another_precision_when_asked_for(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, dtype=torch.bfloat16), "n": torch.ones(2, dtype=torch.int64)}, tmp_path / SINGLE)
    with open_checkpoint(tmp_path, torch.float32) as checkpoint:
        assert (checkpoint["a"].dtype, checkpoint["n"].dtype, len(checkpoint)) == (torch.float32, torch.int64, 2)
    assert read(tmp_path)["a"].dtype == torch.bfloat16


def test_a_missing_shard(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    shard(tmp_path, tensors)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DataError, match=r"the index names 'model-00002-of-00002\.safetensors', which is missing"):
        read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(
        DataError, match=rf"{INDEX}: (is not an index of sharded tensors|cannot be read|expected a map)"
    ):
        read(tmp_path)


def test_an_index_names_no_file_elsewhere(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file(tensors, tmp_path / "x.safetensors")
    (inside / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "../x.safetensors")}))
    with pytest.raises(DataError, match="which is not in the same folder"):
        read(inside)


def test_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(b"no safetensors")
    with pytest.raises(DataError, match=r"model\.safetensors: cannot be read as safetensors"):
        read(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no model\.safetensors"):
        read(tmp_path)


def test_weights_that_need_another_program_are_named(tmp_path: Path) -> None:
    said = {"quantization_config": {"quant_method": "fp8"}}
    plain, packed = torch.ones(2, 2), torch.ones(2, 2).to(torch.float8_e4m3fn)

    def check(tensors: dict[str, torch.Tensor], config: dict[str, object], message: str) -> None:
        save_file(tensors, tmp_path / SINGLE)
        with open_checkpoint(tmp_path) as checkpoint, pytest.raises(DataError, match=message):
            checkpoint.check_plain(tmp_path, config)

    scale = {"a.weight": packed, "a.weight_scale_inv": plain}
    each(
        [
            (scale, said, r"quantized with fp8 \(a.weight_scale_inv\)"),
            (scale, {}, r"quantized \(a.weight_scale_inv\)"),
            ({"a.weight": packed}, said, r"quantized with fp8 \(a.weight\)"),
            ({"a.qweight": plain.int(), "a.scales": plain}, {}, r"quantized \(a.qweight, a.scales\)"),
            ({"a.weight": plain.to(torch.uint8)}, {"quantization_config": {}} | said, "quantized with fp8"),
        ],
        check,
    )
    save_file({"a.weight": plain, "ids": plain.long()}, tmp_path / SINGLE)
    with open_checkpoint(tmp_path) as checkpoint:
        checkpoint.check_plain(tmp_path, said)
    (tmp_path / SINGLE).rename(tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(
        DataError, match=r"its shards \(model-00001-of-00002\.safetensors\) need model\.safetensors\.ind"
    ):
        read(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x/y"}')
    with pytest.raises(
        DataError, match=r"adapter_config\.json: the folder holds an adapter of peft \(LORA\) .* x/y; merge"
    ):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack"])
def test_weights_of_other_libraries(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"{name}: only safetensors are supported"):
        read(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("several", some([False, True]))
def test_pickled_weights_are_refused_and_the_command_converts_them(
    tensors: dict[str, torch.Tensor], tmp_path: Path, several: bool
) -> None:
    shared = {**tensors, "head.weight": tensors["layer.0.weight"], "turned": torch.ones(2, 3).T}
    folder = tmp_path / "it's here"
    folder.mkdir()
    if several:
        (folder / "pytorch_model.bin.index.json").write_text("{}")
        for name, tensor in shared.items():
            torch.save({name: tensor}, folder / f"pytorch_model-{name}.bin")
    else:
        torch.save(shared, folder / "pytorch_model.bin")
    with pytest.raises(DataError) as caught:
        read(folder)
    message, _, command = str(caught.value).partition("\n  ")
    assert "pickled weights can execute code and are not read" in message
    words = shlex.split(command)
    assert words[0] == "python"
    subprocess.run([sys.executable, *words[1:]], check=True)
    found = load_file(folder / SINGLE)
    assert all(torch.equal(found[name], tensor) for name, tensor in shared.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"has no config\.json"),
        ("{", "cannot be read"),
        ("[1]", "expected a mapping"),
        ("\xff", "cannot be read"),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_config(tmp_path)


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert folder_of(str(tmp_path)) == tmp_path
    with pytest.raises(DataError, match="no such folder"):
        folder_of(str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="no such folder"):
        folder_of(str(tmp_path / "file"))


CODE = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="a model is made with transformers, which the extra test brings")
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
    elsewhere = tmp_path / "elsewhere" / "key"
    for outside in (tmp_path / "secret", blobs.parent / "refs", tmp_path / "other" / "blobs" / "0", elsewhere):
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text("{}")
        if outside == elsewhere:
            shutil.rmtree(blobs)
            blobs.symlink_to(elsewhere.parent)
            outside = Path("../../blobs/key")
        (snapshot / "extra.json").unlink(missing_ok=True)
        (snapshot / "extra.json").symlink_to(outside)
        with pytest.raises(DataError, match="is a link to another folder"):
            file_in(snapshot, "extra.json")


KINDS: list[tuple[Callable[[Path], object], Callable[[Path], object], str]] = [
    (os.mkfifo, Path.unlink, "is not a regular file"),
    (Path.mkdir, Path.rmdir, "is not a regular file"),
    (lambda path: path.symlink_to(path.parent / "gone"), Path.unlink, "is a broken link"),
    (lambda path: path.symlink_to(path.name), Path.unlink, "is a broken link"),
]


@pytest.mark.parametrize(("make", "remove", "message"), KINDS, ids=["pipe", "folder", "to nothing", "to itself"])
def test_other_kinds_of_files_are_refused(
    make: Callable[[Path], object], remove: Callable[[Path], object], message: str, theirs: Path, tmp_path: Path
) -> None:
    for name in FILES[:4]:
        shutil.move(theirs / name, tmp_path / "kept")
        make(theirs / name)
        assert f"{theirs / name}: {message}" in refused(theirs, tmp_path)
        remove(theirs / name)
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
    assert {path.name for path in tmp_path.glob("[roa]*/**/*.py")} == {"model.py"}  # what the model computes
    for folder in ("out", "again"):
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(tmp_path / folder, trust_remote_code=True)
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
