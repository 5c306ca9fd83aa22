"""Settings laid over settings: what merges, what replaces, and the few forms of a key that say so."""
