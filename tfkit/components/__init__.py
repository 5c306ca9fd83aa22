"""The parts of an architecture, one page or folder a slot; README.md lists the variants of each.

Begin with `residual.py` (a layer as an equation), `feedforward/dense.py` and `attention/multi_head.py`.
A slot's base class says what its `forward` maps; a variant is one class with its Config inside and one decorator.
"""
