"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "study": ("studies", "Comparing", "Train the variants of a recipe over several seeds and compare them."),
    "compare": ("studies", "Comparing", "Compare runs, or the runs of a study, with intervals, verdicts and a page."),
}
