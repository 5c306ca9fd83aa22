"""`model:` -> Blueprint: a file for each rule, from the pattern of layers to heads and initialisation."""
