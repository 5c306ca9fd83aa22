"""Entry point of `python -m tfkit`, the same as `tfkit`."""

from tfkit.cli.main import main

main(prog_name="tfkit")
