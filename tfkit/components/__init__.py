"""The parts of an architecture: one module or package per slot. README.md lists the variants of each slot.

Start with `residual.py` (a layer as an equation), `feedforward/dense.py` and `attention/multi_head.py`. The base class
of a slot documents `forward`; a variant is one class with a nested Config and a decorator.
"""
