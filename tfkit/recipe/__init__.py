"""The recipe language. A recipe is parsed once, from text to Blueprint; start reading at `load.py`.

text/          parsing a file to Nodes with places (`source`), the options that types declare, Faults
overlays.py    merging (R20), --set, overrides, variants
compose.py     shipped recipes; bases, the file, variants and overrides merged into one tree
imports.py     import of a recipe's own code, only with the user's consent
settings/      the other sections: schemas, and consistency checks between sections, parts and the model
architecture/  resolution of `model:` to a Blueprint: the whole model (`resolve`), `layers` of a stack, `heads`
load.py        all of these steps in order, from source to Recipe; `model.py`: the same for a bare `model:`
views/         the resolved Recipe: every value with its origin
rules.py       the table of requirements between parts
keys.py        the declared keys of the language
schema.py      JSON Schema for editors
derive.py      generation of a recipe that extends another one
"""
