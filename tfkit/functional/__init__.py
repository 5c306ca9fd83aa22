"""Pure tensor functions, without parameters and independent of parts.

Start with `attend.py`, the only softmax attention of the package: a fast kernel and the reference that it must match.
"""
