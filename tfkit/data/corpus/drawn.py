"""Generated vector tasks that need no files: images with captions, and named melodies."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tfkit.core.options import Drawn, Seed
from tfkit.core.registry import register
from tfkit.data.corpus.base import Example
from tfkit.data.corpus.vectors import Milliseconds, VectorCorpus, spectra
from tfkit.data.vectors import Array, Vectors

COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.7, 0.2), "blue": (0.1, 0.2, 0.9), "yellow": (0.9, 0.8, 0.1)}
FORMS, RADII = ("circle", "square", "triangle"), {"small": 3, "large": 5}
# of the first shape to the second; inverse relations are left out, so that an image has only one sentence
RELATIONS = ("above", "left of")
PIXELS, HALF = 24, 12
THINGS = tuple(itertools.product(RADII, COLOURS, FORMS))
MELODIES = {
    "scale up": (0, 2, 4), "scale down": (4, 2, 0), "major triad up": (0, 4, 7), "major triad down": (7, 4, 0),
    "minor triad up": (0, 3, 7), "minor triad down": (7, 3, 0), "octave up": (0, 12, 0), "tritone": (0, 6, 0),
}  # fmt: skip
SPLITS = ("train", "valid", "test")


class DrawnCorpus(VectorCorpus):
    """Base of generated vector corpora; the same options always generate the same examples."""

    class Config(VectorCorpus.Config):
        """The split, its size and the seed."""

        split: Literal["train", "valid", "test"] = Field("train", description="the split; splits share no example")
        size: Drawn = Field(1000, description="number of examples")
        seed: Seed = Field(0, description="seed of the examples")

    example: ClassVar = {"size": 12}
    config: Config

    def count(self) -> int:
        """Number of examples."""
        return self.config.size

    def read(self) -> Iterator[Example]:
        """Yield the examples, each drawn with its own RNG."""
        for number in range(1, self.config.size + 1):
            place = f"{self.part_name} {self.config.split} {number}"
            yield self.draw(place, random.Random(f"{self.config.seed} {place}"))

    def draw(self, place: str, rng: random.Random) -> Example:
        """Draw an example."""
        raise NotImplementedError(f"{type(self).__name__} does not implement draw")


@register("corpus", "shapes")
class Shapes(DrawnCorpus):
    """Two drawn shapes, 24 x 24 pixels, and a sentence: "a large red circle above a small blue square".

    A fifth of the 1,152 possible sentences is reserved for valid, and another fifth for test, so both contain only
    unseen combinations.
    """

    fields = ("vectors", "target")

    def draw(self, place: str, rng: random.Random) -> Example:
        while True:
            first, second, relation = rng.choice(THINGS), rng.choice(THINGS), rng.choice(RELATIONS)
            sentence = f"a {' '.join(first)} {relation} a {' '.join(second)}"
            if _split_of(sentence) == self.config.split:
                break
        picture = np.full((PIXELS, PIXELS, 3), 0.95, dtype=np.float32)
        for half, thing in enumerate((first, second)):
            radius = RADII[thing[0]]
            along = half * HALF + rng.randint(radius, HALF - 1 - radius)
            across = HALF + rng.randint(-2, 1)  # nearly aligned, so that only one relation holds
            row, column = (along, across) if relation == "above" else (across, along)
            _paint(picture, thing, radius, row, column)
        picture += np.random.default_rng(rng.getrandbits(32)).normal(0, 0.02, picture.shape).astype(np.float32)
        return {"vectors": Vectors(place, picture), "target": sentence}


def _split_of(sentence: str) -> str:
    """Return the split of a sentence by its hash: three fifths are train, one fifth each valid and test."""
    return SPLITS[max(0, hashlib.sha256(sentence.encode()).digest()[0] % 5 - 2)]


def _paint(picture: Array, thing: tuple[str, str, str], radius: int, row: int, column: int) -> None:
    """Draw a shape centred on a pixel."""
    _, colour, form = thing
    down, right = np.mgrid[:PIXELS, :PIXELS]
    down, right = down - row, right - column
    if form == "circle":
        inside = down**2 + right**2 <= (radius + 0.3) ** 2
    elif form == "square":
        inside = np.maximum(abs(down), abs(right)) <= radius
    else:
        inside = (abs(down) <= radius) & (2 * abs(right) <= down + radius)
    picture[inside] = COLOURS[colour]


@register("corpus", "tones")
class Tones(DrawnCorpus):
    """Melodies of three tones in each of twelve keys, slightly detuned and with noise: log spectra [frames, width]."""

    fields = ("vectors", "label")

    class Config(DrawnCorpus.Config):
        """The sound and its frames; each frame has `rate * window_ms / 2000 + 1` frequencies."""

        rate: Annotated[int, Field(ge=4000, le=48_000)] = Field(8000, description="sample rate in samples per second")
        seconds: Annotated[float, Field(ge=0.3, le=10)] = Field(0.9, description="length of a melody in seconds")
        window_ms: Milliseconds = Field(64.0, description="length of a frame in milliseconds")
        hop_ms: Milliseconds = Field(32.0, description="time between the starts of consecutive frames in milliseconds")
        noise: Annotated[float, Field(ge=0, le=1)] = Field(0.05, description="standard deviation of the noise")

    config: Config

    def draw(self, place: str, rng: random.Random) -> Example:
        options, name = self.config, rng.choice(list(MELODIES))
        pitch, loudness = 220 * 2 ** ((rng.randrange(12) + rng.uniform(-0.1, 0.1)) / 12), rng.uniform(0.2, 0.6)
        length = int(options.rate * options.seconds / 3)
        time = np.arange(length) / options.rate
        fade = np.minimum(1, np.minimum(time, time[::-1]) / 0.01)
        tones = [np.sin(2 * np.pi * pitch * 2 ** (step / 12) * time) for step in MELODIES[name]]
        sound = loudness * np.concatenate([fade * (tone + 0.3 * tone**3) for tone in tones])
        sound += np.random.default_rng(rng.getrandbits(32)).normal(0, options.noise, sound.shape)
        frames = spectra(sound.astype(np.float32), options.rate, options.window_ms, options.hop_ms, place)
        return {"vectors": Vectors(place, frames), "label": name}
