"""Templates of parts: `tfkit new --part` writes them under a given name. They are never imported."""
