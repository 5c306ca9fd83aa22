"""Foundations that all other packages share, without variants of parts or file formats.

component   Component and its Config; start here
registry    parts by slot and name; `register`, and plugins of installed packages
options     option types, and annotations for options that name parts or paths; bounds.py has the limits
slots       declarations of each slot that other packages read without loading its variants
shape       sizes of the model, passed to each part; context and inputs: the arguments of a call
blueprint   an architecture, frozen and explicit
trees       types of nested plain data, as read from YAML and JSON
errors      faults with places, and readable errors; extras.py names missing libraries
"""
