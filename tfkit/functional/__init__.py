"""Pure functions of tensors, without parameters and without knowledge of parts.

Begin with `attend.py`: the only softmax attention of the package, as a fast kernel and as the reference it must match.
"""
