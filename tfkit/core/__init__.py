"""The ground floor: everything a part is made of, without a variant and without a file.

component   Component and its Config; begin here
registry    parts by slot and name; `register`, and plugins of installed packages
options     types of options, and marks that say what an option names; bounds.py has their limits
slots       facts of each slot that other rooms ask for, declared without its variants
shape       what a part learns of its model; context and inputs: what a call hands down
blueprint   an architecture, frozen and explicit
errors      faults with places, and errors in words; extras.py names libraries that are not installed
"""
