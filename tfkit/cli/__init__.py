"""The command line: one thin file per command, imported when that command runs."""
