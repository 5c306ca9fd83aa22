"""Their folders: one file or several, what is missing, broken or pickled, and nothing that is run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tfkit.core.errors import DataError
from tfkit.interop.huggingface.files import INDEX, SINGLE, folder_of, open_checkpoint, read_config

from ..sampling import each, some


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
