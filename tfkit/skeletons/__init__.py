"""Templates of parts, which `tfkit new --part` copies under a new name. They are never imported."""
