"""A recipe spelled out: every value with the place that it comes from."""
