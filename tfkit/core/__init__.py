"""Foundations that all other packages share, without variants of parts or file formats.

component   Component, its Config and Shape, the sizes that each part is passed; start here
registry    parts by slot and name; `register`
options     option types, and annotations for options that name parts or paths; bounds.py has the limits
slots       declarations of each slot that other packages read without loading its variants
context     the arguments of a call; inputs.py has those besides ids, and the capabilities of parts
blueprint   an architecture, frozen and explicit
bounds      limits, and types of nested plain data, as read from YAML and JSON
errors      faults with places, readable errors, missing libraries, plugins of installed packages
rooms       pages that rooms add by having them
"""
