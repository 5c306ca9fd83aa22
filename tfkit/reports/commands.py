"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "draw": ("comparing", "Recipes", "Draw an architecture, or the differences between two."),
    "report": ("comparing", "Comparing", "Write the page of a run or a study: one HTML file to hand in."),
}
