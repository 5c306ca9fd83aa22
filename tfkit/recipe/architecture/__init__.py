"""Resolution of `model:` to a Blueprint, from the pattern of layers to heads and initialization."""
