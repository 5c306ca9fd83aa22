"""Corpora of arrays, images and audio: examples hold `vectors`, which bypass the tokenizer."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tfkit.core.errors import DataError, RunError, installing
from tfkit.core.options import FolderPath, PositiveFloat, PositiveInt, RecipePath
from tfkit.core.output import counted
from tfkit.core.registry import register
from tfkit.data.corpus.base import Corpus, Example, Fields, Record, RecordCorpus, names_of
from tfkit.data.corpus.lines import Lines
from tfkit.data.corpus.records import pick
from tfkit.data.vectors import NUMBERS, Array, Vectors, files_in, finite, read_npy, read_npz
from tfkit.storage import files

PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "PPM")  # Pillow's names
ANIMATED = ("PNG", "GIF", "WEBP")  # formats whose further frames are not previews of the first
DEEP = 65_535  # white of 16-bit pixels
MOST_PIXELS = 2**24  # limit per image, since a small file can declare billions of pixels
INTEGERS, FLOATS, EXTENSIBLE = 1, 3, 0xFFFE  # format codes of .wav
WIDTHS = {INTEGERS: (1, 2, 3, 4), FLOATS: (4, 8)}  # bytes per sample
GUID = bytes.fromhex("000000001000800000aa00389b71")  # follows the code of WAVE_FORMAT_EXTENSIBLE
MOST_BYTES = 2**30  # limit per image or audio file
Milliseconds = Annotated[float, Field(gt=0, le=10_000)]


class VectorCorpus(Corpus):
    """Base of corpora of arrays."""

    def inputs(self, path: str) -> Iterator[Vectors]:
        """Yield unlabelled arrays as inputs of a trained model. Raise DataError for unreadable files."""
        yield from _rows(path, dict(self.config).get("scale", 1.0))


@register("corpus", "npy")
class Npy(VectorCorpus):
    """A .npy file, one example per row: [examples, time, width], [examples, width] or images."""

    class Config(VectorCorpus.Config):
        file: RecipePath = Field(description="a .npy file with one example per row of the first axis")
        labels: RecipePath | None = Field(
            None, description="a text file with one label per line, or a .npy file of integers"
        )
        field: Literal["label", "target"] = Field(
            "label", description="use of `labels`: a class or number to predict (label), or a text to generate (target)"
        )
        scale: PositiveFloat = Field(1.0, description="factor applied to all values (8-bit images: 0.0039)")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.fields = ("vectors",) if config.labels is None else ("vectors", config.field)

    def read(self) -> Iterator[Example]:
        labels = None if self.config.labels is None else self._labels(self.config.labels)
        for number, vectors in enumerate(_rows(self.config.file, self.config.scale)):
            yield {"vectors": vectors} if labels is None else {"vectors": vectors, self.config.field: labels[number]}

    def _labels(self, path: str) -> Sequence[str]:
        """Return one label per row. Raise DataError if the numbers of labels and rows differ."""
        labels, rows = self._read_labels(path), len(read_npy(self.config.file))
        if len(labels) != rows:
            raise DataError(
                f"{path} has {len(labels):,} labels, but {self.config.file} has {rows:,} examples; use equal numbers"
            )
        return labels

    def _read_labels(self, path: str) -> Sequence[str]:
        if not path.endswith(".npy"):
            return [line.strip() for line in files_lines(path)]
        array = read_npy(path)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise DataError(
                f"{path}: labels must be integers, one per example; got {array.dtype} with {array.ndim} axes"
            )
        return [str(label) for label in array.tolist()]

    def place(self, number: int) -> str:
        return f"{self.config.file}: row {number}"


@register("corpus", "arrays")
class Arrays(RecordCorpus):
    """Sequences of several lengths in a .npz file: number n is `values[offsets[n] : offsets[n + 1]]`.

    Values are vectors ([steps] or [steps width]; steps with NaN are masked) or, with `fields: {text: values}`, ids for
    the tokenizer `ids`. Other arrays of the file have an entry per sequence, such as `fields: {label: age}`.
    """

    class Config(RecordCorpus.Config):
        file: RecipePath = Field(description="a .npz file with the arrays `values` and `offsets`")
        fields: Fields = Field(
            {"vectors": "values"}, description="array of each field; without `values`, vectors has it"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if "values" not in self.names.values():
            self.names = {"vectors": "values", **self.names}
            self.fields = tuple(self.names)

    def records(self) -> Iterator[Record]:
        """Yield the fields of each sequence. Raise DataError for unusable offsets and for arrays of other lengths."""
        arrays = read_npz(self.file, dict.fromkeys(("values", "offsets", *names_of(self.names), *self.also)))
        values, offsets = arrays.pop("values"), arrays.pop("offsets")
        are_numbers = offsets.dtype.kind in "iu" and offsets.ndim == 1 and values.dtype.kind in NUMBERS and values.ndim
        marks: list[int] = offsets.tolist() if are_numbers else []
        fixed = {0: 0, len(marks) - 1: len(values) if are_numbers else 0}
        wrong = [n for n, mark in enumerate(marks) if mark != fixed.get(n, mark) or mark < marks[max(n - 1, 0)]]
        if wrong or not marks:
            those = f"offsets {offsets.dtype} {list(offsets.shape)}, values {values.dtype} {list(values.shape)}"
            what = f"offsets[{wrong[0]}] is {marks[wrong[0]]:,} ({len(values):,} values)" if wrong else those
            raise DataError(
                f"{self.file}: offsets must be whole numbers from 0 to the number of values, never falling; {what}"
            )
        for name, array in arrays.items():
            if array.shape[:1] != (len(marks) - 1,):
                size = counted(len(marks) - 1, "sequence")
                raise DataError(f"{self.file}: {name} has shape {list(array.shape)}, but there are offsets of {size}")
        for number, (start, stop) in enumerate(pairwise(marks)):
            place, part = f"{self.file}: row {number + 1}", values[start:stop]
            row: dict[str, object] = {name: array[number].tolist() for name, array in arrays.items()}
            row["values"] = part if self.names.get("vectors") == "values" else part.tolist()
            yield place, pick(row, self.names, place, self.also)


class FolderCorpus(VectorCorpus):
    """Base of corpora in a folder of files, labelled by a label file or by one subfolder per class."""

    suffixes: ClassVar[tuple[str, ...]] = ()

    class Config(VectorCorpus.Config):
        folder: FolderPath = Field(description="a folder of files, with one subfolder per class unless `labels` is set")
        labels: RecipePath | None = Field(
            None, description="a file with lines of the form: file name, tab, label; none: the names of the subfolders"
        )
        field: Literal["label", "target"] = Field(
            "label", description="use of `labels`: a class or number to predict (label), or a text to generate (target)"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.fields = ("vectors", config.field)

    def read(self) -> Iterator[Example]:
        """Yield the files in the order of the label file, or sorted by path.

        Raise DataError if their arrays have different shapes.
        """
        first: tuple[str, Array] | None = None
        for path, label in self._labelled():
            array = self.load(path)
            first = first or (path, array)
            self._check_shape(path, array, *first)
            yield {"vectors": Vectors(path, array), self.config.field: label}

    def inputs(self, path: str) -> Iterator[Vectors]:
        if path.endswith(".npy"):
            yield from super().inputs(path)
            return
        for file in files_in(path, self.suffixes):
            yield Vectors(file, self.load(file))

    def load(self, path: str) -> Array:
        """Load a file as an array. Raise DataError if it is invalid."""
        raise NotImplementedError(f"{type(self).__name__} does not implement load")

    def _check_shape(self, path: str, array: Array, first: str, like: Array) -> None:
        if array.shape[1:] != like.shape[1:]:
            raise DataError(f"{path}: has shape {list(array.shape)}, but {first} has {list(like.shape)}")

    def _labelled(self) -> Iterator[tuple[str, str]]:
        if self.config.labels is None:
            for path in files_in(self.config.folder, self.suffixes):
                label = os.path.basename(os.path.dirname(path))
                if Path(path).parent == Path(self.config.folder):
                    raise DataError(f"{path}: is not in a class folder; move it to a subfolder, or set `labels`")
                yield path, label
            return
        for number, line in enumerate(files_lines(self.config.labels), 1):
            name, tab, label = line.partition("\t")
            if not tab or not label.strip():
                raise DataError(f"{self.config.labels}:{number}: expected a file name, a tab and a label")
            yield os.path.join(self.config.folder, name), label.strip()

    def name(self) -> str:
        return self.config.folder

    def place(self, number: int) -> str:
        paths = [path for path, _ in self._labelled()]
        return paths[number - 1] if number <= len(paths) else super().place(number)


@register("corpus", "images")
class Images(FolderCorpus):
    """A folder of images, one per example: [height width channels], values from 0 to 1 (needs Pillow).

    The EXIF orientation is applied, and transparent pixels are blended with white.
    """

    suffixes = PICTURES

    class Config(FolderCorpus.Config):
        colours: Literal["rgb", "grey"] = Field("rgb", description="3 channels (rgb) or 1 (grey)")
        size: PositiveInt | None = Field(None, le=2**12, description="height and width after resizing; none: unchanged")

    config: Config

    def load(self, path: str) -> Array:
        try:
            pillow = import_module("PIL.Image")
        except ImportError:
            raise DataError(f"{path}: images need the packages of an extra: {installing('vision')}") from None
        wrong = (OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, struct.error, Warning)
        try:
            data = files.read_bytes(path, MOST_BYTES)
            with warnings.catch_warnings():
                warnings.simplefilter("error", pillow.DecompressionBombWarning)
                with pillow.open(io.BytesIO(data), formats=FORMATS) as picture:
                    if picture.width * picture.height > MOST_PIXELS:
                        raise DataError(
                            f"{path}: {picture.width} x {picture.height} pixels exceed the limit of {MOST_PIXELS:,}"
                        )
                    if picture.format in ANIMATED and getattr(picture, "is_animated", False):
                        raise DataError(f"{path}: is animated ({picture.n_frames} frames); save each frame as a file")
                    return self._pixels(picture, path)
        except RunError as error:
            raise DataError(str(error)) from None
        except pillow.UnidentifiedImageError:
            raise DataError(f"{path}: cannot be read as an image of type {', '.join(FORMATS)}") from None
        except (*wrong, pillow.DecompressionBombError) as error:
            raise DataError(f"{path}: cannot be read as an image: {error}") from None

    def _pixels(self, picture: Any, path: str) -> Array:
        """Return a picture upright, on white, as [height width channels] from 0 to 1."""
        pillow, channels = import_module("PIL.Image"), 3 if self.config.colours == "rgb" else 1
        picture = import_module("PIL.ImageOps").exif_transpose(picture)
        if picture.mode == "F":
            raise DataError(f"{path}: has float pixels, whose range is unknown; save it with 8 or 16 bits")
        deep = picture.mode[0] == "I"  # 16-bit grey, which Pillow would clip to 255
        if deep:
            values = np.asarray(picture).astype(np.float32)  # [height, width]
            values[values == picture.info.get("transparency", -1)] = DEEP
            picture = pillow.fromarray(values)
        else:
            if picture.has_transparency_data:
                picture = picture.convert("RGBA")
                picture = pillow.alpha_composite(pillow.new("RGBA", picture.size, "white"), picture)
            picture = picture.convert("RGB" if channels == 3 else "L")
        if self.config.size is not None:
            picture = picture.resize((self.config.size, self.config.size))
        array: Array = np.asarray(picture, dtype=np.float32) / np.float32(DEEP if deep else 255)
        array = array if array.ndim == 3 else array[..., None].clip(0, 1)
        return array if array.shape[2] == channels else np.repeat(array, channels, axis=2)

    def _check_shape(self, path: str, array: Array, first: str, like: Array) -> None:
        if array.shape != like.shape:
            sizes = [f"{one.shape[0]} x {one.shape[1]}" for one in (array, like)]
            raise DataError(
                f"{path}: has {sizes[0]} pixels, but {first} has {sizes[1]}; set size (for example 32) to resize all"
            )


@register("corpus", "audio")
class Audio(FolderCorpus):
    """A folder of audio files (.wav), one per example: log-magnitude spectra [frames, frequencies]."""

    suffixes = (".wav",)

    class Config(FolderCorpus.Config):
        """The folder, and how its audio is cut into frames; each has `rate * window_ms / 2000 + 1` frequencies."""

        rate: PositiveInt = Field(16_000, description="sample rate in Hz; files with other rates are rejected")
        window_ms: Milliseconds = Field(25.0, description="length of a frame in milliseconds")
        hop_ms: Milliseconds = Field(10.0, description="time between the starts of consecutive frames in milliseconds")

    config: Config

    def load(self, path: str) -> Array:
        """Return the spectra [frames frequencies] of a file, averaging its channels."""
        samples, rate = read_wav(path)
        if rate != self.config.rate:
            raise DataError(f"{path}: has {rate:,} samples per second, not {self.config.rate:,}; set rate: {rate}")
        return spectra(samples, rate, self.config.window_ms, self.config.hop_ms, path)


def spectra(samples: Array, rate: int, window_ms: float, hop_ms: float, place: str) -> Array:
    """Return log-magnitude spectra [frames frequencies] of Hann windows, scaled from 0 (-60 dB) to 1 (full scale)."""
    window, hop = (max(1, round(rate * milliseconds / 1000)) for milliseconds in (window_ms, hop_ms))
    if len(samples) < window:
        raise DataError(f"{place}: has {len(samples):,} samples, but a frame needs {window:,}")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)  # [window]
    pieces = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]  # [frames, window]
    magnitude = np.abs(np.fft.rfft(pieces * hann)) / hann.sum() * 2  # [frames, frequencies]
    frames: Array = (1 + np.log10(np.maximum(magnitude, 0.001)) / 3).astype(np.float32)
    return frames


def read_wav(path: str) -> tuple[Array, int]:
    """Return the samples of a .wav file, from -1 to 1, and its sample rate. Raise DataError if it is invalid."""
    try:
        content = files.read_bytes(path, MOST_BYTES)
    except RunError as error:
        raise DataError(str(error)) from None
    form, data, promised = _wav_chunks(content)
    if len(form) < 16:
        raise DataError(f"{path}: cannot be read as .wav: no RIFF file with the chunks 'fmt ' and 'data'")
    code, channels, rate, _, frame, bits = struct.unpack("<HHIIHH", form[:16])
    if code == EXTENSIBLE and form[26:40] == GUID:
        code = int.from_bytes(form[24:26], "little")
    width = (bits + 7) // 8  # bytes per sample
    if width not in WIDTHS.get(code, ()) or not rate or not channels or frame != channels * width:
        raise DataError(
            f"{path}: cannot be read as .wav: format {code}, {channels} x {bits} bits in {frame} bytes, {rate} Hz; "
            "save it as PCM with 8, 16, 24 or 32 bits, or as floats"
        )
    if len(data) < promised:
        raise DataError(f"{path}: is truncated: {len(data):,} of {promised:,} bytes of audio")
    data = data[: len(data) // frame * frame]
    if not data:
        raise DataError(f"{path}: contains no audio")
    if code == FLOATS:
        samples = finite(np.frombuffer(data, f"<f{width}"), path)
    else:
        raw = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
        wide = np.zeros((len(raw), 4), dtype=np.uint8)
        wide[:, 4 - width :] = raw ^ (128 if width == 1 else 0)  # 8-bit samples are unsigned
        samples = wide.view("<i4").astype(np.float32) / np.float32(2**31)
    return np.ascontiguousarray(samples.reshape(-1, channels).mean(axis=1)), rate


def _wav_chunks(content: bytes) -> tuple[bytes, bytes, int]:
    """Return the chunk `fmt `, the chunk `data` and its declared length. `fmt ` is empty if one is missing."""
    form, start = b"", 12 if content[:4] == b"RIFF" and content[8:12] == b"WAVE" else len(content)
    while start + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, start)
        chunk = content[start + 8 : start + 8 + size]
        if name == b"data":
            return form, chunk, 0 if size == 2**32 - 1 else size  # written to a pipe: up to the end
        form = chunk if name == b"fmt " else form
        start += 8 + size + size % 2
    return b"", b"", 0


@register("corpus", "digits")
class Digits(VectorCorpus):
    """1,797 handwritten digits, 8 x 8 grey pixels from 0 to 1, from scikit-learn (Alpaydin and Kaynak 1998).

    After a fixed shuffle, the first 180 are test, the next 180 valid, and the rest train.
    """

    fields = ("vectors", "label")

    class Config(VectorCorpus.Config):
        split: Literal["train", "valid", "test"] = Field(
            "train", description="train: 1,437 digits; valid, test: 180 each"
        )

    config: Config

    def read(self) -> Iterator[Example]:
        try:
            digits: Any = import_module("sklearn.datasets").load_digits()
        except ImportError:
            raise DataError(f"the corpus 'digits' needs the packages of an extra: {installing('vision')}") from None
        order = sorted(range(len(digits.target)), key=lambda number: hashlib.sha256(b"digit %d" % number).digest())
        for number in order[
            {"train": slice(360, None), "valid": slice(180, 360), "test": slice(180)}[self.config.split]
        ]:
            picture, label = digits.images[number][..., None] / 16, digits.target[number]
            yield {"vectors": Vectors(f"digit {number + 1}", picture), "label": str(label)}


def files_lines(path: str) -> list[str]:
    """Return the lines of a text file. Raise DataError for an empty line."""
    lines = list(Lines(path))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise DataError(f"{path}:{number}: the line is empty; every example needs a label")
    return lines


def _rows(path: str, scale: float) -> Iterator[Vectors]:
    array: NDArray[Any] = read_npy(path)
    for number, row in enumerate(array, 1):
        place = f"{path}: row {number}"
        values = finite(row, place) * np.float32(scale)
        yield Vectors(place, values if values.ndim > 1 else np.atleast_2d(values))
