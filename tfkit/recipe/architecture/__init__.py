"""`model:` -> Blueprint: one page per thought, from the pattern of layers to heads and initialization."""
