"""Entry point of `python -m tfkit`, which is equivalent to `tfkit`."""

from tfkit.cli.main import main

main(prog_name="tfkit")
