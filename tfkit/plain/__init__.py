"""Every model as one file of plain PyTorch: one forward on `meta` is recorded and printed."""
