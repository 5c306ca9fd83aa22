"""What a recipe file is: its text with the place of every value, options read from it, faults that name the place."""
