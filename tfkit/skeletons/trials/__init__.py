"""Templates of tests, one of which `tfkit new --part` copies next to the new part. They are never imported."""
