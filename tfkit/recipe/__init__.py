"""The recipe language, read once and in one direction; begin with `load.py`.

text/          a file to Nodes with places (`source`), options as types declare them, Faults
overlays.py    merging (R20), --set, overrides, variants
compose.py     bases, the file, variants and changes: one merged tree
imports.py     code of a recipe, only with consent
settings/      the other sections: schemas, and agreement between sections, parts and the model
architecture/  `model:` to a Blueprint: `resolve` a model, `layers` of a stack, `checks` of the result
load.py        all of these in turn, to a Recipe; `model.py` for a bare `model:`
views/         a Recipe with every value explicit, and its origin
rules.py       the table of requirements between parts; `keys.py`: the keys of the language
schema.py      JSON Schema for editors; `derive.py`: a recipe that extends another
"""
