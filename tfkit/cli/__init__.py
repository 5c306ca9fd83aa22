"""The command line: a page for each kind of command, imported on demand; commands.py lists them."""
