"""Corpora of arrays, pictures and sounds; and what is wrong with them is told with its place, before training."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import warnings
import wave
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from tfkit.core.errors import DataError, TfkitWarning, UsageError
from tfkit.core.registry import REGISTRY
from tfkit.data.corpus import Example
from tfkit.data.corpus.vectors import read_wav
from tfkit.data.vectors import Vectors, as_vectors

from ..sampling import each, looped


def examples(type_: str, **options: Any) -> list[Example]:
    config = REGISTRY.get("corpus", type_).Config.model_validate(options)
    return config.build().examples()  # type: ignore[no-any-return]


def array(example: Example) -> NDArray[np.float32]:
    vectors = example["vectors"]
    assert isinstance(vectors, Vectors)
    return vectors.array


def picture(path: Path, height: int, width: int, value: int = 128) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(np.full((height, width, 3), value, dtype=np.uint8)).save(path)


def sound(path: Path, samples: NDArray[Any], rate: int = 8000, width: int = 2, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i8")
    whole = whole + 128 if width == 1 else whole
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(whole[:, None].view(np.uint8).reshape(-1, 8)[:, :width].tobytes())


# --- arrays


def test_rows_of_an_array_have_their_labels_from_lines_or_numbers(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", np.array([2, 0, 1]))
    (tmp_path / "y.txt").write_text("two\nnone\none\n")
    numbers = examples("npy", file=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy"), scale=0.5)
    words = examples("npy", file=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.txt"), field="target", limit=2)
    assert [one["label"] for one in numbers] == ["2", "0", "1"] and [one["target"] for one in words] == ["two", "none"]
    assert array(numbers[1]).tolist() == (values[1] / 2).tolist()
    assert numbers[1]["vectors"] == f"{tmp_path / 'x.npy'}: row 2"


def test_a_row_of_one_axis_is_one_position(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 5)))
    assert array(examples("npy", file=str(tmp_path / "x.npy"))[0]).shape == (1, 5)


def faulty(path: Path) -> dict[str, bytes]:
    """Files that are no arrays of finite numbers."""
    kept = io.BytesIO()
    np.save(kept, np.ones((3, 4)))
    archive, objects, text, empty, nothing = (io.BytesIO() for _ in range(5))
    np.savez(archive, np.ones(3))
    np.save(objects, np.array([Exploding(path)], dtype=object), allow_pickle=True)
    np.save(text, np.array(["a", "b"]))
    np.save(empty, np.ones((0, 4)))
    np.save(nothing, np.array([[1.0, 2.0], [3.0, np.nan]]))
    return {
        "cut": kept.getvalue()[:-8], "npz": archive.getvalue(), "objects": objects.getvalue(), "text": text.getvalue(),
        "empty": empty.getvalue(), "nan": nothing.getvalue(), "header": kept.getvalue()[:20], "other": b"hello",
        "bracket": kept.getvalue().replace(b"), }", b")3, "),
    }  # fmt: skip


class Exploding:
    """An object whose unpickling leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@looped(
    ("name", "said"),
    [
        ("cut", "is truncated: it has fewer values than its header declares"),
        ("npz", "an archive of several"),
        ("objects", "contains Python objects, which are never unpickled"),
        ("text", "the values are of type <U1, not real numbers"),
        ("empty", "contains no example"),
        ("nan", r"row 2: the value at \[1\] is nan; all values must be finite"),
        ("header", "cannot be read as an array"),
        ("bracket", "cannot be read as an array"),
        ("other", "expected a single array"),
    ],
)
def test_a_file_that_is_no_array_is_refused(name: str, said: str, tmp_path: Path) -> None:
    trace = tmp_path / "unpickled"
    (tmp_path / "x.npy").write_bytes(faulty(trace)[name])
    with pytest.raises(DataError, match=f"x.npy.*{said}"):
        examples("npy", file=str(tmp_path / "x.npy"))
    assert not trace.exists()


