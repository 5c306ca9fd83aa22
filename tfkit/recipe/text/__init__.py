"""Recipe files: text with the place of every value, options read from it, faults with their places."""
