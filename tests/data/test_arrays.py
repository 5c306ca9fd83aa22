"""Sequences of several lengths: ids and vectors from arrays and from lists in columns, with gaps."""

from __future__ import annotations

import gzip
import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tfkit
from tfkit.core.errors import DataError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Corpus
from tfkit.data.vectors import Vectors


def corpus(name: str, **options: Any) -> Corpus:
    built: Corpus = REGISTRY.get("corpus", name).Config.model_validate(options).build()
    return built


def arrays(made: Corpus) -> list[list[list[float]]]:
    found = [example["vectors"] for example in made.examples()]
    assert all(isinstance(one, Vectors) and one.array.dtype == np.float32 for one in found)
    return [one.array.tolist() for one in found if isinstance(one, Vectors)]


def saved(path: Path, packed: bool = False, **named: Any) -> str:
    (np.savez_compressed if packed else np.savez)(path, **{name: np.asarray(one) for name, one in named.items()})
    return str(path)


@pytest.mark.full
def test_ragged_arrays_are_cut_at_their_offsets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    for number in range(60):
        lengths = rng.integers(1, 6, size=rng.integers(1, 8)).tolist()
        rows = [[rng.integers(0, 9, size=2).tolist() for _ in range(length)] for length in lengths]
        if number % 3 == 1:
            rows = [[[float(first)] for first, _ in row] for row in rows]
        dtype = [np.float32, np.float64, np.int64, np.uint8][number % 4]
        flat = np.asarray([step for row in rows for step in row], dtype)
        values = flat[:, 0] if flat.shape[1] == 1 else flat
        kinds = [f"kind {length}" for length in lengths]
        offsets = np.cumsum([0, *lengths]).astype([np.int64, np.uint64, np.int32][number % 3])
        file = saved(tmp_path / "x.npz", number % 2 > 0, values=values, offsets=offsets, kind=kinds, age=lengths)
        made = corpus("arrays", file=file, fields={"label": "kind"})
        assert made.fields == ("vectors", "label")
        assert arrays(made) == [[list(map(float, step)) for step in row] for row in rows]
        assert [example["label"] for example in made.first(99)] == kinds
        assert made.where(len(rows)) == f"{file}: row {len(rows)}"
        kept = corpus("arrays", file=file, fields={"vectors": "values", "label": "age"}, where="age>=1", limit=1)
        assert kept.examples()[0]["label"] == str(lengths[0]) and not caplog.messages
        if flat.shape[1] == 1 and dtype in (np.int64, np.uint8):
            ids = corpus("arrays", file=file, fields={"text": "values"}).examples()
            assert ids == [{"text": " ".join(str(int(one)) for (one,) in row)} for row in rows]


@pytest.mark.full
def test_gaps_are_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyarrow", reason="reads Parquet")
    from pyarrow import parquet, table

    nan = float("nan")
    rows = [[[1.0, 2.0], [nan, 3.0], [4.0, 5.0]], [[nan, nan]], [[6.0, 7.0], [8.0, nan]]]
    file = saved(tmp_path / "x.npz", values=[step for row in rows for step in row], offsets=[0, 3, 4, 6])
    columns = {"v": [[[None if one != one else one for one in step] for step in row] for row in rows]}
    parquet.write_table(table(columns), tmp_path / "x.parquet")
    lines = "".join(json.dumps({"v": row}) + "\n" for row in columns["v"])
    (tmp_path / "x.jsonl").write_text(lines)
    (tmp_path / "nan.jsonl").write_text("".join(json.dumps({"v": row}) + "\n" for row in rows))  # NaN, as Python writes
    fields, kept = {"vectors": "v"}, [[[1.0, 2.0], [4.0, 5.0]], [[6.0, 7.0]]]
    for name, options in (
        ("arrays", {"file": file}),
        ("parquet", {"file": str(tmp_path / "x.parquet"), "fields": fields}),
        ("datasets", {"folder": str(tmp_path), "fields": fields}),
        ("json_lines", {"file": str(tmp_path / "x.jsonl"), "fields": fields}),
        ("json_lines", {"file": str(tmp_path / "nan.jsonl"), "fields": fields}),
    ):
        made = corpus(name, **options, skip_empty=True)
        for is_first in (False, True):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "tfkit"):
                assert len(made.first(9)) == 2 if is_first else arrays(made) == kept
            text = f"{made.name()}: 2 steps of 2 examples with a missing value (NaN), which are masked"
            assert caplog.messages == [text]
        with pytest.raises(DataError, match=r"(row |:)2: vectors is empty; fill it in, or set skip_empty: true$"):
            corpus(name, **options).examples()


