"""Constrained texts: a pattern as a finite automaton, and the tokens from which a match is reachable.

| file | contents |
|---|---|
| syntax | parses a pattern into a tree |
| automaton | compiles the tree into states and transitions over characters |
| token_texts | the bytes that each token decodes to |
| pieces | tokens as character classes: the next state after each token |
| guide | the allowed next tokens, and the number of tokens needed to complete a match |
"""
