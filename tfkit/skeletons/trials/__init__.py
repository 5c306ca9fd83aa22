"""Tests to begin from: `tfkit new --part` writes one beside the part. Nothing imports them."""
