"""A run's folder: the names in it, and how files come to be there, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfkit.core.errors import RunError

RECIPE = "recipe.yaml"
RESOLVED = "resolved.yaml"
TOKENIZER = "tokenizer.json"
LABELS = "labels.json"
WEIGHTS = "model.safetensors"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
LOG = "train.log"
ENVIRONMENT = "environment.json"
EVALUATION = "evaluation.json"
# what --force may remove; whatever else stands in the folder belongs to somebody else
OURS = (RECIPE, RESOLVED, TOKENIZER, LABELS, WEIGHTS, METRICS, LOG, ENVIRONMENT, EVALUATION)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to beside `path`; what was written takes its place when the block ends well, else it is gone."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        sync(beside)
        os.replace(beside, path)
        sync(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text`, whole or not at all."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file holds; raises RunError naming the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from None


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk; some systems cannot say so of a folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run; `folder / name` for each of the names above."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    @property
    def holds_run(self) -> bool:
        """Whether tfkit has written a run here."""
        try:
            return "tfkit" in json.loads((self / ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return False

    @property
    def holds_import(self) -> bool:
        """Whether the run here was imported, not trained."""
        return self.holds_run and "imported" in read_json(self / ENVIRONMENT)

    @property
    def is_free(self) -> bool:
        """Whether nothing stands in the way of a new run."""
        return not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))

    def clear(self) -> None:
        """Remove the files of the run that is here, and only those; raises RunError when one cannot be removed."""
        try:
            for name in OURS:
                (self / name).unlink(missing_ok=True)
            if (self / CHECKPOINTS).is_dir():
                shutil.rmtree(self / CHECKPOINTS)
        except OSError as error:
            raise RunError(f"{error.filename}: cannot be removed: {error.strerror}") from None