@pytest.mark.full
def test_lists_of_numbers_in_columns_are_ids_or_vectors(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"ids": [25, 18, 50], "v": [0.5, 1, null]}\n')
    file = str(tmp_path / "x.jsonl")
    assert corpus("json_lines", file=file, fields={"text": "ids"}).examples() == [{"text": "25 18 50"}]
    assert arrays(corpus("json_lines", file=file, fields={"vectors": "v"})) == [[[0.5], [1.0]]]
    (tmp_path / "x.csv").write_text('a,v\n"[3, 4]",0.5 1 nan\n5,"0.5, NaN,2"\n')
    fields = {"text": "a", "vectors": "v"}
    assert arrays(corpus("csv", file=str(tmp_path / "x.csv"), fields=fields)) == [[[0.5], [1.0]], [[0.5], [2.0]]]
    assert arrays(corpus("csv", file=str(tmp_path / "x.csv"), fields={"vectors": "a"})) == [[[3.0], [4.0]], [[5.0]]]
    several = saved(tmp_path / "x.npz", values=[1.0, 2.0], offsets=[0, 1, 2], a=[0.5, np.nan], b=[1, 2])
    targets = corpus("arrays", file=several, fields={"label": ["a", "b"]}).examples()
    assert [json.loads(one["label"]) for one in targets] == [{"a": "0.5", "b": "1"}, {"a": "", "b": "2"}]
    for content, message in (
        ('{"v": [[1, 2], [3]]}', ":1: expected a list of numbers, or of lists of numbers with one length"),
        ('{"v": ["a"]}', ":1: expected a list of numbers"),
        ('{"v": 3}', ":1: expected a list of numbers"),
        ('{"v": [[[1]]]}', ":1: expected a list of numbers"),
        ('{"v": []}', ":1: vectors is empty"),
        ('{"v": [1, Infinity]}', ":1: the value at [1, 0] is inf"),
        ('{"v": [1e999]}', ":1: the value at [0, 0] is inf"),
    ):
        Path(file).write_text(content + "\n")
        with pytest.raises(DataError) as caught:
            corpus("json_lines", file=file, fields={"vectors": "v"}).examples()
        assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.full
def test_wrong_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "offsets must be whole numbers from 0 to the number of values, never falling; "
    five = np.arange(5)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"values": five}, "no array 'offsets'; available: values"),
        ({"offsets": [0, 5]}, "no array 'values'; available: offsets"),
        ({"values": five, "offsets": [0, 4, 2, 5]}, f"{rule}offsets[2] is 2 (5 values)"),
        ({"values": five, "offsets": np.asarray([0, 4, 2, 5], np.uint8)}, f"{rule}offsets[2] is 2 (5 values)"),
        ({"values": five, "offsets": [-1, 5]}, f"{rule}offsets[0] is -1 (5 values)"),
        ({"values": five, "offsets": [0, 4]}, f"{rule}offsets[1] is 4 (5 values)"),
        ({"values": five, "offsets": [0.0, 5.0]}, f"{rule}offsets float64 [2], values int64 [5]"),
        ({"values": five, "offsets": [0]}, f"{rule}offsets[0] is 0 (5 values)"),
        ({"values": five, "offsets": 5}, f"{rule}offsets int64 [], values int64 [5]"),
        ({"values": 5, "offsets": [0, 5]}, f"{rule}offsets int64 [2], values int64 []"),
        ({"values": ["a"], "offsets": [0, 1]}, f"{rule}offsets int64 [2], values <U1 [1]"),
        ({"values": five * 1j, "offsets": [0, 5]}, f"{rule}offsets int64 [2], values complex128 [5]"),
        ({"values": five, "offsets": [0, 0, 5]}, "row 1: vectors is empty; fill it in, or set skip_empty: true"),
        ({"values": five, "offsets": [0, 5], "age": [1, 2]}, "age has shape [2], but there are offsets of 1 sequence"),
        ({"values": five, "offsets": [0, 5], "age": 3}, "age has shape [], but there are offsets of 1 sequence"),
        ({"values": np.asarray([{}, 1], dtype=object), "offsets": [0, 2]}, "Object arrays cannot be loaded when"),
        ({"values": [[1.0, np.inf]], "offsets": [0, 1]}, "row 1: the value at [0, 1] is inf"),
        ({"values": np.ones((2, 2, 2)), "offsets": [0, 2]}, "row 1: expected a list of numbers, or of lists"),
    ]
    for number, (named, message) in enumerate(cases):
        file = saved(tmp_path / f"{number}.npz", number % 2 > 0, **named)
        with pytest.raises(DataError) as caught:
            corpus("arrays", file=file, fields={"label": "age"} if "age" in named else {"vectors": "values"}).examples()
        said = str(caught.value)
        assert said.startswith(f"{file}: ") and message in said and "\n" not in said, said
    whole = Path(saved(tmp_path / "whole.npz", True, values=np.arange(1000.0), offsets=[0, 1000])).read_bytes()
    for place in range(0, len(whole), 31):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        for data in (bytes(damaged), whole[:place]):
            (tmp_path / "d.npz").write_bytes(data)
            try:
                (row,) = arrays(corpus("arrays", file=str(tmp_path / "d.npz")))
            except DataError as error:
                assert str(error).startswith(str(tmp_path / "d.npz"))
            else:
                assert row == [[float(n)] for n in range(1000)]
    (tmp_path / "whole.npz").write_bytes(whole)
    monkeypatch.setattr("tfkit.data.vectors.free_memory", lambda: 2000)
    with pytest.raises(DataError, match=r"values, offsets have 8.1 KiB, but only 2.0 KiB of memory are free"):
        corpus("arrays", file=str(tmp_path / "whole.npz")).examples()


