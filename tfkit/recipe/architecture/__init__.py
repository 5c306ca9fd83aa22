"""`model:` -> Blueprint: one file per rule, from the pattern of layers to heads and initialization."""
