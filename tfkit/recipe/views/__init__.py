"""Views of a resolved recipe: a table with the origin of each value, and the text of resolved.yaml."""
