"""Training of a recipe into a run folder.

setup       data, tokenizer and model of a recipe: start here
loop        steps, validations and checkpoints; step.py computes the gradient of one step
objective/  the tasks; metric/ the scores; optimizer.py and schedule.py the updates
checkpoint  state for exact resumption; folder.py names the files of a run, record.py keeps their checksums
claim       one training per folder; lifecycle.py starts, resumes and ends it
"""
