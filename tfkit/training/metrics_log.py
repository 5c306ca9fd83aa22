"""metrics.jsonl: one line per step. Resumption first drops the lines after the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tfkit.storage.files import open_log, read_bytes, write_text


class MetricsLog:
    """Writer of metrics.jsonl."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """Drop the lines after `step`, and open the file for appending. Raise RunError if it cannot be opened."""
        if path.exists():
            kept = [line for line in good_lines(read_bytes(path))[0] if step_in(line) <= step]
            write_text(path, "".join(line + "\n" for line in kept))
        self._file: IO[str] = open_log(path)

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def good_lines(text: bytes) -> tuple[list[str], int]:
    """Return the valid lines of metrics.jsonl and the number of invalid lines. Ignore a truncated last line."""
    *lines, last = text.split(b"\n")
    good = [line.decode("utf-8") for line in lines if _holds_step(line)]
    return good, len(lines) - len(good) + (last[:1] not in (b"", b"{"))


def step_in(line: str) -> int:
    """Return the step of a valid line."""
    return int(json.loads(line)["step"])


def _holds_step(line: bytes) -> bool:
    try:
        return type(json.loads(line.decode("utf-8"))["step"]) is int
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
