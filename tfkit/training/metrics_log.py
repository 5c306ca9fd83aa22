"""metrics.jsonl: one line a step, appended; a resumed run first cuts what came after its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from tfkit.core.files import write_text


class MetricsLog:
    """The open file."""

    def __init__(self, path: Path, step: int = 0) -> None:
        """Go on behind the lines up to `step`."""
        if path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _is_upto(line, step)]
            write_text(path, "".join(line + "\n" for line in kept))
        self._file: IO[str] = path.open("a", encoding="utf-8", newline="\n")

    def write(self, record: dict[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_upto(line: str, step: int) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False  # a line that was cut off
