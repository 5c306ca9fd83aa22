"""Training of a recipe in a run folder.

setup       data, tokenizer and model of a recipe: start here
loop        steps, validations and checkpoints; step.py computes the gradient of one step
objective/  training tasks; metric/ scores; optimizer.py and schedule.py updates
checkpoint  state for exact resumption; folder.py names the files of a run, record.py keeps their checksums
claim       exclusive use of a run folder; lifecycle.py starts, resumes and ends training
"""
