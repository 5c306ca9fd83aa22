"""Changes to the text of a recipe: `--set`, edits that keep comments, and files of older versions."""
