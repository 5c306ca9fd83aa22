"""Text from a model, token by token.

writer      texts in, texts out: begin here
strategy/   greedy, sampling, beam and others; logits/ and stop.py have the rules they obey
constraint/ outputs of a pattern or a JSON Schema
search      prompts, model and rules of one call; stepper.py takes one step
decoder     a view of a model for decoding, with packed or int8 weights
"""
