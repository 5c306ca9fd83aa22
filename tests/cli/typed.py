"""Commands as a user types them, by click's runner, and the recipes of the runs that these tests share."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from tests.training.small import RECIPE
from tfkit.cli.main import main

WRITER: dict[str, Any] = {
    **RECIPE,
    "model": {
        **RECIPE["model"],
        "d_model": 16,
        "max_length": 40,
        "position": "learned",  # reads no further
        "init": {"type": "normal", "std": 0.3},
    },
    "data": {"tokenizer": "character", "train": {"type": "text", "files": "text"}},
    "objective": {"type": "causal_lm", "block": 16},
    "train": {"steps": 1, "device": "cpu", "samples": 0},
    "generate": {"max_new_tokens": 9},
}
SIDES = {"type": "parallel_text", "source": "a.txt", "target": "b.txt"}
PAIR: dict[str, Any] = {
    **RECIPE,
    "model": {**RECIPE["model"], "type": "encoder_decoder", "embedding": {"type": "tokens", "shared": True}},
    "data": {"tokenizer": "word", "train": SIDES, "valid": SIDES, "batch": {"size": 4}},
    "objective": "seq2seq",
    "train": {**RECIPE["train"], "metrics": [], "steps": 4, "evaluate_every": 2, "checkpoint_every": 100_000_000},
    "generate": {"max_new_tokens": 4},
}


def typed(*words: object, stdin: str | bytes | None = None, columns: int | None = None) -> Result:
    """Run a command; raise what is no exit."""
    environment = {} if columns is None else {"COLUMNS": str(columns)}
    result = CliRunner(env=environment).invoke(main, [str(word) for word in words], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*words: object, stdin: str | bytes | None = None) -> str:
    """Return the message of a command that refuses: status 2, no traceback, no output but the faults of --json."""
    result = typed(*words, stdin=stdin)
    if result.stdout.startswith('{"faults": ['):
        return "".join(f"tfkit: {fault['message']}\n" for fault in json.loads(result.stdout)["faults"])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    return result.stderr
