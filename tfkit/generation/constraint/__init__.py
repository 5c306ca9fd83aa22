"""Texts that may be written: a pattern as a finite automaton, and the tokens that lead on to a match of it.

| file | what is in it |
|---|---|
| syntax | a pattern, read into a tree |
| automaton | the tree as states and transitions, one at a time for each character |
| token_texts | what each token of a vocabulary writes, in bytes |
| pieces | these texts as characters of an automaton: where each token leads to |
| guide | both together: which tokens may follow those that are written, and in how many a match is complete |
"""
