"""The lm_eval command with the model `tfkit` registered."""

from __future__ import annotations

import sys
from typing import Any

from tfkit.core.errors import TfkitError
from tfkit.core.extras import optional
from tfkit.core.output import emit


def main() -> int:
    """Run lm-eval's command line. Return 2 on errors of a run or a task."""
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
