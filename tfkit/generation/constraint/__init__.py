"""Constrained texts: a pattern as a finite automaton, and the tokens that can still lead to a match.

| file | contents |
|---|---|
| syntax | parses a pattern into a tree |
| automaton | compiles the tree into states and transitions over characters |
| token_texts | the bytes that each token decodes to |
| pieces | tokens as character classes: the state that each token leads to |
| guide | the tokens allowed after those written, and the number needed to complete a match |
"""
