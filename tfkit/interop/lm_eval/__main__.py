"""The command lm_eval with the model `tfkit`, which lm-eval knows after an import only."""

from __future__ import annotations

import sys
from typing import Any

from tfkit.core.errors import TfkitError
from tfkit.core.extras import optional
from tfkit.core.output import emit


def main() -> int:
    """Run lm-eval's command line; returns 2 where a run or a task asks for the impossible."""
    try:
        from tfkit.interop.lm_eval.adapter import NEEDS

        command: Any = optional("lm_eval.__main__", "eval", NEEDS)
        command.cli_evaluate()
    except TfkitError as error:
        emit(f"tfkit: {error}\n", sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
