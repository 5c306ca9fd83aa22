"""The lm_eval command with the model `tfkit` registered."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfkit.core.errors import TfkitError
from tfkit.core.extras import optional
from tfkit.core.output import emit


def main() -> int:
    """Run lm-eval's command line; return 2 if the run or a task is invalid."""
    try:
        from tfkit.interop.lm_eval.adapter import NEEDS

        command: Any = optional("lm_eval.__main__", "eval", NEEDS)
        if _names_files(sys.argv[1:]):
            tasks: Any = optional("lm_eval.tasks", "eval", NEEDS)
            # otherwise lm-eval would read its 14,000 bundled task files, which takes minutes
            tasks.TaskManager = functools.partial(tasks.TaskManager, include_defaults=False)
        command.cli_evaluate()
    except TfkitError as error:
        emit(f"tfkit: {error}\n", sys.stderr)
        return 2
    return 0


def _names_files(arguments: Sequence[str]) -> bool:
    """True if every --tasks entry is a file or folder, so that lm-eval's bundled tasks are not needed."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tasks", "-t", nargs="*", default=[])
    names = [name for each in parser.parse_known_args(arguments)[0].tasks for name in each.split(",")]
    return bool(names) and all(name.endswith(".yaml") or Path(name).is_dir() for name in names)


if __name__ == "__main__":
    sys.exit(main())
