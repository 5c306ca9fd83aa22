"""Foundations shared by all parts: no variants, no files.

component   Component and its Config; start here
registry    parts by slot and name; `register`, and plugins of installed packages
options     option types, and marks that name the target of an option; bounds.py has their limits
slots       declarations of each slot that other rooms query, without its variants
shape       sizes that a part learns from its model; context and inputs: the facts of a call
blueprint   an architecture, frozen and explicit
trees       types of nested plain data, as read from YAML and JSON
errors      faults with places, and readable errors; extras.py names missing libraries
"""