def test_labels_of_another_count_name_both_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 4)))
    (tmp_path / "y.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"y.txt has 2 labels, but .*x.npy has 3 examples"):
        examples("npy", file=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.txt"))
    (tmp_path / "y.txt").write_text("a\n\nb\n")
    with pytest.raises(DataError, match=r"y.txt:2: the line is empty"):
        examples("npy", file=str(tmp_path / "x.npy"), labels=str(tmp_path / "y.txt"))


# --- pictures


def test_pictures_have_their_labels_from_folders_or_from_a_file(tmp_path: Path) -> None:
    for name, value in (("dark/a.png", 0), ("light/b.png", 255), ("light/c.png", 255)):
        picture(tmp_path / "all" / name, 4, 6, value)
    (tmp_path / "labels.txt").write_text("light/b.png\ta white one\ndark/a.png\ta black one\n")
    folders = examples("images", folder=str(tmp_path / "all"))
    listed = examples("images", folder=str(tmp_path / "all"), labels=str(tmp_path / "labels.txt"), field="target")
    assert [one["label"] for one in folders] == ["dark", "light", "light"]
    assert [one["target"] for one in listed] == ["a white one", "a black one"]
    assert array(listed[0]).shape == (4, 6, 3) and float(array(listed[0]).min()) == 1.0
    grey = examples("images", folder=str(tmp_path / "all"), colours="grey", size=2)
    assert array(grey[0]).shape == (2, 2, 1)
    with pytest.raises(ValidationError, match="4096"):
        examples("images", folder=str(tmp_path / "all"), size=4097)


def bomb(side: int) -> bytes:
    """A small PNG that says it has `side` x `side` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


@looped(
    ("data", "said"),
    [
        (b"hello", "cannot be read as an image"),
        (bomb(6000), "6000 x 6000 pixels exceed the limit of 16,777,216"),
        (bomb(12_000), "decompression bomb"),
        (bomb(60_000), "decompression bomb"),
        (bomb(8), "cannot be read as an image"),
    ],
)
def test_a_file_that_is_no_picture_is_refused(data: bytes, said: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    (tmp_path / "one").mkdir(exist_ok=True)
    (tmp_path / "one" / "a.png").write_bytes(data)
    with pytest.raises(DataError, match=f"a.png: .*{said}"):
        examples("images", folder=str(tmp_path))


def test_pictures_of_other_sizes_or_without_a_class_are_refused(tmp_path: Path) -> None:
    picture(tmp_path / "one" / "a.png", 4, 4)
    picture(tmp_path / "one" / "b.png", 4, 5)
    with pytest.raises(DataError, match=r"b.png: has 4 x 5 pixels, but .*a.png has 4 x 4; set size"):
        examples("images", folder=str(tmp_path))
    with pytest.raises(DataError, match=r"a.png: is not in a class folder; move it to a subfolder"):
        examples("images", folder=str(tmp_path / "one"))
    with pytest.raises(DataError, match=r"contains no file of type .png"):
        (tmp_path / "empty").mkdir()
        examples("images", folder=str(tmp_path / "empty"))
    (tmp_path / "labels.txt").write_text("one/a.png x\n")
    with pytest.raises(DataError, match=r"labels.txt:1: expected a file name, a tab and a label"):
        examples("images", folder=str(tmp_path), labels=str(tmp_path / "labels.txt"))
    (tmp_path / "labels.txt").write_text("one/c.png\tx\n")
    with pytest.raises(DataError, match=r"c.png: no such file"):
        examples("images", folder=str(tmp_path), labels=str(tmp_path / "labels.txt"))


def test_pictures_are_read_as_they_are_shown(tmp_path: Path) -> None:
    """The references are Pillow's own conversions and, for 16 bits and alpha, the formula."""
    image, ops = pytest.importorskip("PIL.Image", reason="pictures need Pillow"), import_module("PIL.ImageOps")
    draws = np.random.default_rng(0)
    rgb, alpha = (draws.integers(0, 256, (8, 6, of), dtype=np.uint8) for of in (3, 1))
    deep, index = (draws.integers(0, most, (8, 6, 1)).astype(np.uint16) for most in (2**16, 8))
    colour, sixteen = image.fromarray(rgb), image.fromarray(deep[..., 0])
    palette = colour.quantize(8)
    palette.putdata(index.ravel().tolist())
    flat = np.asarray(palette.convert("RGB")) / 255
    share = alpha / 255
    cases: list[tuple[Any, str, Any, dict[str, Any]]] = [
        (sixteen, "png", deep / 65535, {}),
        (sixteen, "png", np.where(deep == deep[2, 2], 1, deep / 65535), {"transparency": int(deep[2, 2, 0])}),
        (image.fromarray(np.concatenate([rgb, alpha], 2)), "png", rgb / 255 * share + 1 - share, {}),
        (image.fromarray(np.concatenate([alpha, alpha], 2)), "png", share * share + 1 - share, {}),
        (palette, "png", flat, {}),
        *((palette, kind, np.where(index == 3, 1, flat), {"transparency": 3}) for kind in ("png", "gif")),
        (colour.convert("CMYK"), "jpg", None, {}),
        (colour.convert("1"), "png", None, {}),
    ]
    for orientation in range(1, 9):
        exif = image.Exif()
        exif[0x0112] = orientation
        cases.append((colour, "png", None, {"exif": exif}))

    def check(one: Any, kind: str, want: Any, options: dict[str, Any]) -> None:
        file = tmp_path / f"a.{kind}"
        one.save(file, **options)
        want = np.asarray(ops.exif_transpose(image.open(file)).convert("RGB")) / 255 if want is None else want
        (tmp_path / "labels").write_text(f"{file}\tx\n")
        (read,) = examples("images", folder=str(tmp_path), labels=str(tmp_path / "labels"))
        np.testing.assert_allclose(array(read), np.broadcast_to(want, (*want.shape[:2], 3)), atol=0.51 / 255)

    each(cases, check)


def test_what_is_in_a_folder_is_read_or_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
    picture(tmp_path / "one" / "a.png", 4, 4)
    for name in ("one/notes.txt", "one/deeper/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.warns(TfkitWarning, match=r"2 of other types, or deeper, are not read, the first .*deeper"):
        assert len(examples("images", folder=str(tmp_path))) == 1
    odd = tmp_path / "one" / "b.png"
    makers: list[tuple[Any, str]] = [
        (lambda: odd.symlink_to("gone"), "a link to a missing file"),
        (lambda: odd.symlink_to(odd), "a link that leads back to itself"),
        (lambda: odd.symlink_to("/dev/null"), "is a pipe, a device or a socket"),
        (lambda: os.mkfifo(odd), "is a pipe, a device or a socket"),
        (lambda: colours[0].save(odd, save_all=True, append_images=colours[1:]), "is animated .3 frames.; save each"),
    ]
    colours = [image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "white")]
    for make, said in makers:
        make()
        with pytest.raises(DataError, match=f"b.png: {said}"), warnings.catch_warnings(action="ignore"):
            examples("images", folder=str(tmp_path))
        odd.unlink()


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "one" / "a.png", 4, 4)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"images need the packages of an extra: pip install"):
        examples("images", folder=str(tmp_path))
    with pytest.raises(DataError, match="'digits' needs the packages of an extra: pip install"):
        examples("digits")


