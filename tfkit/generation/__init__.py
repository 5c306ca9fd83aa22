"""Text from a model, token by token.

writer      texts in, texts out: start here
strategy/   greedy search, sampling, beam search and others
logits/     rules that modify the scores of the next token; stop.py has the rules that end a text
constraint  texts that match a pattern
search      prompts, model and rules of one call; stepper.py computes the next logits
decoder     a view of a model for decoding, with packed or int8 weights
"""
