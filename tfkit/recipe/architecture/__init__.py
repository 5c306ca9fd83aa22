"""Resolution of `model:` to a Blueprint: patterns of layers, stacks, heads and initialization."""