# --- sounds


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_tone_has_its_peak_at_its_frequency(width: int, tmp_path: Path) -> None:
    sound(tmp_path / "high" / "a.wav", 0.5 * np.sin(2 * np.pi * 1000 * np.arange(4000) / 8000), width=width)
    (one,) = examples("audio", folder=str(tmp_path), rate=8000, window_ms=32, hop_ms=16)
    assert array(one).shape == (1 + (4000 - 256) // 128, 129) and one["label"] == "high"
    assert set(array(one).argmax(axis=1).tolist()) == {1000 * 256 // 8000}
    assert array(one).max() == pytest.approx(1 + np.log10(0.5) / 3, abs=0.001) and array(one).min() == 0


def test_a_sound_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one" / "a.wav"
    sound(file, np.zeros(4000))
    with pytest.raises(DataError, match=r"a.wav: has 8,000 samples per second, not 16,000; set rate: 8000"):
        examples("audio", folder=str(tmp_path))
    with pytest.raises(DataError, match=r"has 4,000 samples, but a frame needs 8,000"):
        examples("audio", folder=str(tmp_path), rate=8000, window_ms=1000)
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    with pytest.raises(DataError, match=r"a.wav: is truncated: 956 of 8,000 bytes"):
        examples("audio", folder=str(tmp_path), rate=8000)
    file.write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"cannot be read as .wav: no RIFF file"):
        examples("audio", folder=str(tmp_path), rate=8000)


def test_sounds_are_read_in_each_format(tmp_path: Path) -> None:
    """The references are the samples from which each file is written."""
    tone = np.sin(np.arange(100)) / 2
    integers = [(1, bits, f"<i{bits // 8}", 2.0 ** (bits - 1)) for bits in (16, 32)]
    guid = bytes.fromhex("000000001000800000aa00389b71")

    def check(code: int, bits: int, dtype: str, scale: float, extended: bool, before: bytes = b"") -> None:
        data = (tone * scale).astype(dtype).tobytes()
        form = struct.pack("<HHIIHH", 0xFFFE if extended else code, 1, 8000, 1000 * bits, bits // 8, bits)
        form += struct.pack("<HHIH", 22, bits, 4, code) + guid if extended else b""
        body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(form)) + form + b"data"
        file = tmp_path / "a.wav"
        file.write_bytes(b"RIFF" + struct.pack("<I", 0) + body + struct.pack("<I", len(data)) + data + b"LIST\0\0\0\0")
        samples, rate = read_wav(str(file))
        assert rate == 8000
        np.testing.assert_allclose(samples, tone, atol=2 / scale + 1e-7)

    floats = [(3, 32, "<f4", 1.0), (3, 64, "<f8", 1.0)]
    each([(*one, extended) for one in (*integers, *floats) for extended in (False, True)], check)
    check(1, 16, "<i2", 2.0**15, False, before=b"junk\3\0\0\0abc\0")  # an odd chunk is padded
    with pytest.raises(DataError, match=r"format 6, 1 x 8 bits in 1 bytes, 8000 Hz; save it as PCM"):
        check(6, 8, "i1", 1.0, False)
    with pytest.raises(DataError, match=r"a.wav: the value at \[0\] is nan"):
        check(3, 32, "<f4", np.nan, False)


# --- drawn ones


@pytest.mark.full
def test_splits_share_no_digit_and_no_sentence() -> None:
    pytest.importorskip("sklearn", reason="the digits are in scikit-learn")
    digits = {
        split: {one["vectors"] for one in examples("digits", split=split)} for split in ("train", "valid", "test")
    }
    assert [len(names) for names in digits.values()] == [1437, 180, 180] and len(set().union(*digits.values())) == 1797
    said = {split: {one["target"] for one in examples("shapes", split=split)} for split in ("train", "valid", "test")}
    assert not said["train"] & said["test"] and not said["valid"] & (said["train"] | said["test"])


# --- arrays under names


def test_a_named_array_survives_pickling_and_says_its_range() -> None:
    one = pickle.loads(pickle.dumps(Vectors("a", np.array([[1, 2.5]]))))
    assert one == "a" and one.array.tolist() == [[1, 2.5]] and one.described() == "a [1 2], 1 to 2.5"


@looped("given", ["text", ["text"], 3, [np.array([np.inf])], np.array([[1j]]), [[1, [2]]]])
def test_inputs_that_are_no_arrays_are_refused(given: Any) -> None:
    with pytest.raises(UsageError):
        as_vectors(given)
