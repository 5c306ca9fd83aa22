"""Tokenizers, corpora, and the planning of batches. Nothing here needs torch."""
