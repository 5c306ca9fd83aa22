"""The choice among ways to multiply: measured once per shape, shared by processes, and forced by a variable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tfkit.core.errors import UsageError
from tfkit.functional import fastest as module
from tfkit.functional import ways
from tfkit.functional.fastest import DIRECT, FILE, FORCED, ProductShape, fastest, measure, remembered
from tfkit.functional.ways import WAYS, available
from tfkit.storage.locks import mark_in_use

SHAPE = ProductShape(4, 24, 40)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv(FORCED, raising=False)
    monkeypatch.setenv("TFKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "STREAMED", 1)
    monkeypatch.setattr(ways, "THIN", 1)
    monkeypatch.setattr(module, "ENOUGH", 0.0)
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    """Forget what this process knows, as in another process."""
    fastest.cache_clear()
    remembered.cache_clear()


def times(monkeypatch: pytest.MonkeyPatch, *seconds: dict[str, float]) -> list[ProductShape]:
    """Answer measurements with these seconds; other ways take 1 s. Return the list of shapes that are measured."""
    answers, measured = iter(seconds), []

    def answered(shape: ProductShape) -> dict[str, float]:
        measured.append(shape)
        return dict.fromkeys(shape.names(), 1.0) | next(answers)

    monkeypatch.setattr(module, "measure", answered)
    return measured


def choose(rows: int = 4, copies: bool = True, threads: int = 2, transposed: bool = False) -> str:
    forget()
    return fastest(rows, 24, 40, transposed, copies, threads)


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", WAYS)
def test_every_way_computes_the_linear_layer(name: str, bias: bool, rows: int) -> None:
    if not available(name):
        pytest.skip("this build of torch lacks its kernels")
    torch.manual_seed(0)
    weight, added, x = torch.randn(40, 24), torch.randn(40) if bias else None, torch.randn(rows, 24)
    way = WAYS[name](weight, added)
    torch.testing.assert_close(way(x, rows), F.linear(x, weight, added))
    assert way(x[:, None], rows).shape == (rows, 1, 40)
    assert (way.bytes == 0) == (name in DIRECT)


@pytest.mark.parametrize("shape", [SHAPE, ProductShape(128, 24, 40), ProductShape(4, 24, 40, transposed=True)])
def test_every_way_is_timed(shape: ProductShape) -> None:
    before = torch.get_rng_state()
    seconds = measure(shape)
    assert list(seconds) == shape.names() and all(value > 0 for value in seconds.values())
    assert set(seconds) <= set(WAYS if shape == SHAPE else DIRECT)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_shape_is_measured_once_on_a_machine(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5, "onednn": 0.7}, {}, {})
    assert choose() == "packed"
    assert choose(rows=7) == "packed"
    assert choose(copies=False) == "onednn"
    assert measured == [SHAPE]
    assert choose(threads=1) == "mkl"
    assert choose(rows=8) == "mkl"
    assert measured == [SHAPE, SHAPE, ProductShape(8, 24, 40)]
    assert len([line for line in (cache / FILE).read_text().splitlines() if line]) == 3


def test_the_way_of_torch_is_kept_within_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"mkl": 1.0, "packed": 0.91}, {"mkl": 1.0, "packed": 0.89})
    assert choose(rows=1) == "mkl" and choose(rows=2) == "packed"


def test_the_first_of_two_processes_decides(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    times(monkeypatch, {"packed": 0.5})
    choose()
    first = json.loads((cache / FILE).read_text())

    def late(shape: ProductShape) -> dict[str, float]:
        (cache / FILE).write_text(json.dumps(first) + "\n")  # the other process has measured meanwhile
        return dict.fromkeys(shape.names(), 1.0) | {"onednn": 0.1}

    (cache / FILE).unlink()
    monkeypatch.setattr(module, "measure", late)
    assert choose() == "packed"


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: "[" * 10_000,
        lambda line: "3",
        lambda line: line.replace('"mkl": 1.0', '"mkl": -1.0'),
        lambda line: line.replace('"mkl": 1.0', '"mkl": NaN'),
        lambda line: line.replace('"mkl": 1.0', '"mkl": "1"'),
        lambda line: line.replace('"mkl"', '"blas"'),
        lambda line: line.replace('"seconds"', '"minutes"'),
    ],
)
def test_damaged_lines_are_ignored(damage: Any, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5}, {"packed": 0.5})
    choose()
    line = (cache / FILE).read_text().strip()
    (cache / FILE).write_text(damage(line))
    assert choose() == "packed" and len(measured) == 2
    assert choose() == "packed" and len(measured) == 2


def test_without_a_cache_folder_every_process_measures(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5}, {"packed": 0.5})
    cache.write_text("a file")
    assert choose() == choose() == "packed" and len(measured) == 2
    (cache.parent / "other").mkdir()
    (cache.parent / "other" / FILE).symlink_to(cache)
    monkeypatch.setenv("TFKIT_CACHE", str(cache.parent / "other"))
    times(monkeypatch, {})
    assert choose() == "mkl" and cache.read_text() == "a file"


def test_a_process_measures_once_where_nothing_can_be_stored(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5})
    cache.write_text("a file")
    for rows in (4, 5, 6, 7):
        assert fastest(rows, 24, 40, False, True, 2) == "packed"
    assert measured == [SHAPE]


def test_bytes_that_are_no_text_are_ignored(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5})
    cache.mkdir()
    (cache / FILE).write_bytes(b"\xff\xfe\x00\n")
    assert choose() == choose() == "packed" and measured == [SHAPE]


def test_a_busy_file_is_waited_for_in_vain_only_for_a_while(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    times(monkeypatch, {"packed": 0.5})
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    cache.mkdir()
    with open(cache / FILE, "w") as file:
        mark_in_use(file.fileno())
        assert choose() == "packed"


def test_a_process_waits_for_the_times_of_another(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measured = times(monkeypatch, {"packed": 0.5}, {"onednn": 0.1})
    choose()
    line = (cache / FILE).read_text()
    (cache / FILE).unlink()
    with open(cache / FILE, "a") as file, ThreadPoolExecutor(1) as pool:
        mark_in_use(file.fileno())
        found = pool.submit(choose)
        time.sleep(0.3)
        file.write(line)
        file.close()
        assert found.result() == "packed" and len(measured) == 1


def test_a_fork_during_a_measurement_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"packed": 0.5})
    with module._LOCK:
        child = os.fork()
        if child == 0:
            os._exit(0 if fastest(4, 24, 40, False, True, 2) == "packed" else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_measurement_on_a_busy_machine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 0.0)
    monkeypatch.setattr(module, "ENOUGH", 100.0)
    assert list(measure(SHAPE)) == SHAPE.names()


@pytest.mark.parametrize(
    ("shape", "measured"),
    [
        (ProductShape(1000, 768, 768), ProductShape(512, 768, 768)),
        (ProductShape(100_000, 768, 3072), ProductShape(512, 768, 3072)),
        (ProductShape(1, 50_000, 50_000), ProductShape(1, 50_000, 335)),
        (ProductShape(9, 200_000, 4096, transposed=True), ProductShape(8, 4096, 4096, transposed=True)),
        (ProductShape(0, 4, 4), ProductShape(1, 4, 4)),
        (ProductShape(1, 10**9, 1), ProductShape(1, 1 << 24, 1)),
        (ProductShape(1, 17_000_000, 17_000_000), ProductShape(1, 1 << 24, 1)),
    ],
)
def test_measured_shapes_are_bounded(shape: ProductShape, measured: ProductShape) -> None:
    assert shape.measured() == measured
    assert shape.measured().measured() == measured


def test_thin_weights_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "THIN", 25)
    assert "packed" not in SHAPE.names() and "packed" in SHAPE._replace(width=25).names()
    monkeypatch.setenv(FORCED, "packed")
    assert choose() == "mkl"


@pytest.mark.parametrize("name", WAYS)
def test_a_way_can_be_forced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = times(monkeypatch)
    monkeypatch.setenv(FORCED, name)
    assert choose() == name
    assert choose(copies=False) == ("onednn" if name in ("onednn", "reordered") else "mkl")
    assert measured == []


def test_a_way_that_torch_lacks_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "ONEDNN", None)
    monkeypatch.setattr(ways, "PACK", None)
    assert SHAPE.names() == ["mkl", "transposed"]
    assert remembered(SHAPE, 1).keys() == {"mkl", "transposed"}
    assert choose(copies=False, rows=100) == "mkl"
    monkeypatch.setenv(FORCED, "reordered")
    with pytest.raises(UsageError, match=r"TFKIT_PRODUCTS=reordered: this torch .* lacks its kernels"):
        choose()
