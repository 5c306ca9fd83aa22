"""Constrained texts: the bytes of each token (`token_texts`), and the tokens that lead to a match (`guide`)."""
