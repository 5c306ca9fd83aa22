"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {"new": ("new", "Extending", "Write a recipe that extends another, or a part and its test.")}