@pytest.mark.full
def test_a_compressed_array_cannot_be_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    (tmp_path / "y.npy").write_bytes(gzip.compress((tmp_path / "x.npy").read_bytes()))
    with pytest.raises(DataError, match=r"y.npy: is compressed with gzip; unpack it"):
        corpus("npy", file=str(tmp_path / "y.npy")).examples()


ENCODER = {
    "tfkit": 1,
    "model": {
        "type": "encoder", "d_model": 8, "max_length": 8, "num_layers": 2, "position": "learned",
        "embedding": {"type": "features", "d_input": 2},
        "layer": {"norm": "layer_norm", "attention": {"type": "multi_head", "num_heads": 2},
                  "feedforward": {"type": "mlp", "d_ff": 16}},
        "head": {"type": "classifier", "num_classes": 2, "pool": "mean"},
    },
}  # fmt: skip


def test_a_gap_left_out_is_a_gap_masked(tmp_path: Path) -> None:
    """A step without effect: the model's answer is the one with the step masked, whatever it holds."""
    model = tfkit.build(ENCODER, seed=0).eval()
    values = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    holed = values.clone()
    holed[[1, 4], [0, 1]] = float("nan")
    file = saved(tmp_path / "x.npz", values=holed.numpy(), offsets=[0, 6])
    (kept,) = arrays(corpus("arrays", file=file))
    mask = torch.tensor([[1, 0, 1, 1, 0, 1]])
    with torch.inference_mode():
        left_out = model(inputs_embeds=torch.tensor([kept])).logits
        masked = model(inputs_embeds=values[None], attention_mask=mask).logits
    torch.testing.assert_close(left_out, masked)


@pytest.mark.full
def test_a_run_reads_vectors_of_other_files_in_its_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [{"v": rng.normal(size=(n % 3 + 1, 2)).tolist(), "age": n % 2} for n in range(6)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "y.jsonl").write_text('{"v": [[1, 2], [null, 1]]}\n{"v": [[3, 4]]}\n')
    train = {"type": "json_lines", "file": str(tmp_path / "x.jsonl"), "fields": {"vectors": "v", "label": "age"}}
    data = {"train": train | {"where": "age>=0", "limit": 5}, "batch": {"size": 2}}
    settings = {"steps": 1, "schedule": {"type": "constant", "lr": 0.01}}
    run = tfkit.train({**ENCODER, "data": data, "objective": "classification", "train": settings}, out=tmp_path / "run")
    assert [one.array.tolist() for one in run.inputs(str(tmp_path / "y.jsonl"))] == [[[1.0, 2.0]], [[3.0, 4.0]]]
    with pytest.raises(DataError, match=r"z.jsonl: no such file"):
        run.inputs(str(tmp_path / "z.jsonl"))
    file = saved(tmp_path / "x.npz", values=np.ones((3, 2)), offsets=[0, 1, 3], age=[0, 1])
    data["train"] = {"type": "arrays", "file": file, "fields": {"label": "age"}}
    run = tfkit.train({**ENCODER, "data": data, "objective": "classification", "train": settings}, out=tmp_path / "npz")
    other = saved(tmp_path / "y.npz", values=np.ones((3, 2)), offsets=[0, 3])
    assert [len(one.array) for one in run.inputs(other)] == [3]
    assert len(run.predict(run.inputs(other))) == 1


@pytest.mark.full
@pytest.mark.parametrize("values", [np.zeros((4, 0)), "text"])
def test_arrays_without_values_are_refused(values: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    if isinstance(values, str):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("values", values)
            archive.writestr("offsets", values)
    else:
        saved(path, values=values, offsets=[0, 2, 4])
    with pytest.raises(DataError, match=r"expected a list of numbers|is not an array"):
        corpus("arrays", file=str(path)).examples()


@pytest.mark.full
def test_messages_name_some_of_many_columns(tmp_path: Path) -> None:
    names = ["x" * 9_000, *map(str, range(9_000))]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n", encoding="utf-8")
    (tmp_path / "wide.jsonl").write_text(json.dumps(dict.fromkeys(names, 1)) + "\n", encoding="utf-8")
    for name, file in (("csv", "wide.csv"), ("json_lines", "wide.jsonl")):
        with pytest.raises(DataError, match=r"and 8,981 more") as caught:
            corpus(name, file=str(tmp_path / file), fields={"text": "y"}).examples()
        assert len(str(caught.value)) < 1_000
