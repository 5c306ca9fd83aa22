"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {"prove": ("parts", "Comparing", "Measure how well a run keeps the promises of its recipe.")}
