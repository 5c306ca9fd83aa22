"""`python -m tfkit` is `tfkit`."""

from tfkit.cli.main import main

main(prog_name="tfkit")
