"""Entry point of `python -m tfkit`, which is equivalent to `tfkit`."""

from tfkit.cli.start import start

start()
