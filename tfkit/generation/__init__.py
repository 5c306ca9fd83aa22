"""Text from a model, token by token.

writer      texts in, texts out: start here
strategy/   greedy, sampling, beam and others; their rules are in logits/ and stop.py
constraint/ outputs that match a pattern or a JSON Schema
search      prompts, model and rules of one call; stepper.py takes one step
decoder     a view of a model for decoding, with packed or int8 weights
"""
