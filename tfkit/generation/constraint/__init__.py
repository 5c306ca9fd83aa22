"""Constrained texts: a pattern as a finite automaton, and the tokens that keep a match reachable.

| file | contents |
|---|---|
| syntax | parses a pattern into a tree |
| automaton | compiles the tree into states and transitions over characters |
| token_texts | computes the bytes that each token decodes to |
| pieces | computes the state after each token |
| guide | computes the allowed next tokens, and the number of tokens needed to complete a match |
"""
